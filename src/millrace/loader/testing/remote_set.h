// SPDX-License-Identifier: Apache-2.0
#pragma once

// A dataset on a storage of S3's shape whose requests a test counts, delays and lets fail.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "millrace/formats/manifest.h"
#include "millrace/formats/shard_index.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/shard_source.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::loader {

inline constexpr uint16_t kLargestId = 60'000;

// Sample n of the dataset has 1 + n % 5 ids, or `count`, all of them n.
inline std::vector<uint16_t> sample_ids(int64_t n, int64_t count) {
  return std::vector<uint16_t>(static_cast<size_t>(count > 0 ? count : 1 + n % 5),
                               static_cast<uint16_t>(n % kLargestId));
}

// A folder of token shards, with indexes. Its storage counts and delays what `slow` asks for.
struct RemoteSet {
  std::shared_ptr<FaultPlan> plan = std::make_shared<FaultPlan>();
  std::shared_ptr<Storage> storage = make_fault_storage(make_parts_storage(std::make_shared<PartsService>()), plan);
  int64_t samples = 0;
  int64_t ids_each = 0;  // ids in each sample

  RemoteSet(int shards, int64_t shard_samples, bool with_manifest = true, int64_t ids_in_each = 0)
      : ids_each(ids_in_each) {
    formats::Manifest manifest;
    manifest.config.options.format = formats::OutputFormat::kTokens;
    manifest.config.ids_field = "u16";
    for (int shard = 0; shard < shards; ++shard) {
      manifest.shards.push_back(write_shard(fmt::format("{:03d}.bin", shard), shard_samples));
      manifest.tokens += manifest.shards.back().tokens;
    }
    manifest.documents = samples;
    if (!with_manifest) return;
    EXPECT_TRUE(write_object(*storage, "set/manifest.json", formats::serialize_manifest(manifest)));
  }

  formats::ShardEntry write_shard(const std::string& name, int64_t shard_samples) {
    formats::ShardIndex index;
    index.kind = formats::SampleExtentKind::kIds;
    index.ids_field = "u16";
    std::string bytes;
    for (int64_t i = 0; i < shard_samples; ++i) {
      const auto ids = sample_ids(samples++, ids_each);
      const std::string extent(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]);
      index.offset.push_back(bytes.size());
      index.size.push_back(extent.size());
      index.tokens.push_back(static_cast<uint32_t>(ids.size()));
      index.hash.push_back(xxh3_64(as_bytes(extent)));
      bytes += extent;
    }
    index.shard_size = std::ssize(bytes);
    index.shard_hash = xxh3_128(bytes);
    const std::string index_file = formats::serialize_shard_index(index);
    EXPECT_TRUE(write_object(*storage, "set/" + name, bytes));
    EXPECT_TRUE(write_object(*storage, "set/" + name + ".index", index_file));
    return {name, index.shard_size, shard_samples, index.total_tokens(), index.shard_hash, xxh3_128(index_file)};
  }

  void slow(std::chrono::milliseconds delay, FaultCall call = FaultCall::kAny, const std::string& key_part = {}) const {
    plan->add({.call = call, .key_part = key_part, .count = FaultRule::kForever, .delay = delay});
  }
  // The shards by name, for a set without a manifest.
  std::vector<Shard> shards(int count) const {
    std::vector<Shard> named;
    for (int i = 0; i < count; ++i) {
      const std::string key = fmt::format("set/{:03d}.bin", i);
      named.push_back({.location = {storage, key, "far:" + key}});
    }
    return named;
  }
};

inline LoaderOptions remote_options(Collate collate, int64_t global_batch = 8) {
  LoaderOptions options;
  options.global_batch_size = global_batch;
  options.seq_len = 16;
  options.collate = collate;
  options.order.seed = 3;
  options.epochs = 1;
  options.threads = 2;
  options.memory_bytes = 64 << 20;
  return options;
}

inline std::unique_ptr<Loader> make(const RemoteSet& set, const LoaderOptions& options, int shards_by_name = 0) {
  const OpenSource open =
      [&set, shards_by_name](const SourceContext& context) -> Result<std::unique_ptr<order::SampleSource>> {
    std::vector<Shard> shards = set.shards(shards_by_name);
    if (shards.empty()) {
      ASSIGN_OR_RETURN(shards, find_shards_in({set.storage, "set", "far:set"}));
    }
    const ShardSourceOptions source{.name = "far:set",
                                    .index_cache_bytes = context.index_bytes,
                                    .run_bytes = context.run_bytes,
                                    .activities = context.activities};
    return open_shard_source(std::move(shards), source, context.metrics, context.stop);
  };
  auto loader = Loader::create(options, {open});
  EXPECT_TRUE(loader) << loader.error().to_string();
  return std::move(*loader);
}

}  // namespace millrace::loader
