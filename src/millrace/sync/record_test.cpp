// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/record.h"

#include <gmock/gmock.h>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/memory.h"

namespace millrace::sync {
namespace {

class RecordTest : public testing::Test {
 protected:
  static std::vector<RecordEntry> entries(int count) {
    std::vector<RecordEntry> entries;
    for (int i = 0; i < count; ++i) {
      entries.push_back({.path = fmt::format("folder/{:06}", i),
                         .size = i,
                         .source = {"source-" + std::to_string(i), i},
                         .target = {"target", 0},
                         .hash = i % 2 == 0 ? std::optional(xxh3_128(std::to_string(i))) : std::nullopt});
    }
    return entries;
  }
  void write(const std::vector<RecordEntry>& all) {
    auto writer = RecordWriter::create();
    ASSERT_TRUE(writer);
    for (const RecordEntry& entry : all) ASSERT_TRUE((*writer)->add(entry));
    ASSERT_TRUE((*writer)->commit(*storage_, "record"));
  }
  // What can be read, and the error that ends it.
  std::pair<std::vector<RecordEntry>, Status> read() {
    std::vector<RecordEntry> all;
    auto reader = RecordReader::open(*storage_, "record");
    if (!reader) return {all, tl::unexpected(reader.error())};
    for (;;) {
      auto next = (*reader)->next();
      if (!next) return {all, tl::unexpected(next.error())};
      if (!*next) return {all, {}};
      all.push_back(std::move(**next));
    }
  }
  const std::shared_ptr<Storage> storage_ = make_memory_storage("test");
};

TEST_F(RecordTest, ComesBack) {
  for (const int count : {0, 1, 2, 40'000}) {
    write(entries(count));
    const auto [all, status] = read();
    EXPECT_TRUE(status);
    EXPECT_EQ(all, entries(count));
  }
}

TEST_F(RecordTest, AnyDamageIsFoundAndWhatCameBeforeIsRight) {
  SCOPED_TRACE(test_seed());
  const auto right = entries(3000);
  write(right);
  const std::string good = *read_object(*storage_, "record");
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 300; ++round) {
    std::string bad = good;
    const size_t at = random() % bad.size();
    if (round % 3 == 0) {
      bad.resize(at);
    } else if (round % 3 == 1) {
      bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    } else {
      bad.insert(at, 1, 'x');
    }
    ASSERT_TRUE(write_object(*storage_, "record", bad));
    const auto [all, status] = read();
    // The count of a block is only looked at in sum, at the end.
    EXPECT_FALSE(status) << at;
    EXPECT_EQ(status.error().code(), ErrorCode::kCorruption);
    ASSERT_LE(all.size(), right.size());
    EXPECT_TRUE(std::equal(all.begin(), all.end(), right.begin())) << at;
  }
}

// Made from docs/format/sync_record.md by another program. Every release reads it; version 1 never changes.
constexpr std::string_view kVersion1 =
    "4d5253594e43010a6000000002000000e18c4d247f0e58c90300612f62050000000000000004006574616700000000000000"
    "000700312d322d352d3715cd853dfe9c9717017f3e1b07adc1e9b51838525eaacf79c7030063c3a900000000000000000000"
    "0000000000000000010078ffffffffffffffff0032000000010000008d4d53f5001c7b660100640000000000010000010076"
    "0900000000000000010077080000000000000003d8984701d306aa997f498d4624c301600000000000000000030000000000"
    "0000";

TEST_F(RecordTest, Version1IsReadForEver) {
  std::string bytes;
  for (size_t i = 0; i < kVersion1.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(kVersion1.substr(i, 2)), nullptr, 16));
  }
  ASSERT_TRUE(write_object(*storage_, "record", bytes));
  const std::vector<RecordEntry> expected = {{.path = "a/b",
                                              .size = 5,
                                              .source = {"etag", 0},
                                              .target = {"1-2-5-7", 1'700'000'000'123'456'789},
                                              .hash = xxh3_128("hello")},
                                             {.path = "c\u00e9", .size = 0, .source = {"", 0}, .target = {"x", -1}},
                                             {.path = "d",
                                              .size = int64_t{1} << 40,
                                              .source = {"v", 9},
                                              .target = {"w", 8},
                                              .hash = xxh3_128(""),
                                              .attributes = true}};
  const auto [all, status] = read();
  EXPECT_TRUE(status) << status.error().to_string();
  EXPECT_EQ(all, expected);
  bytes[6] = 2;  // of a newer release: as good as none
  ASSERT_TRUE(write_object(*storage_, "record", bytes));
  EXPECT_FALSE(read().second);
}

TEST_F(RecordTest, AVersionWithoutAProofIsNone) {
  ObjectInfo info{.key = "a", .version = "1"};
  const RecordedVersion recorded = recorded_version(info);
  EXPECT_TRUE(is_version(recorded, info));
  info.changed += std::chrono::nanoseconds(1);
  EXPECT_FALSE(is_version(recorded, info));
  const ObjectInfo without{.key = "a"};
  EXPECT_FALSE(is_version(recorded_version(without), without));
}

}  // namespace
}  // namespace millrace::sync
