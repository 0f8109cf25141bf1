// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the bytes of a CSV file that can end a cell: the delimiter, quotes and line ends. A cursor belongs to one
// thread; the text must outlive it.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millrace::formats::detail {

// Sets bit i % 64 of marks[i / 64] where text[i] is `delimiter`, '"', '\n' or '\r', and clears the others.
// REQUIRES: `marks` has a word for every 64 bytes begun.
using MarkSeparators = void (*)(std::string_view text, char delimiter, uint64_t* marks);

// Works without vector instructions. The other implementations are tested against it.
void mark_separators_plain(std::string_view text, char delimiter, uint64_t* marks);
// Returns the fastest implementation that this processor can run.
MarkSeparators mark_separators();

// Walks over the marks of a text. Computes the marks for some KiB at a time.
class SeparatorCursor {
 public:
  SeparatorCursor(std::string_view text, char delimiter, size_t begin);

  // Returns the position of the next mark and moves past it; text.size() when there is none.
  size_t next() {
    while (bits_ == 0) {
      if (++word_ >= words_ && !refill(window_ + words_ * 64)) return text_.size();
      bits_ = marks_[word_];
    }
    const size_t at = window_ + word_ * 64 + static_cast<size_t>(std::countr_zero(bits_));
    bits_ &= bits_ - 1;
    return at;
  }
  // Makes next() continue with the first mark at or after `at`.
  void skip_to(size_t at);

 private:
  static constexpr size_t kWords = 256;  // 16 KiB of text: text and marks stay in the first-level cache

  bool refill(size_t window);

  const std::string_view text_;
  const char delimiter_;
  const MarkSeparators mark_;
  std::array<uint64_t, kWords> marks_;
  size_t window_ = 0;  // offset in the text where the marks begin
  size_t words_ = 0, word_ = 0;
  uint64_t bits_ = 0;  // marks of the current word that next() has not returned
};

}  // namespace millrace::formats::detail
