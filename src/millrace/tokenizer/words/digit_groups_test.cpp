// SPDX-License-Identifier: Apache-2.0
// Groups of digits against Oniguruma, as parts, as words and as the first step of several.

#include "millrace/tokenizer/words/digit_groups.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "millrace/tokenizer/testing.h"
#include "millrace/tokenizer/words/pattern.h"
#include "millrace/tokenizer/words/word_scanner.h"

namespace millrace::tokenizer {
namespace {

std::string random_digits(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {"1", "23", "456", "7890", "12345678901", "٣",      "१२", "𝟙", "½",
                                                   "²", "Ⅷ",  "a",   "_",    "é",           "\u0300", ".",  ",", " ",
                                                   "-", "\n", "你",  "€",    "‿",           "👩",     "٬"};
  std::string text;
  for (size_t pieces = random() % 16; pieces > 0; --pieces) text += kPieces[random() % kPieces.size()];
  return text;
}

std::string shown(const std::string& text, const std::vector<Part>& parts) {
  std::string all;
  for (const Part& part : parts)
    all += fmt::format("{}{} ", part.matched ? "" : "!", text.substr(part.begin, part.end - part.begin));
  return all;
}

std::string parts_by(const Result<Pattern>& pattern, const std::string& text) {
  std::vector<Part> parts;
  EXPECT_TRUE(pattern && pattern->find_all(text, parts)) << text;
  return shown(text, parts);
}

std::vector<Part> words_by(const WordScanner& words, const std::string& text, size_t batch) {
  std::vector<Part> parts;
  std::vector<size_t> ends(batch);
  size_t begin = 0;
  LookAroundMemory memory;
  while (const size_t count = words.next_words(text, begin, ends, memory)) {
    for (size_t i = 0; i < count; begin = ends[i++]) parts.push_back({begin, ends[i], true});
  }
  return parts;
}

TEST(DigitGroups, Golden) {
  const auto pattern = Pattern::build({std::string(kDigitGroupsPattern), true});
  ASSERT_TRUE(pattern);
  EXPECT_EQ(pattern->engine(), "scanner");
  EXPECT_EQ(parts_by(pattern, "1 12 123 1234 1234567"), "1 !  12 !  123 !  1 234 !  1 234 567 ");
  EXPECT_EQ(parts_by(pattern, "a1234 12a34.5_6"), "!a 1 234 ! 12a 34 !.5_ 6 ");
}

TEST(DigitGroups, AreWhatOnigurumaFinds) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const auto oracle = Pattern::build_with_oniguruma(kDigitGroupsPattern);
  const auto pattern = Pattern::build({std::string(kDigitGroupsPattern), true});
  const auto words = WordScanner::find(kDigitGroupsPattern);
  ASSERT_TRUE(oracle && pattern && words);
  EXPECT_FALSE(words->covers_all());
  for (int round = 0; round < 20000; ++round) {
    const std::string text = random_digits(random);
    ASSERT_EQ(parts_by(pattern, text), parts_by(oracle, text)) << text;
    std::vector<Part> expected;
    ASSERT_TRUE(text.empty() || oracle->find_all(text, expected));
    for (Part& part : expected) part.matched = true;  // what lies between two matches is a word, too
    ASSERT_EQ(shown(text, words_by(*words, text, 1 + random() % 5)), shown(text, expected)) << text;
  }
}

// Command-A's steps.
TEST(DigitGroups, AreTheFirstOfSeveralSteps) {
  const std::vector<PreTokenizerSpec> steps = {SplitSpec{{std::string(kDigitGroupsPattern), true}},
                                               SplitSpec{{kLlama3Pattern, true}}, ByteLevelSpec{false, false}};
  const auto chain = WordScannerChain::build(steps);
  ASSERT_TRUE(chain);
  const std::string text = "In 12345678 days, x123 or 9876y";
  std::vector<size_t> ends(64);
  ends.resize(WordScannerChain::Cursor(*chain, text).next(ends));
  std::vector<std::string> words;
  for (size_t begin = 0; const size_t end : ends) {
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(words, (std::vector<std::string>{"In", " ", "12", "345", "678", " days", ",", " x", "123", " or", " ",
                                             "987", "6", "y"}));
}

// An engine that looks through the rest of the run for each group would not come to an end.
TEST(DigitGroups, TakeLinearTime) {
  const std::vector<PreTokenizerSpec> steps = {SplitSpec{{std::string(kDigitGroupsPattern), true}},
                                               SplitSpec{{kLlama3Pattern, true}}};
  const auto chain = WordScannerChain::build(steps);
  ASSERT_TRUE(chain);
  for (const char* last : {"", "x"}) {
    const std::string text = std::string(4 << 20, '7') + last;
    WordScannerChain::Cursor cursor(*chain, text);
    std::vector<size_t> ends(256);
    size_t count = 0, end = 0;
    while (const size_t found = cursor.next(ends)) {
      count += found;
      end = ends[found - 1];
    }
    EXPECT_EQ(end, text.size());
    EXPECT_EQ(count, ((4 << 20) + 2) / 3 + std::string_view(last).size());
  }
}

}  // namespace
}  // namespace millrace::tokenizer
