// SPDX-License-Identifier: Apache-2.0
#pragma once

// Datasets in memory for tests of the loader, and what their loaders give.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "millrace/formats/npy.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"
#include "millrace/loader/loader.h"
#include "millrace/storage/url.h"

namespace millrace::loader {

// A folder of shards in memory. Token ids say where they come from: sample n holds (first_number + n) * 1000 + 0, 1,
// ...
struct TestSet {
  std::string url;
  std::vector<std::vector<uint32_t>> samples;
  std::vector<size_t> shard_sizes;  // in samples

  Location shard(size_t i) const { return open_url(url + fmt::format("/{:05d}.tar", i)).value(); }
};

inline TestSet make_dataset(const std::string& name, std::vector<int> shard_samples, uint64_t seed, bool json = false,
                            bool with_index = true, Hash128 tokenizer = {}, uint32_t first_number = 0) {
  std::mt19937_64 random(seed);
  TestSet data{"mem://" + name, {}, {shard_samples.begin(), shard_samples.end()}};
  for (size_t i = 0; i < shard_samples.size(); ++i) {
    std::string tar;
    for (int k = 0; k < shard_samples[i]; ++k) {
      std::vector<uint32_t> ids(random() % 40);
      for (size_t t = 0; t < ids.size(); ++t)
        ids[t] = static_cast<uint32_t>((first_number + data.samples.size()) * 1000 + t);
      std::string field;
      json ? formats::append_json_ids(field, ids) : formats::append_npy_u32(field, ids);
      const std::string key = fmt::format("{:05d}-{:06d}", i, k);
      EXPECT_TRUE(formats::append_tar_member(tar, key + ".text.txt", as_bytes("some text")));
      EXPECT_TRUE(
          formats::append_tar_member(tar, key + (json ? ".token_ids.json" : ".token_ids.npy"), as_bytes(field)));
      data.samples.push_back(std::move(ids));
    }
    formats::append_tar_end(tar);
    const Location at = data.shard(i);
    EXPECT_TRUE(write_object(*at.storage, at.key, tar));
    if (!with_index) continue;
    auto index = formats::index_shard(MemoryReader(as_bytes(tar), "tar"));
    EXPECT_TRUE(index) << index.error().to_string();
    index->tokenizer_hash = tokenizer;
    EXPECT_TRUE(write_object(*at.storage, at.key + ".index", formats::serialize_shard_index(*index)));
  }
  return data;
}

inline LoaderOptions options_for(const TestSet& data, int64_t global_batch, int64_t seq_len = 16) {
  LoaderOptions options;
  options.shards = {data.url};
  options.global_batch_size = global_batch;
  options.seq_len = seq_len;
  options.order.seed = 3;
  options.epochs = 1;
  options.threads = 2;
  options.memory_bytes = 64 << 20;
  return options;
}

inline std::vector<int64_t> row_of(const Batch& batch, size_t array, int64_t row) {
  const auto* values = reinterpret_cast<const int64_t*>(batch.arrays[array].data) + row * batch.seq_len;
  return {values, values + batch.seq_len};
}

using Rows = std::vector<std::vector<int64_t>>;

inline Rows rows_of(const Batch& batch) {
  Rows rows;
  for (int64_t row = 0; row < batch.rows; ++row) rows.push_back(row_of(batch, 0, row));
  return rows;
}

// The rows that provenance names, read out of the datasets.
inline Rows rows_named(const std::vector<RowParts>& rows, std::span<const TestSet> sets, int64_t seq_len) {
  Rows named;
  for (const RowParts& parts : rows) {
    std::vector<int64_t>& row = named.emplace_back();
    for (const SamplePart& part : parts) {
      const TestSet& set = sets[static_cast<size_t>(part.source)];
      size_t number = static_cast<size_t>(part.sample);
      for (size_t shard = 0; set.shard(shard).url != part.shard; ++shard) number += set.shard_sizes[shard];
      const auto& ids = set.samples[number];
      row.insert(row.end(), ids.begin() + part.begin, ids.begin() + part.end);
    }
    row.resize(static_cast<size_t>(seq_len), -1);
  }
  return named;
}

// The rows of every global batch, over all ranks, sorted: what a step trains on.
using Steps = std::vector<std::multiset<std::vector<int64_t>>>;

inline void add_rows(const Batch& batch, std::multiset<std::vector<int64_t>>& rows) {
  for (int64_t r = 0; r < batch.rows; ++r) rows.insert(row_of(batch, 0, r));
}

inline std::unique_ptr<Loader> make(const LoaderOptions& options) {
  auto loader = Loader::create(options);
  EXPECT_TRUE(loader) << loader.error().to_string();
  return std::move(*loader);
}

inline std::optional<Batch> take(Loader& loader) {
  auto batch = loader.next();
  EXPECT_TRUE(batch) << (batch ? "" : batch.error().to_string());
  return batch ? std::move(*batch) : std::nullopt;
}

inline Steps run(LoaderOptions options, int64_t world_size, int64_t steps = 1 << 30, const std::string& state = {},
                 std::string* state_out = nullptr) {
  std::vector<std::unique_ptr<Loader>> ranks;
  for (int64_t r = 0; r < world_size; ++r) {
    options.rank = r;
    options.world_size = world_size;
    options.uneven_ranks = true;
    ranks.push_back(make(options));
    if (!state.empty()) {
      const Status loaded = ranks.back()->load_state(state);
      EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().to_string());
    }
  }
  Steps result;
  for (int64_t s = 0; s < steps; ++s) {
    std::multiset<std::vector<int64_t>> rows;
    int64_t got = 0;
    for (auto& rank : ranks) {
      if (const auto batch = take(*rank)) {
        add_rows(*batch, rows);
        ++got;
      }
    }
    EXPECT_TRUE(got == 0 || got == world_size);
    if (got == 0) break;
    result.push_back(std::move(rows));
  }
  if (state_out != nullptr) {
    *state_out = *ranks[0]->state();
    for (auto& rank : ranks) EXPECT_EQ(*rank->state(), *state_out);
  }
  return result;
}

}  // namespace millrace::loader
