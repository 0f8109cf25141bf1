// SPDX-License-Identifier: Apache-2.0
// Small precompiled maps made here. Whole agreement with the `tokenizers` package is for
// tests/python/test_tokenizer_zoo.py.
#include "millrace/tokenizer/text/precompiled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace millrace::tokenizer {
namespace {

using ::testing::ElementsAre;
using C = std::pair<uint32_t, int>;

std::string map_bytes(const std::vector<uint32_t>& units, std::string_view strings) {
  const auto size = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string bytes(sizeof(size) + size, '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  if (size > 0) std::memcpy(bytes.data() + sizeof(size), units.data(), size);
  return bytes.append(strings);
}

// Replaces what starts with one of `bytes` with the string at `offset`.
std::string replacing(std::string_view bytes, uint32_t offset, std::string_view strings) {
  constexpr uint32_t kChildren = 256, kValue = 512, kNone = 1u << 31;
  std::vector<uint32_t> units(1024, kNone);
  units[0] = kChildren << 10;
  units[kValue] = offset;
  for (const char b : bytes) {
    const uint32_t byte = static_cast<uint8_t>(b);
    units[kChildren ^ byte] = byte | 1u << 8 | (kChildren ^ byte ^ kValue) << 10;
  }
  return map_bytes(units, strings);
}

std::string every_byte() {
  std::string bytes;
  for (int b = 1; b < 256; ++b) bytes += static_cast<char>(b);
  return bytes;
}

std::vector<C> normal(const PrecompiledMap& map, std::string_view text) {
  std::vector<NormalizedChar> chars;
  map.normalize(text, chars);
  std::vector<C> result;
  for (const NormalizedChar& c : chars) result.emplace_back(c.c, c.change);
  return result;
}

// A cluster below 6 bytes gives one letter, a longer one a letter for each character.
TEST(PrecompiledMapTest, GraphemeClustersAreThoseOfTheCrate) {
  const auto map = PrecompiledMap::parse(replacing(every_byte(), 0, std::string_view("Y\0", 2)));
  ASSERT_TRUE(map);
  const std::pair<const char*, size_t> kCases[] = {
      {"abc", 3},
      {"a\u0301\u0302b", 2},
      {"\r\n", 1},
      {"\n\r", 2},
      {"\n\u0301", 2},
      {"\u0600a", 1},  // prepended
      {"\u0600\n", 2},
      {"\u00A9\u200D\u00A9\u0301", 4},        // pictographic ones, joined
      {"\u00A9\u200D\u200D\u00A9\u0301", 4},  // not by two joiners
      {"\u00A9\u0301\u200D\u00A9\u0301", 5},
      {"\u00A9\u0903\u200D\u00A9\u0301", 4},  // not behind a spacing mark
      {"a\u200D\u00A9\u0301", 2},
      {"\u0915\u094D\u0915\u0301", 4},  // consonants, linked
      {"\u0915\u094D\u200D\u0915\u0301", 5},
      {"\u0915\u094D\u200C\u0915\u0301", 4},
      {"\u0915\u0301\u0915\u0301", 2},
      {"\u1100\u1161\u0301", 3},  // Hangul
      {"\u1161\u1100\u0301", 2},
      {"\uAC00\u11A8\u0301", 3},
      {"\uAC01\u1161\u0301", 2},
      {"\uAC01\u11A8\u0301", 3},
      {"\U0001D173\u0300\u0301", 2},  // a control character of 4 bytes
      {"a\u1ACF", 1},                 // Unicode 17
  };
  for (const auto& [text, letters] : kCases) EXPECT_EQ(normal(*map, text).size(), letters) << text;
}

TEST(PrecompiledMapTest, ChangesCountWhatComesAndGoes) {
  const auto longer = PrecompiledMap::parse(replacing("b", 0, std::string_view("xyz\0", 4)));
  ASSERT_TRUE(longer);
  EXPECT_THAT(normal(*longer, "ab"), ElementsAre(C{'a', 0}, C{'x', 0}, C{'y', 1}, C{'z', 1}));
  const auto gone = PrecompiledMap::parse(replacing("b", 3, std::string_view("xyz\0", 4)));
  ASSERT_TRUE(gone);
  EXPECT_THAT(normal(*gone, "babb\u0301c"), ElementsAre(C{'a', -3}, C{'c', 0}));
}

TEST(PrecompiledMapTest, QuickCheckKnowsAscii) {
  const auto map = PrecompiledMap::parse(replacing("b", 0, std::string_view("x\0", 2)));
  ASSERT_TRUE(map);
  EXPECT_TRUE(map->is_surely_normal("acd \r\n"));
  EXPECT_FALSE(map->is_surely_normal("acdb"));
  EXPECT_FALSE(map->is_surely_normal("\u00E9"));
  // "b\n" alone is in this one: characters that could go on with it do not count.
  std::vector<uint32_t> units(1024, 1u << 31);
  units[0] = 256u << 10;
  units[256 ^ 'b'] = 'b' | (256u ^ 'b' ^ 512u) << 10;
  units[512 ^ '\n'] = '\n' | 1u << 8 | (512u ^ '\n' ^ 768u) << 10;
  units[768] = 0;
  const auto pairs = PrecompiledMap::parse(map_bytes(units, std::string_view("x\0", 2)));
  ASSERT_TRUE(pairs);
  EXPECT_TRUE(pairs->is_surely_normal("b\n"));
  EXPECT_THAT(normal(*pairs, "b\n"), ElementsAre(C{'b', 0}, C{'\n', 0}));
}

TEST(PrecompiledMapTest, DamageIsSeen) {
  const std::string good = replacing("b", 0, std::string_view("x\0", 2));
  for (const size_t size : {0, 3, 4, 5, 4 + 1024 * 4 - 1})
    EXPECT_FALSE(PrecompiledMap::parse(good.substr(0, size))) << size;
  EXPECT_FALSE(PrecompiledMap::parse(good + "\xFF"));
  EXPECT_FALSE(PrecompiledMap::parse(map_bytes({}, "x")));
  // What leads outside replaces nothing.
  const auto outside = PrecompiledMap::parse(replacing("b", 99, "x"));
  ASSERT_TRUE(outside);
  EXPECT_THAT(normal(*outside, "b"), ElementsAre(C{'b', 0}));
  const auto far = PrecompiledMap::parse(map_bytes({0x7FFFFC00}, "x"));
  ASSERT_TRUE(far);
  EXPECT_THAT(normal(*far, "b"), ElementsAre(C{'b', 0}));
}

}  // namespace
}  // namespace millrace::tokenizer
