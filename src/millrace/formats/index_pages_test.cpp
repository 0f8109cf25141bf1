// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/index_pages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::HasSubstr;

// Counts reads and their bytes.
class TallyReader final : public RandomReader {
 public:
  explicit TallyReader(std::string_view content) : memory_(as_bytes(content), "counted") {}
  std::string_view name() const override { return memory_.name(); }
  int64_t size() const override { return memory_.size(); }
  std::string_view version() const override { return {}; }
  Status read_at(int64_t offset, std::span<std::byte> out) const override {
    ++reads;
    bytes += static_cast<int64_t>(out.size());
    return memory_.read_at(offset, out);
  }
  mutable int64_t reads = 0, bytes = 0;

 private:
  MemoryReader memory_;
};

// A shard of raw ids: documents of a few random bytes behind a head.
struct Raw {
  std::string shard;
  ShardIndex index;
};
Raw make_raw(int64_t samples, uint64_t seed) {
  std::mt19937_64 random(seed);
  Raw raw{"head", {}};
  raw.index.kind = SampleExtentKind::kIds;
  raw.index.ids_field = "u16";
  for (int64_t i = 0; i < samples; ++i) {
    const uint32_t tokens = random() % 5;
    std::string ids;
    for (uint32_t t = 0; t < 2 * tokens; ++t) ids += static_cast<char>(random());
    raw.index.offset.push_back(raw.shard.size());
    raw.index.size.push_back(ids.size());
    raw.index.tokens.push_back(tokens);
    raw.index.hash.push_back(xxh3_64(ids));
    raw.shard += ids;
  }
  raw.index.shard_size = static_cast<int64_t>(raw.shard.size());
  raw.index.shard_hash = samples == 0 ? xxh3_128(raw.shard) : xxh3_128(raw.shard.substr(4) + raw.shard.substr(0, 4));
  return raw;
}

TEST(IndexPages, ReadWhatAWholeReadingReads) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  for (const int64_t samples : {0, 1, 1023, 1024, 1025, 5000}) {
    const Raw raw = make_raw(samples, seed);
    const std::string file = serialize_shard_index(raw.index);
    const TallyReader reader(file);
    const auto pages = IndexPages::open(reader);
    ASSERT_TRUE(pages) << pages.error().to_string();
    EXPECT_EQ(reader.bytes, static_cast<int64_t>(file.size()));
    EXPECT_EQ(pages->samples(), samples);
    EXPECT_EQ(pages->total_tokens(), raw.index.total_tokens());
    EXPECT_TRUE(pages->tokens_known());
    EXPECT_EQ(pages->file_hash(), xxh3_128(file));
    EXPECT_EQ(pages->facts().shard_hash, raw.index.shard_hash);
    ShardRows all;
    const Status visited = pages->visit_rows(reader, [&](int64_t first, const ShardRows& rows) -> Status {
      EXPECT_EQ(first, all.samples());
      all.offset.insert(all.offset.end(), rows.offset.begin(), rows.offset.end());
      all.size.insert(all.size.end(), rows.size.begin(), rows.size.end());
      all.hash.insert(all.hash.end(), rows.hash.begin(), rows.hash.end());
      all.tokens.insert(all.tokens.end(), rows.tokens.begin(), rows.tokens.end());
      return {};
    });
    ASSERT_TRUE(visited) << visited.error().to_string();
    EXPECT_EQ(all.offset, raw.index.offset);
    EXPECT_EQ(all.size, raw.index.size);
    EXPECT_EQ(all.hash, raw.index.hash);
    EXPECT_EQ(all.tokens, raw.index.tokens);
    std::vector<uint32_t> tokens;
    ASSERT_TRUE(pages->visit_tokens(reader, [&](std::span<const uint32_t> run) -> Status {
      tokens.insert(tokens.end(), run.begin(), run.end());
      return {};
    }));
    EXPECT_EQ(tokens, raw.index.tokens);
    EXPECT_TRUE(check_shard(MemoryReader(as_bytes(raw.shard)), *pages, reader));
    const auto whole = IndexPages::open(as_bytes(file), "a.index");
    ASSERT_TRUE(whole) << whole.error().to_string();
    EXPECT_EQ(whole->file_hash(), pages->file_hash());
    for (int64_t page = 0; page < whole->pages(); ++page) {
      const ShardRows rows = whole->take_page(page, as_bytes(file));
      const auto first = page * IndexPages::kPageSamples, end = first + rows.samples();
      const auto is_same = [&](const auto& part, const auto& of) {
        return std::equal(part.begin(), part.end(), of.begin() + first, of.begin() + end);
      };
      EXPECT_TRUE(is_same(rows.offset, all.offset) && is_same(rows.size, all.size));
      EXPECT_TRUE(is_same(rows.tokens, all.tokens) && is_same(rows.hash, all.hash));
    }
  }
}

TEST(IndexPages, NoCutAndNoFlippedByteIsOpened) {
  const std::string file = serialize_shard_index(make_raw(40, 1).index);
  for (size_t size = 0; size < file.size(); ++size) {
    const std::string cut = file.substr(0, size);
    EXPECT_FALSE(IndexPages::open(MemoryReader(as_bytes(cut)))) << size;
    EXPECT_FALSE(IndexPages::open(as_bytes(cut), "cut")) << size;
  }
  for (const size_t i : places_to_damage(file.size())) {
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    EXPECT_FALSE(IndexPages::open(MemoryReader(as_bytes(damaged)))) << i;
  }
}

TEST(IndexPages, APageThatChangedBehindTheOpeningIsRefused) {
  const std::string file = serialize_shard_index(make_raw(3000, 2).index);
  const auto pages = IndexPages::open(MemoryReader(as_bytes(file)));
  ASSERT_TRUE(pages);
  const auto visit = [&](const std::string& bytes) {
    const MemoryReader reader(as_bytes(bytes), "a.index");
    const Status rows = pages->visit_rows(reader, [](int64_t, const ShardRows&) -> Status { return {}; });
    const Status tokens = pages->visit_tokens(reader, [](std::span<const uint32_t>) -> Status { return {}; });
    return std::pair(rows.has_value(), tokens.has_value());
  };
  EXPECT_EQ(visit(file), std::pair(true, true));
  for (const IndexPages::Range& range : pages->ranges(2)) {
    std::string changed = file;
    changed[static_cast<size_t>(range.offset)] = static_cast<char>(changed[static_cast<size_t>(range.offset)] ^ 1);
    EXPECT_EQ(visit(changed), std::pair(false, range.offset != pages->ranges(2)[3].offset));
  }
}

TEST(IndexPages, SamplesThatOverlapAcrossPagesAreNotFollowed) {
  Raw raw = make_raw(1030, 3);
  raw.index.offset[1024] = 4;  // where the first page begins
  const std::string file = serialize_shard_index(raw.index);
  const MemoryReader reader(as_bytes(file), "a.index");
  const auto pages = IndexPages::open(reader);
  ASSERT_TRUE(pages);
  const Status checked = check_shard(MemoryReader(as_bytes(raw.shard)), *pages, reader);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().to_string(), HasSubstr("sample 1024 "));
}

TEST(ShardCheck, ReadsAShardInBlocks) {
  const Raw raw = make_raw(300'000, 4);
  const TallyReader shard(raw.shard);
  ASSERT_TRUE(check_shard(shard, raw.index));
  EXPECT_EQ(shard.bytes, static_cast<int64_t>(raw.shard.size()));
  EXPECT_LT(shard.reads, 10) << raw.shard.size() << " bytes";
}

TEST(ShardCheck, FindsEveryFlippedByteAtTheEdgesOfBlocks) {
  Raw raw = make_raw(300'000, 5);  // more than one block of 1 MiB
  ASSERT_GT(raw.shard.size(), size_t{1} << 20);
  for (const size_t i : {size_t{0}, size_t{3}, size_t{4}, size_t{1} << 20, (size_t{1} << 20) + 3, (size_t{1} << 20) + 4,
                         raw.shard.size() - 1}) {
    raw.shard[i] = static_cast<char>(raw.shard[i] ^ 1);
    EXPECT_EQ(check_shard(MemoryReader(as_bytes(raw.shard)), raw.index).error().code(), ErrorCode::kCorruption) << i;
    raw.shard[i] = static_cast<char>(raw.shard[i] ^ 1);
  }
  EXPECT_TRUE(check_shard(MemoryReader(as_bytes(raw.shard)), raw.index));
}

}  // namespace
}  // namespace millrace::formats
