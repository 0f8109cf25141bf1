// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/row_spool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/formats/megatron.h"
#include "millrace/prepare/testing.h"

namespace millrace::prepare {
namespace {

using ::testing::HasSubstr;

formats::ShardIndex random_index(int64_t samples, uint64_t seed) {
  std::mt19937_64 random(seed);
  formats::ShardIndex index;
  index.kind = formats::SampleExtentKind::kIds;
  index.ids_field = "u32";
  uint64_t at = 1024;
  for (int64_t i = 0; i < samples; ++i) {
    index.offset.push_back(at);
    index.tokens.push_back(static_cast<uint32_t>(random() % 9));
    index.size.push_back(index.tokens.back() * sizeof(uint32_t));
    index.hash.push_back(random());
    at += index.size.back();
  }
  index.shard_size = static_cast<int64_t>(at);
  return index;
}

Status fill(RowSpool& spool, const formats::ShardIndex& index) {
  for (size_t i = 0; i < index.offset.size(); ++i) {
    RETURN_IF_ERROR(spool.add(index.offset[i], index.size[i], index.tokens[i], index.hash[i]));
  }
  return {};
}

TEST(RowSpool, GivesTheIndexThatIsWrittenFromMemory) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  for (const int64_t samples :
       {int64_t{0}, int64_t{1}, RowSpool::kRunSamples, RowSpool::kRunSamples + 1, 3 * RowSpool::kRunSamples + 77}) {
    const formats::ShardIndex index = random_index(samples, seed);
    RowSpool spool;
    ASSERT_TRUE(fill(spool, index));
    EXPECT_EQ(spool.samples(), samples);
    EXPECT_EQ(spool.total_tokens(), index.total_tokens());
    const std::string expected = formats::serialize_shard_index(index);
    MemorySink file;
    const auto hash = formats::write_shard_index(
        file, index, samples,
        [&](formats::IndexColumn column, const auto& visit) { return spool.visit(column, visit); });
    ASSERT_TRUE(hash) << hash.error().to_string();
    EXPECT_TRUE(as_text(file.bytes()) == expected);
    EXPECT_EQ(*hash, xxh3_128(expected));
    EXPECT_NEAR(static_cast<double>(formats::shard_index_bytes(samples)), static_cast<double>(expected.size()), 16);
  }
}

TEST(RowSpool, AMegatronIdxIsHeldAgainstItsShard) {
  const formats::ShardIndex index = random_index(2 * RowSpool::kRunSamples, 3);
  RowSpool spool;
  ASSERT_TRUE(fill(spool, index));
  const formats::VisitTokens tokens = [&](const auto& visit) { return spool.visit_tokens(visit); };
  MemorySink file;
  ASSERT_TRUE(formats::write_megatron_index(file, spool.samples(), 4, tokens));
  std::string bytes(as_text(file.bytes()));
  ASSERT_EQ(std::ssize(bytes), formats::megatron_index_bytes(spool.samples()));
  const auto check = [&](const std::string& idx) {
    return formats::check_megatron_index(MemoryReader(as_bytes(idx), "a.idx"), spool.samples(), 4, tokens);
  };
  EXPECT_TRUE(check(bytes));
  EXPECT_THAT(check(bytes.substr(0, bytes.size() - 1)).error().to_string(), HasSubstr("a.idx"));
  EXPECT_FALSE(check(bytes + "x"));
  EXPECT_FALSE(check(""));
  for (const size_t at : {size_t{0}, size_t{17}, size_t{18}, size_t{40}, bytes.size() / 2, bytes.size() - 1}) {
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    EXPECT_THAT(check(bytes).error().to_string(), HasSubstr(fmt::format("byte {} ", at)));
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  }
}

TEST(RowSpool, AFolderThatCannotBeWrittenNamesTmpdir) {
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TMPDIR", "/nonexistent/folder", 1);
  RowSpool spool;
  const Status status = fill(spool, random_index(RowSpool::kRunSamples + 1, 1));
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().to_string(), HasSubstr("TMPDIR"));
}

}  // namespace
}  // namespace millrace::prepare
