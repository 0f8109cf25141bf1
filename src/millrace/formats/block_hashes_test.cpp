// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/block_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/io/io.h"
#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::HasSubstr;

BlockHashes example_hashes() {
  return {.object_size = 20,
          .object_version = "\"etag-2\"",
          .object_hash = xxh3_128("0123456789abcdefghij"),
          .block_bytes = 8,
          .blocks = {xxh3_128("01234567"), xxh3_128("89abcdef"), xxh3_128("ghij")}};
}

std::string resealed_hashes(std::string file) {
  file.resize(file.size() - 16);
  std::string checksum;
  const Hash128 hash = xxh3_128(file);
  for (const uint64_t half : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) checksum += static_cast<char>(half >> shift & 255);
  }
  return file + checksum;
}

ErrorCode code_of(const std::string& file) {
  const auto parsed = parse_block_hashes(as_bytes(file), "x.blocks");
  return parsed ? ErrorCode::kInternal : parsed.error().code();
}

TEST(BlockHashes, ComeBackAsTheyWere) {
  for (const int64_t size : {0, 1, 8, 9, 20}) {
    BlockHashes hashes = example_hashes();
    hashes.object_size = size;
    hashes.blocks.resize(static_cast<size_t>((size + 7) / 8));
    hashes.object_version.resize(static_cast<size_t>(size));
    const auto parsed = parse_block_hashes(as_bytes(serialize_block_hashes(hashes)), "x.blocks");
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    EXPECT_EQ(parsed->object_size, size);
    EXPECT_EQ(parsed->object_version, hashes.object_version);
    EXPECT_EQ(parsed->object_hash, hashes.object_hash);
    EXPECT_EQ(parsed->block_bytes, 8);
    EXPECT_EQ(parsed->blocks, hashes.blocks);
  }
}

TEST(BlockHashes, LieAsThePageOfTheFormatShows) {
  const std::string file = serialize_block_hashes(example_hashes());
  ASSERT_EQ(file.size(), 120u);
  std::string checksum;
  for (const char byte : file.substr(104)) checksum += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  EXPECT_EQ(checksum, "86379b2a5163f7bbdbedb322d91d49c2");
}

TEST(BlockHashes, AnyChangedByteIsFound) {
  const std::string file = serialize_block_hashes(example_hashes());
  for (const size_t at : places_to_damage(file.size())) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_NE(code_of(damaged), ErrorCode::kInternal) << at;
    EXPECT_EQ(code_of(file.substr(0, at)), ErrorCode::kCorruption) << at;
  }
  EXPECT_EQ(code_of(file + "x"), ErrorCode::kCorruption);
}

TEST(BlockHashes, CountsThatDoNotFitAreCorruption) {
  const std::string file = serialize_block_hashes(example_hashes());
  for (const size_t at : {12u, 16u, 17u, 23u, 24u, 31u}) {
    for (const char value : {'\x00', '\x7f', '\xff'}) {
      std::string wrong = file;
      if (std::exchange(wrong[at], value) == value) continue;
      if (at == 16 && value == 0) continue;  // fewer blocks: below
      EXPECT_EQ(code_of(resealed_hashes(wrong)), ErrorCode::kCorruption) << at << " " << int{value};
    }
  }
  std::string newer = file;
  newer[8] = 2;
  const auto parsed = parse_block_hashes(as_bytes(newer), "x.blocks");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(parsed.error().to_string(), HasSubstr("x.blocks"));
}

}  // namespace
}  // namespace millrace::formats
