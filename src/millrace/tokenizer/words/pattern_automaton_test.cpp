// SPDX-License-Identifier: Apache-2.0
// The table against Oniguruma: patterns of real files, random patterns of the grammar, hostile texts.

#include "millrace/tokenizer/words/pattern_automaton.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/steps/pre_tokenizer.h"
#include "millrace/tokenizer/testing.h"
#include "millrace/tokenizer/words/pattern.h"
#include "millrace/tokenizer/words/word_scanner.h"

namespace millrace::tokenizer {
namespace {

// o200k: GPT-4o, gpt-oss, and with it Llama 4.
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeek[] = {
    R"(\p{N}{1,3})",
    "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};
// cl100k as its authors wrote it.
constexpr const char* kPossessive =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kOthers[] = {
    "[0-9][0-9][0-9]",
    R"(\s?\p{L}+)",
    R"([一-龥ࠀ-一가-퟿]+)",
    R"(\s?\p{P}+)",
    "[\r\n]",
    R"( ?[^(\s|[.,!?…。，、।۔،])]+)",  // BLOOM
    R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)",
    R"([^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+)",
    "a+?b|ab{2,3}|(?:ba)*c",
    // cl100k as tiktoken had it, Kimi's, cl100k and r50k as tiktoken has them.
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",  // r50k
    "(?i:[a-z]+)|[a-z&&[^b]]+",
    "a++a|b?+b|b|(?:c*+c|c++)b?+.",
    ".",
};

// Which look around.
constexpr const char* kAround[] = {
    // Trinity: digits by the length of their run modulo three.
    R"(\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510})",
    R"(\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z))",
    R"(\A\p{Nd}{3}|\G\p{Nd}{3})",
    R"((?=(\d{3})+(?!\d)))",       // SuperBPE
    R"((?:\r?\n)+(?!\r?\n))",      // Laguna
    R"(\d{1,3}(?=(?:\d{3})*\b))",  // Tiny Aya
    R"((?i: ?(?:[jtmslndcy]['’]|qu['’]|jusqu['’]|lorsqu['’]|puisqu['’]|quoiqu['’]|aujourd['’]hui)|['’][stmd]|['’][rv]e|['’]ll)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?<!\n)^ )",
    R"((?<=[\u0980-\u09ff]):)",
    R"((?<=\p{Ll})(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll}))",
    R"((?=Ġ)|(?<=[.,!?;:])(?=.)|(?<=.)(?=[.,!?;:]))",
    "(?<=.)",
    R"((?=.)|(?<!^)$)",
    R"(\b\w+\b)",
    R"(\W+|\B_)",
    "^.*$",
    "x*",
    R"( (?!\h?\p{N})\h?(?:\p{L}\p{M}*)+|\p{N})",
    // Moonlight.
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})\p{Lo}|[\p{Lt}\p{Lu}\p{Lm}\p{M}])*(?:(?!\p{Han})\p{Lo}|[\p{Ll}\p{Lm}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})\p{Lo}|[\p{Lt}\p{Lu}\p{Lm}\p{M}])+(?:(?!\p{Han})\p{Lo}|[\p{Ll}\p{Lm}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"(\n\Z|\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$)))",
    R"(\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})",  // Jais 2
    // Ends within letters, which a table skips where it can.
    R"(\p{L}+(?=the)|\p{L}+)",
    R"([a-z]+(?=b)|[a-zA-Z]+(?!c|s)|.)",
};

std::vector<Part> parts_of(const Pattern& pattern, const std::string& text) {
  std::vector<Part> parts;
  EXPECT_TRUE(pattern.find_all(text, parts));
  return parts;
}

std::string shown(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts) text += fmt::format("{}{}-{} ", part.matched ? "" : "!", part.begin, part.end);
  return text;
}

std::vector<size_t> ends_of(const std::vector<Part>& parts) {
  std::vector<size_t> ends;
  for (const Part& part : parts)
    if (part.end > part.begin) ends.push_back(part.end);
  return ends;
}

std::vector<size_t> ends_of(const PatternAutomaton& automaton, const std::string& text, size_t batch = 256) {
  std::vector<size_t> all, ends(batch);
  LookAroundMemory memory;
  while (const size_t count = automaton.next_words(text, all.empty() ? 0 : all.back(), ends, memory))
    all.insert(all.end(), ends.begin(), ends.begin() + static_cast<ptrdiff_t>(count));
  return all;
}

// Pieces at which the patterns of tokenizers decide something.
std::string random_text(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {" ",
                                                   " ",
                                                   "  ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   "\v",
                                                   "a",
                                                   "the",
                                                   "Word",
                                                   "WORD",
                                                   "somewordsthatarelong",
                                                   "SOMEThatAreVeryLongAndMixed",
                                                   "'s",
                                                   "'S",
                                                   "'LL",
                                                   "'re",
                                                   "'x",
                                                   "''",
                                                   "1",
                                                   "23",
                                                   "4567",
                                                   ".",
                                                   "/",
                                                   "()",
                                                   "b",
                                                   "c",
                                                   "é",
                                                   "你",
                                                   "\u3000",
                                                   "'ſ",
                                                   "K",
                                                   "ж",
                                                   "Ж",
                                                   "٣",
                                                   "½",
                                                   "।",
                                                   "👩",
                                                   "ǅ",
                                                   "ʰ",
                                                   "ª",
                                                   "क",
                                                   "्",
                                                   "-",
                                                   "\u00A0",
                                                   "\u0300",
                                                   "\u0085",
                                                   "。",
                                                   "ſ",
                                                   "'é",
                                                   "か",
                                                   "カ",
                                                   "ﬁ",
                                                   "ß",
                                                   "A",
                                                   "Z",
                                                   "z",
                                                   "\x7F",
                                                   "|",
                                                   "[",
                                                   "𐐀",
                                                   "𐐨"};
  std::string text;
  for (size_t pieces = random() % 24; pieces > 0; --pieces) text += kPieces[random() % kPieces.size()];
  return text;
}

void expect_equal(const std::string& source, std::mt19937_64& random, int texts) {
  const auto oracle = Pattern::build_with_oniguruma(source);
  ASSERT_TRUE(oracle) << source << ": " << oracle.error().to_string();
  const auto pattern = Pattern::build({source, true});
  ASSERT_TRUE(pattern) << source;
  const auto automaton = PatternAutomaton::compile(source);  // where `pattern` has a scanner, the table is tried too
  for (int i = 0; i < texts; ++i) {
    const std::string text = random_text(random);
    std::vector<Part> expected;
    if (!oracle->find_all(text, expected)) continue;  // it gave up after too many steps
    ASSERT_EQ(shown(parts_of(*pattern, text)), shown(expected)) << source << "\n" << text;
    if (automaton == nullptr) continue;
    ASSERT_EQ(ends_of(*automaton, text), ends_of(expected)) << source << "\n" << text;
    const bool has_gaps = std::ranges::any_of(expected, [](const Part& part) { return !part.matched; });
    ASSERT_FALSE(has_gaps && automaton->covers_all()) << source << "\n" << text;
  }
}

TEST(PatternAutomaton, FindsWhatOnigurumaFinds) {
  std::mt19937_64 random(test_seed());
  std::vector<std::string> patterns = {kO200k,         kQwen35Pattern, kPossessive,
                                       kLlama3Pattern, kGpt2Pattern,   kQwen2Pattern};
  patterns.insert(patterns.end(), std::begin(kDeepSeek), std::end(kDeepSeek));
  patterns.insert(patterns.end(), std::begin(kOthers), std::end(kOthers));
  patterns.insert(patterns.end(), std::begin(kAround), std::end(kAround));
  for (const std::string& source : patterns) {
    EXPECT_NE(PatternAutomaton::compile(source), nullptr) << source;
    expect_equal(source, random, 400);
  }
}

// Oniguruma finds fewer matches than there are.
TEST(PatternAutomaton, LeavesRunsOfAnyCharacterBehindConditionsToOniguruma) {
  std::mt19937_64 random(test_seed());
  for (const char* source : {"(?=\\w+ ).*", "\\b.+", "a|(?:b?(?<!\\w).*)", "(?<=\\s)(?m:.*)c", "(?:(?=\\w)|c).*"}) {
    EXPECT_EQ(PatternAutomaton::compile(source), nullptr) << source;
    expect_equal(source, random, 100);
  }
  for (const char* source : {"^.*$", ".*(?=\\w)", "(?=\\w).*?c", "(?=\\w).{2}", "a(?=\\w).*", "(?=\\w)[^\\na]*"}) {
    EXPECT_NE(PatternAutomaton::compile(source), nullptr) << source;
    expect_equal(source, random, 100);
  }
}

TEST(PatternAutomaton, EveryCharacterIsOfItsClass) {
  const uint32_t step = tests_are_brief() ? 97 : 1;
  for (const char* source : {kOthers[10], kOthers[11], kOthers[13], kDeepSeek[2], kAround[13], kAround[17],
                             R"((?<=\p{L})(?!\w)|(?<!\p{P}) )", R"((?=\p{Lu}\p{Ll})|\p{M}(?=a \S))"}) {
    const auto oracle = Pattern::build_with_oniguruma(source);
    const auto automaton = PatternAutomaton::compile(source);
    ASSERT_TRUE(oracle && automaton) << source;
    for (uint32_t begin = 0; begin < 0x110000; begin += 0x1000) {
      std::string text;
      for (uint32_t c = begin; c < begin + 0x1000; c += step) {
        if (c >= 0xD800 && c < 0xE000) continue;
        append_utf8(c, text);
        text += 'a';
        append_utf8(c, text);
        text += ' ';
      }
      const auto found = ends_of(*automaton, text);
      ASSERT_EQ(found, ends_of(parts_of(*oracle, text))) << source << "\n" << begin;
    }
  }
}

// ---- random patterns

class RandomPattern {
 public:
  explicit RandomPattern(std::mt19937_64& random) : random_(random) {}
  std::string choice(int depth) {
    std::string text = sequence(depth);
    for (size_t more = random_() % 3; more > 0; --more) text += '|' + sequence(depth);
    return text;
  }

 private:
  const char* one_of(std::initializer_list<const char*> all) { return all.begin()[random_() % all.size()]; }
  std::string sequence(int depth) {
    std::string text;
    for (size_t items = 1 + random_() % 3; items > 0; --items) {
      if (random_() % 8 == 0) text += condition(depth);
      text += item(depth) + quantifier();
    }
    if (random_() % 5 == 0) text += condition(depth);
    return random_() % 30 == 0 ? condition(depth) : text;
  }
  std::string condition(int depth) {
    if (depth > 0 && random_() % 4 == 0) return one_of({"(?=", "(?!"}) + choice(depth - 1) + ")";
    return one_of({"(?!\\S)",    "(?=\\p{L})",   "(?![a-c])", "(?=\\s)",     "$",          "^",
                   "\\b",        "\\B",          "(?<=\\s)",  "(?<!\\p{L})", "(?<=[a-c])", "(?<! )",
                   "\\A",        "\\z",          "\\Z",       "\\G",         "(?<=\\w|^)", "(?<!^|a)",
                   "(?!\\r?\n)", "(?=ab|\\d+$)", "(?=\\w+ )", "(?!.{2}\\b)", "(?!\\b)",    "(?=(?:ab)+(?!a))"});
  }
  std::string quantifier() {
    if (random_() % 2 == 0) return "";
    return one_of({"?", "*", "+", "{1,3}", "{2}", "{2,}", "??", "*?", "+?", "?+", "++", "*+", "{1,3}+", "{2}+"});
  }
  std::string item(int depth) {
    if (depth > 0 && random_() % 4 == 0) return one_of({"(?:", "("}) + choice(depth - 1) + ")";
    if (random_() % 8 == 0)
      return one_of({"(?i:'s|'re|k)", "(?i:'ll)", "(?i:st)", "(?i:a)", "(?i:s)", "(?i:[sdk]|ll)", "(?i:[a-z])",
                     "(?i: ?(?:[sk]['’]|qu['’]|ll'))", "(?i:(?:k|ll)+'[s.])", "\\h", "[\\p{L}&&[^\\p{Han}]]",
                     "[\\wé&&[^a-c]]"});
    return one_of({"a",
                   "b",
                   " ",
                   "\\n",
                   "\\.",
                   "[a-c]",
                   "[^\\s\\p{L}]",
                   "\\p{L}",
                   "\\p{Lu}",
                   "[\\p{Ll}\\p{M}]",
                   "\\p{N}",
                   "\\s",
                   "\\S",
                   "\\w",
                   "\\d",
                   "[^a-z\\r\\n]",
                   ".",
                   "[一-龥]",
                   "(?:.|\\n)",
                   "[-a]",
                   "[a-]",
                   "'",
                   "\\P{L}"});
  }
  std::mt19937_64& random_;
};

TEST(PatternAutomaton, RandomPatternsFindWhatOnigurumaFinds) {
  std::mt19937_64 random(test_seed());
  int tables = 0;
  const int rounds = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 200'000 : tests_are_brief() ? 100 : 600;
  for (int i = 0; i < rounds; ++i) {
    const std::string source = RandomPattern(random).choice(2);
    if (PatternAutomaton::compile(source) == nullptr) continue;
    ++tables;
    expect_equal(source, random, 30);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(tables, rounds / 10);  // one of five or so
}

// ---- hostile text

}  // namespace

// Counts what a table does.
class AutomatonSteps {
 public:
  // How many characters are read to cut `text` into the matches of `automaton`.
  static size_t of(const PatternAutomaton& automaton, const std::string& text) {
    if (automaton.looks_around()) return of_looking_around(automaton, text);
    // SAFETY: uint8_t may alias any object.
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    const uint8_t* const end = p + text.size();
    size_t steps = 0;
    while (p < end) {
      const uint8_t* const matched = automaton.match(p, end);
      uint32_t entry = 0;
      for (const uint8_t* at = p; at < end && entry < PatternAutomaton::kDead; ++steps) {
        const CodePoint c = decode_code_point(at, end);
        entry = automaton.table_[(entry >> PatternAutomaton::kRowShift) + automaton.classes_[c.value]];
        at += c.size;
      }
      p = matched == nullptr ? p + decode_code_point(p, end).size : matched;
    }
    return steps;
  }

 private:
  // The answers of look-aheads are kept, and all that are needed are there when the match is found.
  static size_t of_looking_around(const PatternAutomaton& automaton, const std::string& text) {
    // SAFETY: uint8_t may alias any object.
    const auto* const begin = reinterpret_cast<const uint8_t*>(text.data());
    const uint8_t* const end = begin + text.size();
    LookAroundMemory memory;
    size_t steps = 0;
    for (const uint8_t* from = begin;;) {
      const auto found = automaton.find_next(text, memory);
      for (const uint8_t* p = from; p <= (found ? begin + found->begin : end);) {
        size_t conditions = p == from ? automaton.search_condition_ : 0;
        uint32_t row =
            automaton
                .start_rows_[p == begin ? automaton.end_class_ : class_of(automaton, previous_character(begin, p), p)];
        for (const uint8_t* at = p; at < end;) {
          ++steps;
          const size_t next = class_of(automaton, at, end);
          uint32_t entry = automaton.table_[row + next];
          if (entry & PatternAutomaton::kAsks) {
            if (!memory.ahead_.empty()) conditions |= memory.ahead_[static_cast<size_t>(at - begin)] & 15;
            entry = automaton.table_[row + next + (automaton.end_class_ + 1) * conditions];
          }
          if (entry >= PatternAutomaton::kDead) break;
          conditions = 0;
          row = entry >> PatternAutomaton::kRowShift;
          at += decode_code_point(at, end).size;
        }
        p += p < end ? decode_code_point(p, end).size : 1;
      }
      if (!found)
        return steps +
               static_cast<size_t>(std::ranges::count_if(memory.ahead_, [](uint8_t flags) { return flags != 0; }));
      from = begin + found->end;
    }
  }
  static size_t class_of(const PatternAutomaton& automaton, const uint8_t* p, const uint8_t* end) {
    return automaton.classes_[decode_code_point(p, end).value];
  }
};

namespace {

// Growth of the steps for text eight times as long: eight, unless the time is not linear.
double growth_of_steps(const PatternAutomaton& automaton, const std::string& part) {
  std::string text;
  while (text.size() < 1000) text += part;
  const auto before = static_cast<double>(AutomatonSteps::of(automaton, text));
  std::string longer;
  for (int i = 0; i < 8; ++i) longer += text;
  return static_cast<double>(AutomatonSteps::of(automaton, longer)) / before;
}

const std::vector<std::string>& hostile_parts() {
  static const std::vector<std::string> parts = {
      "a",    "A",  "aB",   "7", " ",      "\n",     " \n",    "\n ", "'s",     "'",   "\"", "!",  ".", "/",
      ";\n/", "中", "aя中", "é", "\u0301", "\u00A0", "\u3000", "ab",  "abab c", "a b", "क्",  "👩", "\t"};
  return parts;
}

TEST(PatternAutomaton, KnowsWhichPatternsTakeLinearTime) {
  std::vector<std::string> patterns = {kO200k,       kTekkenPattern, kPossessive,   kLlama3Pattern,
                                       kGpt2Pattern, kQwen2Pattern,  kQwen35Pattern};
  patterns.insert(patterns.end(), std::begin(kDeepSeek), std::end(kDeepSeek));
  patterns.insert(patterns.end(), std::begin(kOthers), std::end(kOthers));
  patterns.insert(patterns.end(), std::begin(kAround), std::end(kAround));
  for (const std::string& source : patterns) {
    const auto automaton = PatternAutomaton::compile(source);
    ASSERT_NE(automaton, nullptr) << source;
    if (source == kOthers[7] || source == kOthers[8] || source == kOthers[14]) continue;  // no file has these alone
    // Laguna's run of newlines ends where its look-ahead holds, which the table does not show.
    EXPECT_EQ(automaton->is_linear(), source != kAround[4]) << source;
    for (const std::string& part : hostile_parts())
      EXPECT_LT(growth_of_steps(*automaton, part), 9) << source << "\n" << part;
  }
  const std::pair<const char*, const char*> others[] = {
      {"a+b|a", "a"},     {R"(\s+[a-z]|\s)", " "},     {kOthers[8], "a"},
      {kOthers[14], "a"}, {R"(\p{N}+$\n|\p{N})", "7"}, {"(?:ab)+c|[abc]", "ab"}};
  for (const auto& [source, part] : others) {
    const auto automaton = PatternAutomaton::compile(source);
    ASSERT_NE(automaton, nullptr) << source;
    EXPECT_FALSE(automaton->is_linear()) << source;
    EXPECT_GT(growth_of_steps(*automaton, part), 50) << source;
  }
}

TEST(PatternAutomaton, RandomPatternsThatAreSaidToBeLinearAre) {
  std::mt19937_64 random(test_seed());
  int linear = 0, others = 0;
  for (int i = tests_are_brief() ? 50 : 500; i > 0; --i) {
    const std::string source = RandomPattern(random).choice(2);
    const auto automaton = PatternAutomaton::compile(source);
    if (automaton == nullptr) continue;
    const bool is_linear = automaton->is_linear();
    linear += is_linear;
    others += !is_linear;
    for (size_t round = 0; is_linear && round < 4; ++round) {
      const std::string& part = hostile_parts()[random() % hostile_parts().size()];
      ASSERT_LT(growth_of_steps(*automaton, part), 9) << source << "\n" << part;
    }
  }
  EXPECT_GT(linear, 5);
  EXPECT_GT(others, 0);
}

TEST(PatternAutomaton, LeavesToOnigurumaWhatItCannotPromise) {
  for (const char* source : {"(?i:[a-zé]+)",
                             "(?i:ss)",
                             "(?i:fi)",
                             "(?i:é)",
                             "(?<=ab)b",
                             "(?<=a+)b",
                             "(?<=(a))b",
                             "(?<!(a))b",
                             "(?<=a|)b",
                             "(?:$)+a",
                             "(?:ab)++a",
                             R"((a)\1)",
                             R"(a\K)",
                             R"((?!\G)a)",
                             "(?=a(?=bc)d)",
                             "(?=ab)(?=ac)(?=ad)(?=ae)(?=af)",
                             "(?>a+)b",
                             "a{0,2}+b",
                             "a{2}?b",
                             "a+++b",
                             "[a-z&&b]+",
                             "(a*)+b",
                             R"(\X)",
                             "a{0}b",
                             "a{,2}b",
                             "[]a]",
                             "(?i:s){2}",
                             "(?i:[s])",
                             "(?i:[^st])",
                             "[a[^b-c]]",
                             "[^a&&[^b]]",
                             "[a-z&&[^b]x]",
                             R"([a-z&&[^\x{80}-\x{10FFFF}]])"})
    EXPECT_EQ(PatternAutomaton::compile(source), nullptr) << source;
}

// ---- many words at once

// Words that are found 64 bytes at a time, and what interrupts them.
std::string plain_text(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {" word", " a", " The", ",", ".",   " I", " don't", "  ", "\n",
                                                   " x9",   "Mc", " MIX", "é", " né", " ,", ". ",     ",,", "/"};
  std::string text;
  for (size_t pieces = random() % 80; pieces > 0; --pieces)
    text += kPieces[random() % 3 != 0 ? random() % 6 : random() % kPieces.size()];
  return text;
}

TEST(PatternAutomaton, PlainWordsAreThoseOfTheTable) {
  std::mt19937_64 random(test_seed());
  std::vector<std::string> patterns = {
      kO200k,       kQwen35Pattern,        kDeepSeek[2],   kLlama3Pattern,
      kGpt2Pattern, R"( ?\p{L}+|[^ ]|\s)", R"( ?\w+,?|.)", R"( \p{L}+(?=,)| |\p{L}|[,.]+ ?)"};
  for (int i = 0; i < 60; ++i) patterns.push_back(RandomPattern(random).choice(2) + R"(| ?\p{L}+|[,.])");
  for (const std::string& source : patterns) {
    const auto automaton = PatternAutomaton::compile(source);
    if (automaton == nullptr) continue;
    for (int round = 0; round < 40; ++round) {
      const std::string text = plain_text(random);
      ASSERT_EQ(ends_of(*automaton, text, 70), ends_of(*automaton, text, 1)) << source << "\n" << text;
      ASSERT_EQ(ends_of(*automaton, text), ends_of(*automaton, text, 1)) << source << "\n" << text;
    }
  }
}

// ---- one after another

// The ends of the words that patterns cut one after another, each the words of the one before it.
std::string ends_one_by_one(const std::vector<Pattern>& patterns, const std::string& text) {
  std::vector<Part> words = {{0, text.size()}};
  for (const Pattern& pattern : patterns) {
    std::vector<Part> finer;
    for (const Part& word : words)
      for (const Part& part : parts_of(pattern, text.substr(word.begin, word.end - word.begin)))
        if (part.end > part.begin) finer.push_back({word.begin + part.begin, word.begin + part.end});
    words = std::move(finer);
  }
  std::string ends;
  for (const Part& word : words) ends += fmt::format("{} ", word.end);
  return ends;
}

std::string ends_by_chain(const WordScannerChain& chain, const std::string& text, size_t batch) {
  WordScannerChain::Cursor cursor(chain, text);
  std::vector<size_t> ends(batch);
  std::string found;
  while (const size_t count = cursor.next(ends))
    for (size_t i = 0; i < count; ++i) found += fmt::format("{} ", ends[i]);
  return found;
}

// A word of the step before is all that such a pattern sees.
TEST(WordScannerChain, StepsMayLookAround) {
  std::mt19937_64 random(test_seed());
  std::vector<std::string> sources(std::begin(kAround), std::end(kAround));
  sources.insert(sources.end(), std::begin(kDeepSeek), std::end(kDeepSeek));
  sources.insert(sources.end(), {R"(\p{N}+)", "[^\n]+|[\n]+", kGpt2Pattern, kOthers[12]});
  for (int round = 0; round < 200; ++round) {
    std::vector<PreTokenizerSpec> steps;
    std::vector<Pattern> oracles;
    std::string named;
    for (size_t count = 1 + random() % 4; count > 0; --count) {
      const std::string& source = sources[random() % sources.size()];
      steps.emplace_back(SplitSpec{{source, true}});
      oracles.push_back(*Pattern::build_with_oniguruma(source));
      named += source + "\n";
    }
    const auto chain = WordScannerChain::build(steps);
    ASSERT_TRUE(chain) << named;
    for (int i = 0; i < 10; ++i) {
      const std::string text = random_text(random);
      ASSERT_EQ(ends_by_chain(*chain, text, 1 + random() % 9), ends_one_by_one(oracles, text)) << named << text;
    }
  }
}

TEST(WordScannerChain, EachCutsTheWordsOfTheOneBefore) {
  std::mt19937_64 random(test_seed());
  std::vector<PreTokenizerSpec> steps;
  for (const char* source : kDeepSeek) steps.emplace_back(SplitSpec{{source, true}});
  steps.emplace_back(CharacterSplitSpec{CharacterKind::kNumeric, SplitBehavior::kIsolated});
  steps.emplace_back(ByteLevelSpec{false, true});
  const auto chain = WordScannerChain::build(steps);
  ASSERT_TRUE(chain);
  std::vector<Pattern> oracles;
  for (const char* source : kDeepSeek) oracles.push_back(*Pattern::build_with_oniguruma(source));
  oracles.push_back(*Pattern::build_with_oniguruma(R"(\p{N})"));
  oracles.push_back(*Pattern::build_with_oniguruma(kByteLevelPattern));
  for (int round = 0; round < 500; ++round) {
    const std::string text = random_text(random);
    ASSERT_EQ(ends_by_chain(*chain, text, 1 + random() % 9), ends_one_by_one(oracles, text)) << text;
  }
}

// Falcon's steps, and another one. Digits cuts inside of characters: the spelling of byte 0xB2 is a number.
TEST(WordScannerChain, StepsBehindAByteLevelSeeTheSpelling) {
  std::mt19937_64 random(test_seed());
  const std::vector<PreTokenizerSpec> steps = {
      CharacterSplitSpec{CharacterKind::kPunctuation, SplitBehavior::kContiguous},
      ByteLevelSpec{false, true},
      CharacterSplitSpec{CharacterKind::kNumeric, SplitBehavior::kContiguous},
      SplitSpec{{"[0-9][0-9][0-9]", true}},
      SplitSpec{{"Ġ?[^\\p{L}]", true}},
      SplitSpec{{"à", false}},
      SplitSpec{{R"((?<=\p{Ll})(?=\p{N}\p{L}|Ġ)|(?<!Ġ)\b\p{Lu})", true}},
  };
  const auto chain = WordScannerChain::build(steps);
  const auto pre_tokenizer = PreTokenizer::build_of_bytes(steps);
  ASSERT_TRUE(chain && pre_tokenizer);
  PreTokenizer::Scratch scratch;
  for (int round = 0; round < 1000; ++round) {
    std::string text = random_text(random);
    for (size_t more = random() % 6; more > 0; --more)
      append_utf8(0x80 + static_cast<uint32_t>(random() % 0x700), text);
    CutText cut;
    cut.text.assign(text, 0, false);
    cut.words = {{0, text.size()}};
    if (text.empty()) continue;
    ASSERT_TRUE(pre_tokenizer->apply(cut, scratch));
    WordScannerChain::Cursor cursor(*chain, text);
    std::vector<size_t> ends(1 + random() % 9);
    std::string found, expected;
    while (const size_t count = cursor.next(ends))
      for (size_t i = 0; i < count; ++i) found += fmt::format("{} ", ends[i]);
    for (const Word& word : cut.words) expected += fmt::format("{} ", word.end);
    ASSERT_EQ(found, expected) << text;
  }
}

TEST(WordScannerChain, TakesPlainTextAsItIs) {
  const auto chain = WordScannerChain::build(std::vector<PreTokenizerSpec>{SplitSpec{{".*", false}}});
  ASSERT_TRUE(chain);
  std::vector<size_t> ends(9);
  ends.resize(WordScannerChain::Cursor(*chain, "a.*b.").next(ends));
  EXPECT_EQ(ends, (std::vector<size_t>{1, 3, 5}));
}

TEST(WordScannerChain, RefusesStepsThatDoMoreThanCut) {
  const auto builds = [](std::vector<PreTokenizerSpec> steps) { return WordScannerChain::build(steps).has_value(); };
  EXPECT_TRUE(builds({ByteLevelSpec{}}));
  EXPECT_TRUE(builds({SplitSpec{{"a", true}}, ByteLevelSpec{}}));
  EXPECT_TRUE(builds({ByteLevelSpec{}, SplitSpec{{"a", true}}}));
  EXPECT_FALSE(builds({ByteLevelSpec{true, false}, SplitSpec{{"a", true}}})) << "the second one sees one more space";
  EXPECT_FALSE(builds({ByteLevelSpec{}, ByteLevelSpec{}})) << "spells the spelling";
  EXPECT_FALSE(builds({SplitSpec{{"a", true}, SplitBehavior::kRemoved}, ByteLevelSpec{}}));
  for (const char* source : {kLlama3Pattern, kO200k, kOthers[10]})
    EXPECT_TRUE(builds({SplitSpec{{source, true}, SplitBehavior::kRemoved, true}, ByteLevelSpec{}})) << source;
  EXPECT_FALSE(builds({SplitSpec{{kOthers[6], true}, SplitBehavior::kRemoved, true}, ByteLevelSpec{}}))
      << "spaces are removed";
  EXPECT_TRUE(builds({SplitSpec{{"a", true}, SplitBehavior::kIsolated, true}, ByteLevelSpec{}}))
      << "what matches and what does not are words alike";
  EXPECT_FALSE(builds({SplitSpec{{R"((a)\1)", true}}, ByteLevelSpec{}})) << "only Oniguruma knows it";
  EXPECT_FALSE(builds({MetaspaceSpec{"_"}, ByteLevelSpec{}}));
  EXPECT_FALSE(builds(std::vector<PreTokenizerSpec>(WordScannerChain::kMost + 1, SplitSpec{{"a", true}})));
}

}  // namespace
}  // namespace millrace::tokenizer
