// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tokens of a byte-level model and their ids. A token is kept as the bytes it decodes to; one that is not spelled
// in the byte-level alphabet (it can never come out of the model) is kept as it is spelled. Immutable, thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::tokenizer {

inline constexpr uint32_t kNoToken = UINT32_MAX;

class Vocabulary {
 public:
  // `tokens` are spellings and ids as the file has them.
  // Errors: unsupported (an id or a token twice: `tokenizers` itself is not deterministic there; ids far above the
  // count).
  [[nodiscard]] static Result<Vocabulary> build(std::span<const std::pair<std::string_view, uint32_t>> tokens);

  // The token that is these bytes, or kNoToken.
  uint32_t find_bytes(std::string_view bytes) const;
  // The token that is spelled so, or kNoToken.
  uint32_t find(std::string_view spelled) const;

  bool contains(uint32_t id) const { return id < tokens_.size() && tokens_[id].size != kAbsent; }
  // What the token decodes to. REQUIRES: contains(id).
  std::string_view bytes(uint32_t id) const {
    return std::string_view(arena_).substr(tokens_[id].offset, tokens_[id].size);
  }
  // The token as the file spells it. REQUIRES: contains(id).
  std::string spelled(uint32_t id) const;

  // Number of tokens.
  int64_t size() const { return size_; }
  // 1 + the largest id.
  int64_t id_limit() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX >> 1;
  struct Token {
    uint32_t offset = 0;
    uint32_t size : 31 = kAbsent;
    uint32_t spellable : 1 = 1;
  };
  // Open addressing; `tag` is the upper half of the hash, so that most misses never look at the arena.
  struct Slot {
    uint32_t tag = 0;
    uint32_t id = kNoToken;
  };

  [[nodiscard]] Status insert(std::string_view spelled, uint32_t id);

  std::string arena_;
  std::vector<Token> tokens_;  // by id
  std::vector<Slot> slots_;    // a power of two, at most half full
  std::map<std::string, uint32_t, std::less<>> unspellable_;
  int64_t size_ = 0;
};

}  // namespace millrace::tokenizer
