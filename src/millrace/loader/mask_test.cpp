// SPDX-License-Identifier: Apache-2.0
// Samples with a loss_mask.npy beside their ids: what the labels become.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"
#include "millrace/loader/loader.h"
#include "millrace/storage/url.h"

namespace millrace::loader {
namespace {

using ::testing::HasSubstr;

// An id says itself whether it is learned: odd ones are.
std::vector<uint32_t> sample_ids(std::mt19937_64& random) {
  std::vector<uint32_t> ids(random() % 40);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % 100000);
  return ids;
}

std::string mask_of(std::span<const uint32_t> ids) {
  std::vector<uint8_t> mask;
  for (const uint32_t id : ids) mask.push_back(id % 2);
  std::string file;
  formats::append_npy_u8(file, mask);
  return file;
}

// A shard; `mask` gives the mask's file of a sample, empty for none. Tokens in all are added to `tokens`.
void write_shard(const std::string& url, size_t samples, uint64_t seed,
                 const std::function<std::string(size_t, std::span<const uint32_t>)>& mask, size_t* tokens = nullptr) {
  std::mt19937_64 random(seed);
  std::string tar;
  for (size_t i = 0; i < samples; ++i) {
    const auto ids = sample_ids(random);
    if (tokens != nullptr) *tokens += ids.size();
    const std::string key = fmt::format("{:06d}", i), mask_file = mask(i, ids);
    std::string ids_file;
    formats::append_npy_u32(ids_file, ids);
    if (!mask_file.empty()) {
      ASSERT_TRUE(formats::append_tar_member(tar, key + ".loss_mask.npy", as_bytes(mask_file)));
    }
    ASSERT_TRUE(formats::append_tar_member(tar, key + ".token_ids.npy", as_bytes(ids_file)));
  }
  formats::append_tar_end(tar);
  const Location at = open_url(url).value();
  const auto index = formats::index_shard(MemoryReader(as_bytes(tar), "tar"));
  ASSERT_TRUE(index) << index.error().to_string();
  ASSERT_TRUE(write_object(*at.storage, at.key, tar));
  ASSERT_TRUE(write_object(*at.storage, at.key + ".index", formats::serialize_shard_index(*index)));
}

std::unique_ptr<Loader> make(const std::string& url, Collate collate, int64_t seq_len = 48) {
  LoaderOptions options;
  options.shards = {url};
  options.global_batch_size = 7;
  options.seq_len = seq_len;
  options.collate = collate;
  options.pad_id = -1;
  options.drop_last = false;
  options.epochs = 1;
  options.threads = 2;
  options.memory_bytes = 64 << 20;
  options.order.window_samples = 8;
  return Loader::create(options).value();
}

TEST(LossMask, LabelsAreMinus100WhereItIsZeroInEveryCollateMode) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  size_t tokens = 0;
  write_shard("mem://mask/0.tar", 100, seed, [](size_t, auto ids) { return mask_of(ids); }, &tokens);
  for (const Collate collate : {Collate::kPad, Collate::kPack}) {
    const auto loader = make("mem://mask/0.tar", collate);
    size_t seen = 0;
    for (;;) {
      const auto batch = loader->next();
      ASSERT_TRUE(batch) << batch.error().to_string();
      if (!*batch) break;
      const int64_t n = (*batch)->rows * (*batch)->seq_len;
      const auto* ids = reinterpret_cast<const int64_t*>((*batch)->arrays[0].data);
      const auto* labels = reinterpret_cast<const int64_t*>((*batch)->arrays[1].data);
      const auto* third = reinterpret_cast<const int64_t*>((*batch)->arrays[2].data);
      for (int64_t i = 0; i < n; ++i) {
        const bool first = collate == Collate::kPack && third[i] == 0;
        const bool learned = ids[i] >= 0 && ids[i] % 2 == 1 && !first;
        ASSERT_EQ(labels[i], learned ? ids[i] : kIgnoreLabel) << "token " << i << ", id " << ids[i];
        seen += ids[i] >= 0;
      }
    }
    EXPECT_EQ(seen, tokens);
  }
}

TEST(LossMask, ShardsWithoutOneLearnEverythingBesideShardsThatHaveOne) {
  write_shard("mem://mask-some/0.tar", 30, 1, [](size_t, auto ids) { return mask_of(ids); });
  write_shard("mem://mask-some/1.tar", 30, 2, [](size_t, auto) { return std::string(); });
  const auto loader = make("mem://mask-some", Collate::kPad);
  int64_t even_learned = 0, even_left_out = 0;
  for (;;) {
    const auto batch = loader->next();
    ASSERT_TRUE(batch) << batch.error().to_string();
    if (!*batch) break;
    const auto* ids = reinterpret_cast<const int64_t*>((*batch)->arrays[0].data);
    const auto* labels = reinterpret_cast<const int64_t*>((*batch)->arrays[1].data);
    for (int64_t i = 0; i < (*batch)->rows * (*batch)->seq_len; ++i) {
      if (ids[i] < 0) continue;
      if (ids[i] % 2 == 0) {
        ++(labels[i] == ids[i] ? even_learned : even_left_out);
      } else {
        ASSERT_EQ(labels[i], ids[i]);
      }
    }
  }
  EXPECT_GT(even_learned, 0);
  EXPECT_GT(even_left_out, 0);
}

TEST(LossMask, DamageNamesShardAndSample) {
  const auto error_of = [](const std::string& name, const std::function<std::string(std::string)>& damage) {
    const std::string url = "mem://mask-" + name + "/7.tar";
    write_shard(url, 10, 5, [&](size_t i, auto ids) { return i == 4 ? damage(mask_of(ids)) : mask_of(ids); });
    const auto batch = make(url, Collate::kPack)->next();
    EXPECT_FALSE(batch);
    return batch ? Error(ErrorCode::kInternal, "none") : batch.error();
  };
  const Error cut = error_of("cut", [](std::string file) { return file.substr(0, file.size() - 1); });
  EXPECT_EQ(cut.code(), ErrorCode::kCorruption);
  EXPECT_THAT(cut.to_string(), HasSubstr("7.tar: sample 000004: loss_mask.npy"));
  const Error length = error_of("length", [](const std::string&) { return mask_of(std::vector<uint32_t>(50)); });
  EXPECT_EQ(length.code(), ErrorCode::kCorruption);
  EXPECT_THAT(length.to_string(), HasSubstr("7.tar: sample 000004: loss_mask.npy: 50 values for "));
  const Error value = error_of("value", [](std::string file) {
    file.back() = 2;
    return file;
  });
  EXPECT_EQ(value.code(), ErrorCode::kCorruption);
  EXPECT_THAT(value.to_string(), HasSubstr("loss_mask.npy: value 2 at token "));
  const Error dtype = error_of("dtype", [](const std::string&) {
    std::string file;
    formats::append_npy_u32(file, std::vector<uint32_t>{1});
    return file;
  });
  EXPECT_EQ(dtype.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(dtype.to_string(), HasSubstr("sample 000004: loss_mask.npy: dtype <u4"));
}

}  // namespace
}  // namespace millrace::loader
