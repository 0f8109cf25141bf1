// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tokens and their ids. Immutable, thread-safe.

#include <cstdint>
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
  // What is done with a token that comes twice: refuse it (`tokenizers` itself is not deterministic there), or let the
  // later id be found while both ids have the token (Unigram, whose vocabulary is a list).
  enum class Repeats { kRefused, kLastIsFound };

  // Errors: unsupported (an id twice, a token twice when that is refused, ids far above the count).
  [[nodiscard]] static Result<Vocabulary> build(std::span<const std::pair<std::string_view, uint32_t>> tokens,
                                                Repeats repeats = Repeats::kRefused);

  // The id of a token, or kNoToken.
  uint32_t find(std::string_view token) const;
  // The same for many tokens, which keep memory busy together. REQUIRES: ids has the size of tokens, at most kMany.
  void find_many(std::span<const std::string_view> tokens, std::span<uint32_t> ids) const;
  static constexpr size_t kMany = 96;
  bool contains(uint32_t id) const { return id < tokens_.size() && tokens_[id].size != kAbsent; }
  // REQUIRES: contains(id).
  std::string_view token(uint32_t id) const {
    return std::string_view(arena_).substr(tokens_[id].offset, tokens_[id].size);
  }

  // Number of tokens.
  int64_t size() const { return size_; }
  // 1 + the largest id.
  int64_t id_limit() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  struct Token {
    uint32_t offset = 0;
    uint32_t size = kAbsent;
  };
  // Open addressing; `tag` is the upper half of the hash, so that most misses never look at the arena.
  struct Slot {
    uint32_t tag = 0;
    uint32_t id = kNoToken;
  };

  uint32_t find(std::string_view token, uint64_t hash) const;
  [[nodiscard]] Status insert(std::string_view token, uint32_t id, Repeats repeats);

  std::string arena_;
  std::vector<Token> tokens_;  // by id
  std::vector<Slot> slots_;    // a power of two, at most half full
  int64_t size_ = 0;
};

}  // namespace millrace::tokenizer
