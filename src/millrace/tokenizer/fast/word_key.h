// SPDX-License-Identifier: Apache-2.0
#pragma once

// The keys of words in hash tables. REQUIRES everywhere: a word is not empty; memory may be read up to `readable_end`.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "millrace/base/hash/hash.h"

namespace millrace::tokenizer {

// The bytes of a word of up to eight bytes; 0 for other words. The top byte holds the size of a word of fewer than
// eight. So a word of eight bytes whose last byte is below eight, which no text has, counts as long.
struct ShortKey {
  static constexpr int kSizeShift = 56;
  static constexpr uint64_t kLeastOfEight = uint64_t{8} << kSizeShift;
  static constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;

  uint64_t bits;
  bool operator==(const ShortKey&) const = default;

  static ShortKey of(std::string_view word, const char* readable_end) {
    const uint64_t bytes = readable_end - word.data() >= 8 ? eight_from(word.data()) : all_of(word);
    const Form& form = kForms[std::min<size_t>(word.size(), 9)];
    const uint64_t bits = (bytes & form.mask) | form.size;
    return {bits < form.least ? 0 : bits};
  }

  // Use the upper bits; they are mixed best.
  uint64_t hash() const { return (bits ^ bits >> 32) * kMultiplier; }

 private:
  static uint64_t eight_from(const char* data) {
    uint64_t bytes;
    std::memcpy(&bytes, data, sizeof(bytes));
    return bytes;
  }
  // Not inline: inlined, it would make eight_from go through memory too.
  [[gnu::noinline]] static uint64_t all_of(std::string_view word) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, word.data(), std::min(word.size(), sizeof(bytes)));
    return bytes;
  }
  struct Form {
    uint64_t mask, size, least;
  };
  static constexpr std::array<Form, 10> kForms = [] {
    std::array<Form, 10> forms{};
    for (size_t i = 1; i < 8; ++i) forms[i] = {~uint64_t{0} >> (64 - 8 * i), uint64_t{i} << kSizeShift, 0};
    forms[8] = {~uint64_t{0}, 0, kLeastOfEight};
    return forms;
  }();
};

// A word of up to 15 bytes is its own key, with the size in the top byte. A longer word has a hash as its key; after
// finding it, compare the bytes.
struct WordKey {
  static constexpr size_t kInlineBytes = 15;
  uint64_t low, high;
  bool operator==(const WordKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }

  static WordKey of(std::string_view word, const char* readable_end) {
    const size_t size = word.size();
    if (size > kInlineBytes) return {xxh3_64(word), uint64_t{0xFF} << 56 | (size & (~uint64_t{0} >> 8))};
    WordKey key{0, 0};
    if (readable_end - word.data() >= 16) {
      std::memcpy(&key, word.data(), 16);
      key.low &= kMasks[size].low;
      key.high &= kMasks[size].high;
    } else {
      std::memcpy(&key, word.data(), size);
    }
    key.high |= uint64_t{size} << 56;
    return key;
  }

  bool is_inline() const { return high >> 56 != 0xFF; }
  // Use the upper bits; they are mixed best.
  uint64_t hash() const { return (low ^ (high * 0x9E3779B97F4A7C15ull)) * 0xD6E8FEB86659FD93ull; }

 private:
  // Masks for the first i bytes of 16.
  struct Mask {
    uint64_t low, high;
  };
  static constexpr std::array<Mask, kInlineBytes + 1> kMasks = [] {
    std::array<Mask, kInlineBytes + 1> masks{};
    for (size_t i = 1; i <= kInlineBytes; ++i)
      masks[i] = {~uint64_t{0} >> (64 - 8 * (i < 8 ? i : 8)), i > 8 ? ~uint64_t{0} >> (64 - 8 * (i - 8)) : 0};
    return masks;
  }();
};

}  // namespace millrace::tokenizer
