// SPDX-License-Identifier: Apache-2.0
#pragma once

// Text between the input and the model. If tracked, it also knows which bytes of the input each of its bytes comes
// from. Steps read one AlignedText and write another. Not thread-safe; keeps its memory when it is cleared.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/text/normal_forms.h"
#include "millrace/tokenizer/text/offset.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

class AlignedText {
 public:
  // Empties the text. It is now part of the input that begins at the input's byte `base`.
  void clear(int64_t base, bool tracked);
  // Sets the text to `text`, whose bytes come from the same bytes of the input.
  void assign(std::string_view text, int64_t base, bool tracked);

  std::string_view text() const { return text_; }
  bool tracked() const { return tracked_; }
  int64_t base() const { return base_; }
  // Returns the input offsets that the bytes [begin, end) come from. REQUIRES: tracked(), begin < end <=
  // text().size().
  Offset origin(size_t begin, size_t end) const { return {origins_[begin].begin, origins_[end - 1].end}; }

  void append(char byte, Offset origin);
  void append(uint32_t code_point, Offset origin);
  // Appends bytes without an origin. REQUIRES: !tracked().
  void append(std::string_view bytes) { text_ += bytes; }
  // Appends the bytes [begin, end) of `from`.
  void append(const AlignedText& from, size_t begin, size_t end);
  // Appends `content` as inserted text: it gets the origin of byte `before` - 1 of `from`.
  void append_inserted(std::string_view content, const AlignedText& from, size_t before);
  // Appends `chars`, the normalized form of the bytes [begin, ...) of `from`, whose first `skipped` bytes were
  // removed.
  void append_changed(std::span<const NormalizedChar> chars, const AlignedText& from, size_t begin, size_t skipped);

 private:
  // Returns the origin of text inserted before byte `at` of this text.
  Offset origin_before(size_t at) const { return at == 0 ? Offset{base_, base_} : origins_[at - 1]; }

  std::string text_;
  std::vector<Offset> origins_;  // by byte of text_, if tracked_
  int64_t base_ = 0;
  bool tracked_ = false;
};

// The characters of a text, in order.
class Characters {
 public:
  explicit Characters(std::string_view text) : text_(text) { decode(); }
  bool at_end() const { return at_ >= text_.size(); }
  // REQUIRES: !at_end().
  uint32_t value() const { return value_; }
  size_t begin() const { return at_; }
  size_t end() const { return at_ + size_; }
  void next() {
    at_ += size_;
    decode();
  }

 private:
  void decode() {
    if (at_end()) return;
    // SAFETY: uint8_t may alias any object.
    const auto begin = reinterpret_cast<const uint8_t*>(text_.data());
    const CodePoint c = decode_code_point(begin + at_, begin + text_.size());
    value_ = c.value;
    size_ = c.size;
  }
  std::string_view text_;
  size_t at_ = 0;
  size_t size_ = 0;
  uint32_t value_ = 0;
};

}  // namespace millrace::tokenizer
