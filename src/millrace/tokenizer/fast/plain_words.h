// SPDX-License-Identifier: Apache-2.0
#pragma once

// The words of most units without the normalizers and pre-tokenizers: those whose characters each become the same
// whatever stands beside them, in files whose cutting is simple. All others are left to the general way. Immutable,
// thread-safe; a Scratch belongs to one thread.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/steps/normalizer.h"
#include "millrace/tokenizer/steps/pre_tokenizer.h"

namespace millrace::tokenizer {

class PlainWords {
 public:
  // The normalized form of a character beyond ASCII.
  struct Form {
    enum Kind : uint8_t { kNotAsked, kNotPlain, kItself, kOther };
    Kind kind = kNotAsked;
    uint8_t size = 0;
    std::array<char, 6> bytes{};
    std::string_view text() const { return {bytes.data(), size}; }
  };

  struct Scratch {
    std::string text;
    std::vector<Word> words;
    std::vector<Form> known;  // of each character below U+10000
    AlignedText character;
    Normalizer::Scratch normalizer;
  };

  // For a file whose units unit_path.h cuts by white space; nullopt when its cutting is not simple.
  [[nodiscard]] static std::optional<PlainWords> build(const TokenizerSpec& spec, const Normalizer& normalizer);

  // Writes the words of `unit` to `scratch` as places in its text. False: the unit has to go the general way.
  // `normalizer` is the file's.
  bool cut(std::string_view unit, const Normalizer& normalizer, Scratch& scratch) const;
  // Whether the one word of `unit` is the unit itself.
  bool is_word(std::string_view unit, const Normalizer& normalizer, Scratch& scratch) const;
  // Whether a character beyond ASCII stays what it is and a part of its word, whatever stands beside it.
  bool is_plain(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const;

 private:
  static constexpr uint8_t kNotPlain = 0;  // no character of a word is U+0000

  const Form& form(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const;
  Form find_form(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const;
  bool has_replaced(std::string_view unit) const;

  std::array<uint8_t, 128> ascii_{};       // what a character becomes, or kNotPlain
  std::array<bool, 128> stays_{};          // it becomes itself
  std::array<bool, 128> alone_{};          // is a word by itself
  std::array<bool, 128> becomes_space_{};  // of the white space
  std::array<bool, 128> is_replaced_{};    // in a text of replaced_
  std::vector<std::string> replaced_;      // text that a Replace takes; it is not in the units that are cut here
  bool isolates_punctuation_ = false;
  bool takes_foreign_ = true;  // other characters than ASCII
  bool only_letters_ = false;  // of those
  bool begins_with_space_ = false;
  std::string prefix_;  // of each word, in place of the space if it begins with one
};

}  // namespace millrace::tokenizer
