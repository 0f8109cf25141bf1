// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cuts a piece of text into words exactly where the regular expression of a tokenizer.json would, without a regular
// expression engine: each known pattern has a hand-written scanner. Linear for every input. Immutable, thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace millrace::tokenizer {

// What ByteLevel cuts by: GPT-2's expression.
inline constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Pretokenizer {
 public:
  // The scanner for `pattern` as the file has it, if there is one; an empty one makes a piece one word.
  static std::optional<Pretokenizer> find(std::string_view pattern);

  // Fills `ends` with the ends of the words that follow `begin`, as offsets in `piece`, and returns how many it wrote.
  // 0 only at the end of the piece. REQUIRES: `begin` is 0 or an end that was returned; `ends` is not empty.
  size_t next_words(std::string_view piece, size_t begin, std::span<size_t> ends) const {
    return scan_(piece, begin, ends);
  }

 private:
  using Scan = size_t (*)(std::string_view, size_t, std::span<size_t>);
  explicit Pretokenizer(Scan scan) : scan_(scan) {}
  Scan scan_;
};

}  // namespace millrace::tokenizer
