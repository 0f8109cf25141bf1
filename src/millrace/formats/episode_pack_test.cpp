// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/episode_pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CsvTexts texts_of(const std::vector<std::string>& cells) {
  CsvTexts texts;
  for (const std::string& cell : cells) {
    texts.bytes += cell;
    texts.ends.push_back(texts.bytes.size());
  }
  return texts;
}

std::span<const std::byte> bytes_of(const std::vector<float>& numbers) {
  return std::as_bytes(std::span(numbers));
}

// Three episodes of 2, 0 and 1 rows.
std::vector<std::byte> small_pack() {
  MemorySink sink;
  EpisodePackWriter writer(sink, {.numbers = {"x", "y"}, .texts = {"task"}}, {1, 2});
  EXPECT_TRUE(writer.add("a", 2, bytes_of({1, 2, 3, 4}), std::vector{texts_of({"go", "stop"})}));
  EXPECT_TRUE(writer.add("b", 0, {}, std::vector{texts_of({})}));
  EXPECT_TRUE(writer.add("c/d", 1, bytes_of({5, 6}), std::vector{texts_of({"go"})}));
  EXPECT_TRUE(writer.finish());
  EXPECT_EQ(writer.bytes(), static_cast<int64_t>(sink.bytes().size()));
  return sink.take();
}

TEST(EpisodePack, GivesBackWhatWasWritten) {
  const auto file = small_pack();
  const auto pack = EpisodePack::parse(file, "p");
  ASSERT_TRUE(pack) << pack.error().to_string();
  EXPECT_THAT((*pack)->columns().numbers, ElementsAre("x", "y"));
  EXPECT_THAT((*pack)->names(), ElementsAre("a", "b", "c/d"));
  EXPECT_THAT((*pack)->first_rows(), ElementsAre(0, 2, 2, 3));
  EXPECT_EQ((*pack)->identity(), (Hash128{1, 2}));
  std::vector<float> numbers(6);
  ASSERT_EQ((*pack)->numbers().size(), 24);
  std::memcpy(numbers.data(), (*pack)->numbers().data(), 24);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_TRUE((*pack)->check_rows(0, 3));
  const auto texts = (*pack)->texts(0, 1, 3);
  ASSERT_TRUE(texts);
  EXPECT_EQ((*texts)[0], "stop");
  EXPECT_EQ((*texts)[1], "go");
}

TEST(EpisodePack, WithoutEpisodesOrColumns) {
  MemorySink sink;
  EpisodePackWriter writer(sink, {.is_float64 = true}, {});
  ASSERT_TRUE(writer.finish());
  const auto pack = EpisodePack::parse(sink.bytes(), "p");
  ASSERT_TRUE(pack) << pack.error().to_string();
  EXPECT_EQ((*pack)->episodes(), 0);
  EXPECT_TRUE((*pack)->columns().is_float64);
}

// Whether every cell reads as it was written.
bool reads_right(std::span<const std::byte> file, const std::vector<std::byte>& whole) {
  const auto pack = EpisodePack::parse(file, "p");
  if (!pack || !(*pack)->check_rows(0, (*pack)->rows())) return false;
  const auto texts = (*pack)->texts(0, 0, (*pack)->rows());
  if (!texts) return false;
  const auto right = *EpisodePack::parse(whole, "p");
  return std::ranges::equal((*pack)->numbers(), right->numbers()) && texts->bytes == right->texts(0, 0, 3)->bytes;
}

TEST(EpisodePack, AnyDamagedByteIsFound) {
  const auto whole = small_pack();
  ASSERT_TRUE(reads_right(whole, whole));
  for (const size_t at : places_to_damage(whole.size())) {
    auto damaged = whole;
    damaged[at] ^= std::byte{0x40};
    EXPECT_FALSE(reads_right(damaged, whole)) << at;
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(EpisodePack::parse(std::span(whole).first(size), "p")) << size;
  }
  auto newer = whole;
  newer[8] = std::byte{2};
  EXPECT_EQ(EpisodePack::parse(newer, "p").error().code(), ErrorCode::kUnsupported);
}

TEST(EpisodePack, OnlyTouchedBlocksAreChecked) {
  std::mt19937_64 random(test_seed());
  std::vector<float> numbers(100'000);  // six blocks
  for (float& each : numbers) each = static_cast<float>(random());
  MemorySink sink;
  EpisodePackWriter writer(sink, {.numbers = {"x"}}, {});
  for (size_t at = 0; at < numbers.size();) {
    const size_t rows = std::min<size_t>(1 + random() % 30'000, numbers.size() - at);
    ASSERT_TRUE(writer.add("e", static_cast<int64_t>(rows), std::as_bytes(std::span(numbers).subspan(at, rows)), {}));
    at += rows;
  }
  ASSERT_TRUE(writer.finish());
  auto file = sink.take();
  file[64 + 4 * 50'000] ^= std::byte{1};
  const auto pack = EpisodePack::parse(file, "p");
  ASSERT_TRUE(pack);
  EXPECT_TRUE((*pack)->check_rows(0, 16'000));
  EXPECT_TRUE((*pack)->check_rows(70'000, 100'000));
  const auto damaged = (*pack)->check_rows(49'999, 50'001);
  ASSERT_FALSE(damaged);
  EXPECT_THAT(damaged.error().message(), HasSubstr("p: bytes [196608, 262144) are damaged"));
}

}  // namespace
}  // namespace millrace::formats
