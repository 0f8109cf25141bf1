// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace millrace::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// As llm.c's scripts write one: 256 int32, then the ids.
template <class Id>
std::string token_file(int32_t magic, int32_t version, const std::vector<Id>& ids) {
  std::vector<int32_t> head(256);
  head[0] = magic;
  head[1] = version;
  head[2] = static_cast<int32_t>(ids.size());
  std::string file(head.size() * 4 + ids.size() * sizeof(Id), '\0');
  std::memcpy(file.data(), head.data(), 1024);
  if (!ids.empty()) std::memcpy(file.data() + 1024, ids.data(), ids.size() * sizeof(Id));
  return file;
}

Result<ShardIndex> token_index(const std::string& file, std::optional<uint32_t> start = std::nullopt) {
  return index_token_file(MemoryReader(as_bytes(file), "x.bin"), start);
}

TEST(IndexTokenFile, DocumentsBeginAtTheIdThatScriptsPutThere) {
  const std::string gpt2 = token_file<uint16_t>(20240520, 1, {7, 8, 50256, 1, 2, 3, 50256, 50256, 65535});
  const auto index = token_index(gpt2);
  ASSERT_TRUE(index) << index.error().to_string();
  EXPECT_EQ(index->ids_field, "u16");
  EXPECT_THAT(index->tokens, ElementsAre(2u, 4u, 1u, 2u));
  EXPECT_THAT(index->offset, ElementsAre(1024u, 1028u, 1036u, 1038u));
  EXPECT_TRUE(check_shard(MemoryReader(as_bytes(gpt2), "x.bin"), *index));
  const std::string llama = token_file<uint32_t>(20240801, 7, {128000, 5, 100000, 128000, 6});
  const auto wide = token_index(llama);
  ASSERT_TRUE(wide) << wide.error().to_string();
  EXPECT_EQ(wide->ids_field, "u32");
  EXPECT_THAT(wide->tokens, ElementsAre(3u, 2u));
  EXPECT_TRUE(check_shard(MemoryReader(as_bytes(llama), "x.bin"), *wide));
  EXPECT_THAT(token_index(llama, 5)->tokens, ElementsAre(1u, 4u));
}

TEST(IndexTokenFile, AnIdAtTheBorderOfTwoPiecesIsFound) {
  std::vector<uint16_t> ids((1 << 20) + 5, 3);
  ids[0] = ids[(1 << 20) - 1] = ids[1 << 20] = 50256;
  EXPECT_THAT(token_index(token_file(20240520, 1, ids))->tokens, ElementsAre((1u << 20) - 1, 1u, 5u));
}

TEST(IndexTokenFile, AnotherFileIsAnError) {
  const std::vector<uint16_t> ids{50256, 1, 2};
  const std::string good = token_file(20240520, 1, ids);
  EXPECT_TRUE(*is_token_file(MemoryReader(as_bytes(good), "x.bin")));
  EXPECT_FALSE(*is_token_file(MemoryReader(as_bytes(good.substr(0, 1000)), "x.bin")));
  EXPECT_FALSE(*is_token_file(MemoryReader(as_bytes(std::string(2000, 'x')), "x.bin")));
  EXPECT_FALSE(token_index(std::string(2000, 'x')));
  EXPECT_THAT(token_index(token_file(20240520, 2, ids)).error().to_string(), HasSubstr("version 2"));
  EXPECT_THAT(token_index(token_file(20240801, 7, ids)).error().to_string(), HasSubstr("counts 3 ids of 4 bytes"));
  EXPECT_THAT(token_index(good.substr(0, good.size() - 1)).error().to_string(), HasSubstr("5 bytes follow: cut"));
  EXPECT_THAT(token_index(good + "x").error().to_string(), HasSubstr("7 bytes follow"));
  EXPECT_THAT(token_index(good, 9).error().to_string(), HasSubstr("--document-start"));
  EXPECT_EQ(token_index(token_file<uint16_t>(20240520, 1, {}))->samples(), 0);
}

}  // namespace
}  // namespace millrace::formats
