// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/word_scanner.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/testing.h"
#include "millrace/tokenizer/text/unicode_tables.h"
#include "millrace/tokenizer/words/block_scan.h"

namespace millrace::tokenizer {
namespace {

std::vector<std::string> words_of(const char* pattern, const std::string& text, size_t batch = 3) {
  const auto scanner = WordScanner::find_scanner(pattern);
  EXPECT_TRUE(scanner);
  std::vector<std::string> words;
  std::vector<size_t> ends(batch);
  size_t begin = 0;
  LookAroundMemory memory;
  while (const size_t count = scanner->next_words(text, begin, ends, memory))
    for (size_t i = 0; i < count; begin = ends[i++]) words.push_back(text.substr(begin, ends[i] - begin));
  EXPECT_EQ(begin, text.size());
  return words;
}

struct GoldenCuts {
  std::string text;
  std::vector<std::string> gpt2, llama3;
};

// Written by `tokenizers` 0.23.3.
const GoldenCuts kGoldens[] = {
    {"I'll've don'T 'S it'ſx",
     {"I", "'ll", "'ve", " don", "'", "T", " '", "S", " it", "'", "ſx"},
     {"I", "'ll", "'ve", " don", "'T", " '", "S", " it", "'ſ", "x"}},
    {"x \u3000 y\u00A0z\u200Bw",
     {"x", " \u3000", " y", "\u00A0", "z", "\u200B", "w"},
     {"x", " \u3000", " y", "\u00A0z", "\u200Bw"}},
    {"12345 Ⅷ٣4½", {"12345", " Ⅷ٣4½"}, {"123", "45", " ", "Ⅷ٣4", "½"}},
    {"a\r\n\r\n  b \n c  ",
     {"a", "\r\n\r\n ", " b", " \n", " c", "  "},
     {"a", "\r\n\r\n", " ", " b", " \n", " c", "  "}},
    {"é\u0300ñ नमस्ते 你好!!\n\n",
     {"é", "\u0300", "ñ", " नमस", "्", "त", "े", " 你好", "!!", "\n\n"},
     {"é", "\u0300ñ", " नमस", "्त", "े", " 你好", "!!\n\n"}},
    {"  .. \t.\n x", {" ", " ..", " ", "\t", ".", "\n", " x"}, {" ", " ..", " ", "\t", ".\n", " x"}},
    {"👩‍👩‍👧 !?\r", {"👩‍👩‍👧", " !?", "\r"}, {"👩‍👩‍👧", " !?\r"}},
};

TEST(WordScanner, Golden) {
  for (const GoldenCuts& golden : kGoldens) {
    EXPECT_EQ(words_of(kGpt2Pattern, golden.text), golden.gpt2);
    EXPECT_EQ(words_of(kLlama3Pattern, golden.text), golden.llama3);
  }
  EXPECT_EQ(words_of(kQwen2Pattern, "a12 345"), (std::vector<std::string>{"a", "1", "2", " ", "3", "4", "5"}));
  EXPECT_EQ(words_of("", "a 12\n"), std::vector<std::string>{"a 12\n"});
  EXPECT_FALSE(WordScanner::find_scanner(R"(\w+)"));
}

const WordScanner* running = nullptr;  // of the test that runs

// One word by `running`, as blocks ask for it.
const uint8_t* end_by_scanner(const uint8_t* p, const uint8_t* end, const void*) {
  size_t word_end = 0;
  LookAroundMemory memory;
  // SAFETY: char may alias any object.
  const std::string_view rest(reinterpret_cast<const char*>(p), static_cast<size_t>(end - p));
  EXPECT_EQ(running->next_words(rest, 0, {&word_end, 1}, memory), 1u);
  return p + word_end;
}

// ASCII for the most part in half of the texts, in runs whose lengths are near those of a block.
std::string text_for_blocks(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {
      " ",   " ",         "  ",     "\n",  "\r\n", "\t",   "\v",   "a",       "the",    "Word",   "'s",   "'LL",
      "'re", "'x",        "''",     "1",   "23",   "4567", ".",    "...",     "(){}",   "\x01",   "\x7F", "A",
      "API", "camelCase", "X's",    "'sT", "'lL",  "/",    "//\n", "\n/",     ";\r\n",  "é",      "你好", "\u3000",
      "'ſ",  "\xFF",      "\u00A0", "ж",   "٣",    "½",    "।",    "👩",      "\u0300", "\u0085", "\xC3", "。",
      "ſ",   "'é",        "É",      "ǅ",   "ʰ",    "न",    "नि",   "é\u0300", "你A"};
  const bool mostly_ascii = random() % 2 == 0;
  std::string text;
  const size_t pieces = random() % 60;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t repeats = random() % 8 == 0 ? random() % 70 : 1;
    const std::string& piece = kPieces[random() % (!mostly_ascii || random() % 4 == 0 ? kPieces.size() : 33)];
    for (size_t k = 0; k < repeats; ++k) text += piece;
  }
  return text;
}

TEST(WordScanner, BlocksFindTheWordsOfTheScanner) {
  if (find_block_scan(Grammar::kGpt2) == nullptr) GTEST_SKIP() << "this processor has no fast scan";
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const std::tuple<Grammar, const char*, const uint8_t*> grammars[] = {
      {Grammar::kGpt2, kGpt2Pattern, code_point_classes()},   {Grammar::kLlama3, kLlama3Pattern, code_point_classes()},
      {Grammar::kQwen2, kQwen2Pattern, code_point_classes()}, {Grammar::kQwen2, kQwen35Pattern, classes_with_marks()},
      {Grammar::kO200k, kO200kPattern, classes_with_case()},  {Grammar::kTekken, kTekkenPattern, classes_with_case()}};
  for (const auto& [grammar, pattern, classes] : grammars) {
    const auto words = WordScanner::find(pattern);
    running = &*words;
    ASSERT_NE(find_block_scan(grammar), nullptr) << pattern;
    for (int round = 0; round < 20000; ++round) {
      const std::string drawn = text_for_blocks(random);
      const std::vector<char> text(drawn.begin(), drawn.end());  // a read past its end is seen by a sanitizer
      // SAFETY: uint8_t may alias any object.
      const auto bytes = reinterpret_cast<const uint8_t*>(text.data());
      std::vector<size_t> expected;
      LookAroundMemory memory;
      for (size_t begin = 0, end = 0; words->next_words({text.data(), text.size()}, begin, {&end, 1}, memory) == 1;
           begin = end)
        expected.push_back(end);
      for (const BlockScan scan : all_block_scans(grammar)) {
        std::vector<size_t> found, ends(64 + random() % 100);
        while (const size_t count = scan(bytes, text.size(), found.empty() ? 0 : found.back(),
                                         {end_by_scanner, nullptr, classes}, ends.data(), ends.size()))
          found.insert(found.end(), ends.begin(), ends.begin() + static_cast<std::ptrdiff_t>(count));
        ASSERT_EQ(found, expected) << pattern << "\n" << drawn;
      }
    }
  }
}

// The plainest regular expression engine that can say the patterns: alternatives of greedy, backtracking steps.
using Set = bool (*)(uint32_t);
struct Step {
  Set set;
  size_t least, most;
};
struct Alternative {
  std::vector<Step> steps;
  bool not_before_text = false;  // (?!\S)
};

uint8_t kind(uint32_t c) {
  return code_point_classes()[c] & kClassMask;
}
bool letter(uint32_t c) {
  return kind(c) == kLetterClass;
}
bool number(uint32_t c) {
  return kind(c) == kNumberClass;
}
bool white(uint32_t c) {
  return kind(c) == kSpaceClass;
}
bool other(uint32_t c) {
  return kind(c) == kOtherClass;
}
bool newline(uint32_t c) {
  return c == '\r' || c == '\n';
}
bool lead(uint32_t c) {
  return !newline(c) && !letter(c) && !number(c);
}
template <uint32_t... kCharacters>
bool any_of(uint32_t c) {
  return ((c == kCharacters) || ...);
}
constexpr size_t kMany = SIZE_MAX;

std::vector<Alternative> gpt2_alternatives() {
  const Step quote{any_of<'\''>, 1, 1}, space{any_of<' '>, 0, 1};
  return {{{quote, {any_of<'s'>, 1, 1}}},
          {{quote, {any_of<'t'>, 1, 1}}},
          {{quote, {any_of<'r'>, 1, 1}, {any_of<'e'>, 1, 1}}},
          {{quote, {any_of<'v'>, 1, 1}, {any_of<'e'>, 1, 1}}},
          {{quote, {any_of<'m'>, 1, 1}}},
          {{quote, {any_of<'l'>, 2, 2}}},
          {{quote, {any_of<'d'>, 1, 1}}},
          {{space, {letter, 1, kMany}}},
          {{space, {number, 1, kMany}}},
          {{space, {other, 1, kMany}}},
          {{{white, 1, kMany}}, true},
          {{{white, 1, kMany}}}};
}

std::vector<Alternative> llama3_alternatives(size_t digits) {
  const Step quote{any_of<'\''>, 1, 1}, e{any_of<'e', 'E'>, 1, 1};
  return {{{quote, {any_of<'s', 'S', 0x17F, 't', 'T', 'm', 'M', 'd', 'D'>, 1, 1}}},
          {{quote, {any_of<'r', 'R', 'v', 'V'>, 1, 1}, e}},
          {{quote, {any_of<'l', 'L'>, 2, 2}}},
          {{{lead, 0, 1}, {letter, 1, kMany}}},
          {{{number, 1, digits}}},
          {{{any_of<' '>, 0, 1}, {other, 1, kMany}, {newline, 0, kMany}}},
          {{{white, 0, kMany}, {newline, 1, kMany}}},
          {{{white, 1, kMany}}, true},
          {{{white, 1, kMany}}}};
}

// The end of the match at `at`, or npos.
size_t match(const std::u32string& text, const Alternative& alternative, size_t step, size_t at) {
  if (step == alternative.steps.size())
    return alternative.not_before_text && at < text.size() && !white(text[at]) ? std::u32string::npos : at;
  const auto& [set, least, most] = alternative.steps[step];
  size_t taken = 0;
  while (taken < most && at + taken < text.size() && set(text[at + taken])) ++taken;
  for (;; --taken) {
    if (taken < least) return std::u32string::npos;
    if (const size_t end = match(text, alternative, step + 1, at + taken); end != std::u32string::npos) return end;
    if (taken == 0) return std::u32string::npos;
  }
}

std::vector<std::string> reference_words(const std::vector<Alternative>& alternatives, const std::u32string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::u32string::npos;
    for (size_t i = 0; end == std::u32string::npos; ++i) end = match(text, alternatives.at(i), 0, at);
    words.emplace_back();
    for (; at < end; ++at) append_utf8(text[at], words.back());
  }
  return words;
}

TEST(WordScanner, AgreesWithABacktrackingEngine) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const std::u32string likely = U"   \n\r\t\u00A0\u3000'''sStTvVeErRlLmMdDxX\u017Fé你0123456789²٣.,!_\u0300\U0001F44D";
  const std::pair<const char*, std::vector<Alternative>> patterns[] = {{kGpt2Pattern, gpt2_alternatives()},
                                                                       {kLlama3Pattern, llama3_alternatives(3)},
                                                                       {kQwen2Pattern, llama3_alternatives(1)}};
  for (const auto& [pattern, alternatives] : patterns) {
    for (int i = 0; i < 3000; ++i) {
      std::u32string text(random() % 40, U' ');
      for (char32_t& c : text)
        c = random() % 20 == 0 ? static_cast<char32_t>(random() % 0xD800) : likely[random() % likely.size()];
      std::string bytes;
      for (const char32_t c : text) append_utf8(c, bytes);
      ASSERT_EQ(words_of(pattern, bytes, 1 + random() % 5), reference_words(alternatives, text)) << bytes;
    }
  }
}

TEST(UnicodeTables, KnowTheUnusualCharacters) {
  const uint8_t* classes = code_point_classes();
  for (const uint32_t c : {0x85u, 0xA0u, 0x1680u, 0x2000u, 0x200Au, 0x2028u, 0x2029u, 0x202Fu, 0x205Fu, 0x3000u, 0x0Bu})
    EXPECT_EQ(kind(c), kSpaceClass) << c;
  for (const uint32_t c : {0x180Eu, 0x200Bu, 0xFEFFu, 0x1Cu, 0x0u, 0x300u, 0x10FFFFu})
    EXPECT_EQ(kind(c), kOtherClass) << c;
  for (const uint32_t c : {0x17Fu, 0xAAu, 0x2B0u, 0x4F60u, 0x1C89u /* Unicode 16 */})
    EXPECT_EQ(kind(c), kLetterClass) << c;
  for (const uint32_t c : {0xB2u, 0xBDu, 0x2167u, 0x663u, 0x1D7D8u}) EXPECT_EQ(kind(c), kNumberClass) << c;
  for (const uint32_t c : {0x5Fu, 0x41u, 0x300u, 0x200Du, 0x663u}) EXPECT_TRUE(classes[c] & kWordFlag) << c;
  for (const uint32_t c : {0x2Du, 0xBDu, 0x200Bu}) EXPECT_FALSE(classes[c] & kWordFlag) << c;
}

}  // namespace
}  // namespace millrace::tokenizer
