// SPDX-License-Identifier: Apache-2.0
#pragma once

// What words are known by in hash tables. Words of up to 15 bytes are their own key, with the size in the top byte. A
// longer one is known by its hash; who finds it has to compare its bytes.

#include <cstdint>
#include <cstring>
#include <string_view>

#include "millrace/base/hash.h"

namespace millrace::tokenizer {

struct WordKey {
  static constexpr size_t kInlineBytes = 15;
  uint64_t low, high;
  bool operator==(const WordKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }

  // `readable_end` is how far past the word memory may be read. REQUIRES: word is not empty.
  static WordKey of(std::string_view word, const char* readable_end) {
    const size_t size = word.size();
    if (size > kInlineBytes) return {xxh3_64(word), uint64_t{0xFF} << 56 | (size & (~uint64_t{0} >> 8))};
    WordKey key{0, 0};
    if (readable_end - word.data() >= 16) {
      std::memcpy(&key, word.data(), 16);
      key.low &= ~uint64_t{0} >> (64 - 8 * (size < 8 ? size : 8));
      key.high &= size > 8 ? ~uint64_t{0} >> (64 - 8 * (size - 8)) : 0;
    } else {
      std::memcpy(&key, word.data(), size);
    }
    key.high |= uint64_t{size} << 56;
    return key;
  }

  bool is_inline() const { return high >> 56 != 0xFF; }
  // The upper bits are the better ones.
  uint64_t hash() const { return (low ^ (high * 0x9E3779B97F4A7C15ull)) * 0xD6E8FEB86659FD93ull; }
};

}  // namespace millrace::tokenizer
