// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts most units into words without normalizers and pre-tokenizers. This works for files with simple cutting, and for
// units whose characters each normalize to the same text regardless of their neighbours. All other units take the
// general path. Immutable, thread-safe; a Scratch belongs to one thread.

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
    std::vector<Form> known;  // for each character below U+10000
    AlignedText character;
    Normalizer::Scratch normalizer;
  };

  // Builds it for a file whose units unit_path.h cuts at white space. Returns nullopt if the file's cutting is not
  // simple.
  [[nodiscard]] static std::optional<PlainWords> build(const TokenizerSpec& spec, const Normalizer& normalizer);

  // Writes the words of `unit` to `scratch`, as places in its text. Returns false if the unit has to take the general
  // path. `normalizer` is the file's.
  bool cut(std::string_view unit, const Normalizer& normalizer, Scratch& scratch) const;
  // Returns whether `unit` is exactly one word, unchanged.
  bool is_word(std::string_view unit, const Normalizer& normalizer, Scratch& scratch) const;
  // Returns whether a character beyond ASCII always stays unchanged and part of its word, regardless of its
  // neighbours.
  bool is_plain(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const;

 private:
  static constexpr uint8_t kNotPlain = 0;  // free to use: no word contains U+0000

  const Form& form(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const;
  Form find_form(uint32_t c, const Normalizer& normalizer, Scratch& scratch) const;
  bool has_replaced(std::string_view unit) const;

  std::array<uint8_t, 128> ascii_{};       // the normalized character, or kNotPlain
  std::array<bool, 128> stays_{};          // normalizes to itself
  std::array<bool, 128> alone_{};          // is a word by itself
  std::array<bool, 128> becomes_space_{};  // is white space that becomes a space
  std::array<bool, 128> is_replaced_{};    // occurs in a text of replaced_
  std::vector<std::string> replaced_;      // texts that a Replace matches; units with them are not cut here
  bool isolates_punctuation_ = false;
  bool takes_foreign_ = true;  // accepts characters beyond ASCII
  bool only_letters_ = false;  // accepts only letters beyond ASCII
  bool begins_with_space_ = false;
  std::string prefix_;  // put before each word; replaces the space of a word that begins with one
};

}  // namespace millrace::tokenizer
