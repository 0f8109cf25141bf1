// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/shard_index.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "millrace/base/testing.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/sound_part.h"
#include "millrace/formats/tar.h"

namespace millrace::formats {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void add(std::string& archive, const std::string& name, std::string_view data) {
  ASSERT_TRUE(append_tar_member(archive, name, as_bytes(data)));
}

std::string npy(const std::vector<uint32_t>& ids) {
  std::string out;
  append_npy_u32(out, ids);
  return out;
}

// Samples of ids alone, as docs/format/shard_index.md has two of them.
std::string shard_of(const std::vector<std::vector<uint32_t>>& samples) {
  std::string archive;
  for (size_t i = 0; i < samples.size(); ++i)
    add(archive, "00000" + std::to_string(i) + ".token_ids.npy", npy(samples[i]));
  append_tar_end(archive);
  return archive;
}

Result<ShardIndex> index_of(const std::string& archive, std::string_view field = {}) {
  MemoryReader reader(as_bytes(archive), "a.tar");
  return index_shard(reader, field);
}
Status check(const std::string& archive, const ShardIndex& index) {
  MemoryReader reader(as_bytes(archive), "a.tar");
  return check_shard(reader, index);
}
Result<ShardIndex> parse_index(std::string_view file) {
  return parse_shard_index(as_bytes(file), "a.tar.index");
}

ShardIndex example_index() {
  ShardIndex index = *index_of(shard_of({{1, 2, 3}, {4, 5}}));
  index.tokenizer_hash = xxh3_128("tokenizer.json");
  index.producer = R"({"task":0})";
  return index;
}

void expect_equal(const ShardIndex& a, const ShardIndex& b) {
  EXPECT_EQ(a.shard_size, b.shard_size);
  EXPECT_EQ(a.shard_hash, b.shard_hash);
  EXPECT_EQ(a.tokenizer_hash, b.tokenizer_hash);
  EXPECT_EQ(a.ids_field, b.ids_field);
  EXPECT_EQ(a.producer, b.producer);
  EXPECT_EQ(a.offset, b.offset);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.hash, b.hash);
}

// The file with its checksum made right again, so that only what was changed can be what is wrong.
std::string resealed_index(std::string file) {
  const Hash128 hash = xxh3_128(std::string_view(file).substr(0, file.size() - 16));
  const std::string hex = to_hex(hash);
  for (size_t i = 0; i < 16; ++i)
    file[file.size() - 16 + i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return file;
}

template <class T>
std::string with(std::string file, size_t at, T value) {
  std::memcpy(file.data() + at, &value, sizeof(value));
  return resealed_index(std::move(file));
}

TEST(ShardIndex, WhatIsWrittenIsRead) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    ShardIndex index;
    index.shard_hash = {random(), random()};
    index.tokenizer_hash = {random(), random()};
    index.ids_field = std::string(random() % 20, 'f');
    index.producer = std::string(random() % 100, 'p');
    for (size_t i = random() % 10; i > 0; --i) {
      index.offset.push_back(static_cast<uint64_t>(index.shard_size) + 512 * (random() % 3));
      index.size.push_back(512 * (1 + random() % 9));
      index.tokens.push_back(static_cast<uint32_t>(random()));
      index.hash.push_back(random());
      index.shard_size = static_cast<int64_t>(index.offset.back() + index.size.back());
    }
    const auto read = parse_index(serialize_shard_index(index));
    ASSERT_TRUE(read) << read.error().to_string();
    expect_equal(*read, index);
  }
}

TEST(ShardIndex, NoCutAndNoFlippedByteIsReadAsAnIndex) {
  const std::string file = serialize_shard_index(example_index());
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_EQ(parse_index(file.substr(0, size)).error().code(), ErrorCode::kCorruption);
  EXPECT_EQ(parse_index(file + '\0').error().code(), ErrorCode::kCorruption);
  for (const size_t i : places_to_damage(file.size())) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const auto read = parse_index(damaged);
      ASSERT_FALSE(read) << "byte " << i << " flipped with " << flip;
      const bool version = i >= 8 && i < 12;
      EXPECT_EQ(read.error().code(), version ? ErrorCode::kUnsupported : ErrorCode::kCorruption);
      EXPECT_THAT(read.error().to_string(), HasSubstr("a.tar.index"));
    }
  }
}

TEST(ShardIndex, ADefectiveWriterIsNotFollowed) {
  const std::string file = serialize_shard_index(example_index());  // header of 104 bytes, two samples
  expect_equal(*parse_index(resealed_index(file)), example_index());
  const auto refused = [](const std::string& changed) {
    const auto read = parse_index(changed);
    return read ? "read" : std::string(error_code_name(read.error().code())) + " " + read.error().to_string();
  };
  EXPECT_THAT(refused(with<uint32_t>(file, 8, 2)), AllOf(HasSubstr("unsupported"), HasSubstr("version 2")));
  for (const uint32_t header : {0U, 96U, 105U, 112U, 0xFFFFFFF8U})
    EXPECT_THAT(refused(with(file, 12, header)), HasSubstr("do not fit"));
  for (const uint64_t samples : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{1} << 62, UINT64_MAX}) {
    EXPECT_THAT(refused(with(file, 24, samples)), HasSubstr("do not fit"));
  }
  EXPECT_THAT(refused(with<uint64_t>(file, 16, UINT64_MAX)), HasSubstr("do not fit"));
  EXPECT_THAT(refused(with<uint32_t>(file, 72, 2)), HasSubstr("do not fit"));  // no such kind of extent
  EXPECT_THAT(refused(with<uint32_t>(file, 72, 1)), HasSubstr("u16 or u32"));
  for (const uint32_t bytes : {0U, 1000U, 0xFFFFFFFFU}) {
    EXPECT_THAT(refused(with(file, 64, bytes)), HasSubstr("do not fit"));
    EXPECT_THAT(refused(with(file, 68, bytes)), HasSubstr("do not fit"));
  }
  constexpr size_t kOffsets = 104, kSizes = 120;
  EXPECT_THAT(refused(with<uint64_t>(file, kOffsets + 8, 512)), HasSubstr("sample 1 "));                // overlaps
  EXPECT_THAT(refused(with<uint64_t>(file, kOffsets + 8, 1025)), HasSubstr("sample 1 "));               // no block
  EXPECT_THAT(refused(with<uint64_t>(file, kOffsets + 8, uint64_t{1} << 40)), HasSubstr("sample 1 "));  // outside
  EXPECT_THAT(refused(with<uint64_t>(file, kSizes, 0)), HasSubstr("sample 0 "));
  EXPECT_THAT(refused(with<uint64_t>(file, kSizes + 8, UINT64_MAX - 511)), HasSubstr("sample 1 "));
}

// Two samples of 16-bit ids behind a head: "head", 1 2 3, 4 5.
ShardIndex ids_example(std::string_view file) {
  ShardIndex index;
  index.kind = SampleExtentKind::kIds;
  index.ids_field = "u16";
  index.shard_size = static_cast<int64_t>(file.size());
  index.offset = {4, 10};
  index.size = {6, 4};
  index.tokens = {3, 2};
  index.hash = {xxh3_64(file.substr(4, 6)), xxh3_64(file.substr(10, 4))};
  index.shard_hash = xxh3_128(std::string(file.substr(4)) + std::string(file.substr(0, 4)));
  return index;
}

TEST(ShardIndex, OfSamplesThatAreIdsAndNothingElse) {
  const std::string file("head\1\0\2\0\3\0\4\0\5\0end", 17);
  const ShardIndex index = ids_example(file);
  const std::string stored = serialize_shard_index(index);
  expect_equal(*parse_index(stored), index);
  EXPECT_EQ(parse_index(stored)->kind, SampleExtentKind::kIds);
  EXPECT_TRUE(check_shard(MemoryReader(as_bytes(file)), index));
  for (const size_t i : places_to_damage(file.size())) {
    std::string damaged = file;
    damaged[i] ^= 1;
    EXPECT_EQ(check_shard(MemoryReader(as_bytes(damaged)), index).error().code(), ErrorCode::kCorruption) << i;
  }
  ShardIndex wrong = index;
  wrong.ids_field = "u32";  // the sizes say otherwise
  EXPECT_EQ(parse_index(serialize_shard_index(wrong)).error().code(), ErrorCode::kCorruption);
  wrong.ids_field = "token_ids.npy";
  EXPECT_EQ(parse_index(serialize_shard_index(wrong)).error().code(), ErrorCode::kCorruption);
}

TEST(ShardIndex, TokensAreKnownOrNot) {
  ShardIndex index = example_index();
  EXPECT_TRUE(index.tokens_known());
  EXPECT_EQ(index.total_tokens(), 5);
  index.tokens[1] = kUnknownTokens;
  EXPECT_FALSE(index.tokens_known());
  EXPECT_EQ(index.total_tokens(), 0);
  EXPECT_FALSE(ShardIndex().tokens_known());
}

// The dump in the format's page, as bytes.
std::string documented_example() {
  for (auto folder = std::filesystem::current_path(); folder.has_relative_path(); folder = folder.parent_path()) {
    std::ifstream page(folder / "docs/format/shard_index.md");
    if (!page) continue;
    std::string bytes;
    for (std::string line; std::getline(page, line);) {
      if (line.size() < 60 || line.substr(8, 2) != "  " || !std::isxdigit(static_cast<unsigned char>(line[0])))
        continue;
      std::istringstream dump(line.substr(10, 48));
      for (std::string byte; dump >> byte;) bytes += static_cast<char>(std::stoi(byte, nullptr, 16));
    }
    return bytes;
  }
  return {};
}

TEST(ShardIndex, TheFormatsPageShowsTheseBytes) {
  const std::string documented = documented_example();
  if (documented.empty()) GTEST_SKIP() << "docs/format/shard_index.md is not above the working directory";
  EXPECT_EQ(documented, serialize_shard_index(example_index()));
}

TEST(IndexShard, FindsAndCountsIds) {
  std::string archive;
  add(archive, "d/a.text.txt", "one");
  add(archive, "d/a.token_ids.json", "[1, 2, 3]");
  add(archive, "README", "no sample");
  add(archive, "d/b.token_ids.json", "[]");
  add(archive, "d/b.text.txt", "two");
  append_tar_end(archive);
  const ShardIndex index = *index_of(archive);
  EXPECT_EQ(index.ids_field, "token_ids.json");
  EXPECT_THAT(index.offset, ElementsAre(0, 3072));
  EXPECT_THAT(index.size, ElementsAre(2048, 2048));
  EXPECT_THAT(index.tokens, ElementsAre(3, 0));
  EXPECT_EQ(index.shard_size, static_cast<int64_t>(archive.size()));
  EXPECT_EQ(index.shard_hash, xxh3_128(archive));
  EXPECT_EQ(index.hash.at(1), xxh3_64(std::string_view(archive).substr(3072, 2048)));
  EXPECT_TRUE(check(archive, index));
  EXPECT_EQ(index_of(archive, "token_ids.json")->tokens, index.tokens);

  EXPECT_THAT(index_of(archive, "ids.npy").error().to_string(),
              AllOf(HasSubstr("a.tar"), HasSubstr("ids.npy"), HasSubstr("text.txt")));
  EXPECT_EQ(index_of(archive, "text.txt").error().code(), ErrorCode::kInvalidArgument);
}

TEST(IndexShard, ForeignShardsHaveNoTokens) {
  std::string archive;
  add(archive, "a.jpg", "x");
  add(archive, "a.", "no ids");  // a field without a name
  append_tar_end(archive);
  const ShardIndex index = *index_of(archive);
  EXPECT_EQ(index.ids_field, "");
  EXPECT_THAT(index.tokens, ElementsAre(kUnknownTokens));
  EXPECT_FALSE(index.tokens_known());
  EXPECT_TRUE(check(archive, index));
  EXPECT_EQ(index_of(std::string(1024, '\0'))->samples(), 0);
}

TEST(IndexShard, DamageIsNamedWithItsPlace) {
  std::string archive = shard_of({{1}, {2}, {3}});
  EXPECT_EQ(index_of(archive.substr(0, 2048)).error().code(), ErrorCode::kCorruption);
  archive[1024 + 512] = 'x';  // the second sample's ids
  EXPECT_THAT(index_of(archive).error().to_string(),
              AllOf(HasSubstr("a.tar: sample 1 at offset 1024: token_ids.npy"), HasSubstr("not a .npy file")));
}

TEST(CheckShard, FindsEveryCutAndEveryFlippedByte) {
  std::string archive;
  for (const char* key : {"a", "b", "c"}) {
    add(archive, std::string(key) + "/" + std::string(110, 'n') + ".token_ids.npy", npy({1, 2, 3}));
    add(archive, std::string(key) + "/" + std::string(110, 'n') + ".txt", "text");
  }
  append_tar_end(archive);
  const ShardIndex index = *index_of(archive);
  ASSERT_TRUE(check(archive, index));
  for (size_t size = 0; size < archive.size(); ++size) {
    ASSERT_EQ(check(archive.substr(0, size), index).error().code(), ErrorCode::kCorruption) << size;
  }
  for (size_t i = 0; i < archive.size(); ++i) {
    for (const int flip : {1, 0x80, 0xFF}) {
      std::string damaged = archive;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      ASSERT_FALSE(check(damaged, index)) << "byte " << i << " flipped with " << flip;
    }
  }
}

TEST(CheckShard, NamesTheSampleAndHoldsTheIndexToWholeSamples) {
  const std::string archive = shard_of({{1}, {2}, {3}});
  const ShardIndex good = *index_of(archive);
  std::string damaged = archive;
  damaged[2048 + 700] ^= 1;
  EXPECT_THAT(check(damaged, good).error().to_string(),
              AllOf(HasSubstr("a.tar"), HasSubstr("sample 2 at offset 2048"), HasSubstr("hash")));
  damaged = archive;
  damaged[archive.size() - 1] = 1;
  EXPECT_THAT(check(damaged, good).error().to_string(), HasSubstr("outside its samples"));
  EXPECT_THAT(check(archive + std::string(512, '\0'), good).error().to_string(),
              HasSubstr("4608 bytes, and its index says 4096"));

  // An index whose hashes hold, and whose extents are not samples.
  const auto extents = [&](std::vector<uint64_t> offset, std::vector<uint64_t> size) {
    ShardIndex index = good;
    index.offset = std::move(offset);
    index.size = std::move(size);
    index.tokens.assign(index.offset.size(), 1);
    index.hash.clear();
    for (size_t i = 0; i < index.offset.size(); ++i) {
      index.hash.push_back(xxh3_64(std::string_view(archive).substr(index.offset[i], index.size[i])));
    }
    return check(archive, index).error().to_string();
  };
  EXPECT_THAT(extents({0}, {2048}), AllOf(HasSubstr("sample 0"), HasSubstr("two samples")));
  EXPECT_THAT(extents({0}, {512}), HasSubstr("cut"));
  EXPECT_THAT(extents({512}, {512}), HasSubstr("checksum"));
  EXPECT_THAT(extents({3072}, {512}), HasSubstr("zeros"));
  EXPECT_THAT(extents({0, 512}, {1024, 1024}), HasSubstr("neighbour"));

  std::string twice;
  add(twice, "a.txt", "");
  add(twice, "a.json", "{}");
  append_tar_end(twice);
  ShardIndex split = *index_of(twice);
  split.offset = {0, 512};
  split.size = {512, 1024};
  split.tokens = {0, 0};
  split.hash = {xxh3_64(std::string_view(twice).substr(0, 512)), xxh3_64(std::string_view(twice).substr(512, 1024))};
  EXPECT_THAT(check(twice, split).error().to_string(), HasSubstr("part of the sample before"));
}

// A sample counts when the first member of the next one is whole, or the archive's end is.
TEST(ShardIndex, TheSoundPartOfACutShardIsItsFirstSamples) {
  std::string archive;
  std::vector<size_t> counted;  // from so many bytes on, sample i counts
  for (int i = 0; i < 4; ++i) {
    add(archive, fmt::format("{}.token_ids.npy", i), npy({1, 2, 3}));
    if (i > 0) counted.push_back(archive.size());
    add(archive, fmt::format("{}.txt", i), std::string(static_cast<size_t>(300 * i), 'x'));
  }
  append_tar_end(archive);
  const ShardIndex whole = *index_of(archive);
  for (const size_t cut : places_to_damage(archive.size())) {
    for (const bool counts_ids : {false, true}) {
      const std::string head = archive.substr(0, cut);
      const MemoryReader reader(as_bytes(head), "a.tar");
      const auto part = index_sound_part(reader, counts_ids);
      ASSERT_TRUE(part) << part.error().to_string();
      ASSERT_TRUE(part->damage) << cut;
      EXPECT_EQ(part->damage->code(), ErrorCode::kCorruption);
      const auto left = std::ranges::count_if(counted, [&](size_t size) { return size <= cut; });
      ASSERT_EQ(part->index.samples(), left) << cut;
      EXPECT_EQ(part->index.offset, std::vector(whole.offset.begin(), whole.offset.begin() + left));
      EXPECT_EQ(part->index.hash, std::vector(whole.hash.begin(), whole.hash.begin() + left));
      EXPECT_EQ(part->index.shard_hash, xxh3_128(head));
      if (!counts_ids) continue;
      EXPECT_EQ(part->index.tokens, std::vector(whole.tokens.begin(), whole.tokens.begin() + left));
    }
  }
  const MemoryReader reader(as_bytes(archive), "a.tar");
  const auto all = index_sound_part(reader, true);
  ASSERT_TRUE(all);
  EXPECT_FALSE(all->damage);
  expect_equal(all->index, whole);
}

TEST(ShardIndex, ASoundPartEndsBeforeIdsThatAreDamaged) {
  std::string archive = shard_of({{1, 2}, {3}, {4, 5, 6}});
  const size_t at = (*index_of(archive)).offset[1] + 512;
  archive[at] = 'X';  // the magic of its .npy
  const auto part = index_sound_part(MemoryReader(as_bytes(archive), "a.tar"), true);
  ASSERT_TRUE(part) << part.error().to_string();
  EXPECT_THAT(part->damage.value().to_string(), HasSubstr("sample 1"));
  EXPECT_EQ(part->index.samples(), 1);
  EXPECT_FALSE(index_sound_part(MemoryReader(as_bytes(archive), "a.tar"), true, "text.txt")) << "no damage";
}

}  // namespace
}  // namespace millrace::formats
