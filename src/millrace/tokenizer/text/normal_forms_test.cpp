// SPDX-License-Identifier: Apache-2.0
// Text that tells implementations apart, and what holds for any text. Whole agreement with the `tokenizers` package is
// for tests/python/test_tokenizer_zoo.py.
#include "millrace/tokenizer/text/normal_forms.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/testing.h"

namespace millrace::tokenizer {
namespace {

using ::testing::ElementsAre;
using C = std::pair<uint32_t, int>;

std::vector<C> normal(NormalForm form, std::string_view text) {
  std::vector<NormalizedChar> chars;
  normalize(form, text, chars);
  std::vector<C> result;
  for (const NormalizedChar& c : chars) result.emplace_back(c.c, c.change);
  return result;
}

std::string text_of(const std::vector<C>& chars) {
  std::string text;
  for (const auto& [c, change] : chars) append_utf8(c, text);
  return text;
}

// Marks, jamo, syllables and characters with decompositions of every kind, in any order.
std::string random_marks(std::mt19937_64& random) {
  constexpr uint32_t kLikely[] = {'a',    'e',    'q',    0xE9,   0x1EAD,  0x212B,  0xFB01,  0x1100, 0x1161,
                                  0x11A8, 0xAC00, 0xAC01, 0x300,  0x301,   0x308,   0x316,   0x323,  0x334,
                                  0x345,  0x344,  0x93C,  0x915,  0x958,   0x9C7,   0x9BE,   0xE38,  0xE48,
                                  0x3099, 0x30AB, 0xFF76, 0xFF9E, 0x1D15E, 0x2F800, 0x110BA, 0x11099};
  std::string text;
  for (size_t i = random() % 12; i > 0; --i) {
    const uint64_t drawn = random();
    append_utf8(drawn % 8 == 0 ? 0xC0 + drawn / 8 % 0xD700 : kLikely[drawn / 8 % std::size(kLikely)], text);
  }
  return text;
}

TEST(NormalFormsTest, MarksAreOrderedAndComposedUnlessBlocked) {
  EXPECT_THAT(normal(NormalForm::kNfd, "\u00E9\u0316"), ElementsAre(C{'e', 0}, C{0x316, 0}, C{0x301, 1}));
  EXPECT_THAT(normal(NormalForm::kNfc, "e\u0316\u0301"), ElementsAre(C{0xE9, -1}, C{0x316, 0}));
  EXPECT_THAT(normal(NormalForm::kNfc, "a\u0302\u0301"), ElementsAre(C{0x1EA5, -2}));
  EXPECT_THAT(normal(NormalForm::kNfc, "a\u0305\u0301"), ElementsAre(C{'a', 0}, C{0x305, 0}, C{0x301, 0}));
  EXPECT_THAT(normal(NormalForm::kNfc, "\u0301e"), ElementsAre(C{0x301, 0}, C{'e', 0}));
  EXPECT_THAT(normal(NormalForm::kNfc, "\u0344"), ElementsAre(C{0x308, 0}, C{0x301, 1}));
  EXPECT_THAT(normal(NormalForm::kNfc, "\u212B"), ElementsAre(C{0xC5, 0}));
}

TEST(NormalFormsTest, HangulIsComposedByArithmetic) {
  EXPECT_THAT(normal(NormalForm::kNfc, "\uAC00\u11A8"), ElementsAre(C{0xAC01, -1}));
  EXPECT_THAT(normal(NormalForm::kNfc, "\uAC01\u11A8"), ElementsAre(C{0xAC01, 0}, C{0x11A8, 0}));
  EXPECT_THAT(normal(NormalForm::kNfc, "\uAC00\u11A7"), ElementsAre(C{0xAC00, 0}, C{0x11A7, 0}));
  EXPECT_THAT(normal(NormalForm::kNfc, "\u1100\u0301\u1161"), ElementsAre(C{0x1100, 0}, C{0x301, 0}, C{0x1161, 0}));
  EXPECT_THAT(normal(NormalForm::kNfkc, "\u3131\u314F"), ElementsAre(C{0xAC00, -1}));
}

TEST(NormalFormsTest, CompatibilityMayGiveManyCharacters) {
  EXPECT_EQ(text_of(normal(NormalForm::kNfkc, "\uFDFA")), "صلى الله عليه وسلم");
  EXPECT_THAT(normal(NormalForm::kNfkc, "\uFF76\uFF9E"), ElementsAre(C{0x30AC, -1}));
  EXPECT_THAT(normal(NormalForm::kNfc, "\uFF76\uFF9E"), ElementsAre(C{0xFF76, 0}, C{0xFF9E, 0}));
}

TEST(NormalFormsTest, QuickCheckKnowsOrdinaryText) {
  const std::string ascii(1000, 'x');
  for (const NormalForm form : kNormalForms) {
    for (const char* text : {"", "a", "12345678", "12345678\u4E2D\u6587", "\u0E01\u0E38\u0E48", "\u0915\u094D\u0937"})
      EXPECT_TRUE(is_surely_normal(form, text)) << text;
    EXPECT_TRUE(is_surely_normal(form, ascii));
    EXPECT_FALSE(is_surely_normal(form, ascii + "\u212B"));
    EXPECT_FALSE(is_surely_normal(form, "a\u0316\u0334")) << "out of order";
    EXPECT_TRUE(is_surely_normal(form, "a\u0334a\u0316"));
  }
  EXPECT_TRUE(is_surely_normal(NormalForm::kNfkc, "\u00E9\uAC00"));
  EXPECT_FALSE(is_surely_normal(NormalForm::kNfd, "\u00E9"));
  EXPECT_FALSE(is_surely_normal(NormalForm::kNfd, "\uAC00"));
  EXPECT_FALSE(is_surely_normal(NormalForm::kNfc, "e\u0301"));
}

TEST(NormalFormsTest, AnyTextKeepsTheLaws) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    const std::string text = random_marks(random);
    SCOPED_TRACE(text);
    for (const NormalForm form : kNormalForms) {
      const std::vector<C> chars = normal(form, text);
      int64_t stands_for = 0;
      bool same = true;
      for (const auto& [c, change] : chars) {
        stands_for += 1 - change;
        same &= change == 0;
      }
      const auto continues = [](char b) { return (static_cast<uint8_t>(b) & 0xC0) == 0x80; };
      ASSERT_EQ(stands_for, static_cast<int64_t>(text.size()) - std::ranges::count_if(text, continues));
      ASSERT_TRUE(!is_surely_normal(form, text) || (same && text_of(chars) == text));
      ASSERT_EQ(text_of(normal(form, text_of(chars))), text_of(chars));
    }
    const std::string composed = text_of(normal(NormalForm::kNfc, text));
    ASSERT_EQ(text_of(normal(NormalForm::kNfd, composed)), text_of(normal(NormalForm::kNfd, text)));
  }
}

TEST(NormalFormsTest, StretchesAreNormalizedAlone) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t parts = random() % 5; parts > 0; --parts)
      text += random_marks(random) + std::string(random() % 3, 'x') + (random() % 2 == 0 ? "\u4E2D\u044F" : "");
    for (const NormalForm form : kNormalForms) {
      std::string joined;
      size_t at = 0, segments = 0;
      for (Segment next; (next = next_unsure(form, text, at)).begin != next.end; at = next.end, ++segments) {
        ASSERT_GE(next.begin, at);
        joined += text.substr(at, next.begin - at) +
                  text_of(normal(form, std::string_view(text).substr(next.begin, next.end - next.begin)));
      }
      joined += text.substr(at);
      ASSERT_EQ(joined, text_of(normal(form, text))) << text;
      ASSERT_EQ(segments == 0, is_surely_normal(form, text));
    }
  }
}

TEST(NormalFormsTest, ManyMarksTakeLittleTime) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 == 0 ? "\u0301" : "\u0323";
  EXPECT_EQ(normal(NormalForm::kNfd, text).size(), 200'001u);
  EXPECT_EQ(normal(NormalForm::kNfc, text).size(), 200'000u);
}

}  // namespace
}  // namespace millrace::tokenizer
