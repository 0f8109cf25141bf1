// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/megatron.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/formats/detail/raw_bytes.h"

namespace millrace::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The ids 1, 2, 3 of one document, none of the next, 4 and 5 of the last.
struct Foreign {
  std::string bin, idx;

  explicit Foreign(uint8_t type = 8) {
    for (const uint16_t id : {1, 2, 3, 4, 5}) put(bin, id);
    idx = std::string("MMIDIDX\0\0", 9);
    put(idx, uint64_t{1});
    put(idx, type);
    put(idx, uint64_t{3});
    put(idx, uint64_t{4});
    for (const int32_t size : {3, 0, 2}) put(idx, size);
    for (const int64_t at : {0, 6, 6}) put(idx, at);
    for (const int64_t bound : {0, 1, 2, 3}) put(idx, bound);
  }

  Result<ShardIndex> index() const {
    return index_megatron(MemoryReader(as_bytes(bin), "a.bin"), MemoryReader(as_bytes(idx), "a.idx"));
  }
  Error error() const { return index().error(); }
};

TEST(IndexMegatron, ASampleIsADocument) {
  const Foreign files;
  const auto index = files.index();
  ASSERT_TRUE(index) << index.error().to_string();
  EXPECT_EQ(index->kind, SampleExtentKind::kIds);
  EXPECT_EQ(index->ids_field, "u16");
  EXPECT_THAT(index->tokens, ElementsAre(3, 0, 2));
  EXPECT_THAT(index->offset, ElementsAre(0, 6, 6));
  EXPECT_THAT(index->size, ElementsAre(6, 0, 4));
  const std::string stored = serialize_shard_index(*index);
  const auto parsed = parse_shard_index(as_bytes(stored), "a.bin.index");
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  EXPECT_TRUE(check_shard(MemoryReader(as_bytes(files.bin), "a.bin"), *parsed));
  Foreign damaged;
  damaged.bin[2] ^= 1;
  EXPECT_FALSE(check_shard(MemoryReader(as_bytes(damaged.bin), "a.bin"), *parsed));
}

TEST(IndexMegatron, WhatDoesNotFitIsNamed) {
  Foreign files;
  files.bin.pop_back();
  EXPECT_THAT(files.error().message(), HasSubstr("a.bin: 9 bytes, and a.idx counts 10"));
  files = Foreign();
  files.idx.pop_back();
  EXPECT_EQ(files.error().code(), ErrorCode::kCorruption);
  files = Foreign();
  files.idx[50] ^= 1;  // where a document begins
  EXPECT_EQ(files.error().code(), ErrorCode::kCorruption);
  files = Foreign();
  files.idx = "no idx";
  EXPECT_THAT(files.error().message(), HasSubstr("6 bytes are no Megatron idx"));
}

TEST(IndexMegatron, OtherKindsAreRefusedByName) {
  EXPECT_THAT(Foreign(6).error().message(), HasSubstr("Megatron's type 6"));
  Foreign files;
  files.idx.resize(files.idx.size() + 3);  // a mode for each sequence
  EXPECT_THAT(files.error().message(), HasSubstr("multimodal"));
  files = Foreign();
  files.idx[26] = 3;  // bounds of documents
  EXPECT_THAT(files.error().message(), HasSubstr("3 sequences in 2 documents"));
  EXPECT_EQ(files.error().code(), ErrorCode::kUnsupported);
  files = Foreign();
  files.idx[9] = 2;
  EXPECT_THAT(files.error().message(), HasSubstr("version 2"));
}

// Every damaged byte of an idx is an error, or leaves the documents as they are.
TEST(IndexMegatron, ADamagedByteGivesNoOtherDocuments) {
  const Foreign good;
  const auto documents = good.index()->tokens;
  for (size_t at = 0; at < good.idx.size(); ++at) {
    Foreign files;
    files.idx[at] = static_cast<char>(files.idx[at] ^ 0x41);
    const auto index = files.index();
    EXPECT_TRUE(!index || index->tokens == documents) << at;
  }
}

}  // namespace
}  // namespace millrace::formats
