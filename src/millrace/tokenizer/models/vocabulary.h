// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tokens and their ids. Immutable, thread-safe.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/memory/huge_array.h"
#include "millrace/base/probe_table.h"
#include "millrace/base/status.h"

namespace millrace::tokenizer {

inline constexpr uint32_t kNoToken = UINT32_MAX;

class Vocabulary {
 public:
  // The treatment of a duplicate token. kRefused: an error (`tokenizers` itself is not deterministic there).
  // kLastIsFound: find() returns the later id, and both ids have the token (Unigram, whose vocabulary is a list).
  enum class Repeats { kRefused, kLastIsFound };

  using Tokens = std::span<const std::pair<std::string_view, uint32_t>>;
  // Builds a vocabulary. Errors: unsupported (an id twice, a token twice with kRefused, ids far above the count).
  [[nodiscard]] static Result<Vocabulary> build(Tokens tokens, Repeats repeats = Repeats::kRefused);

  // Returns the id of a token, or kNoToken.
  uint32_t find(std::string_view token) const;
  // Finds many tokens at once, with overlapping memory accesses. REQUIRES: ids has the size of tokens, at most kMany.
  void find_many(std::span<const std::string_view> tokens, std::span<uint32_t> ids) const;
  static constexpr size_t kMany = 96;
  bool contains(uint32_t id) const { return id < tokens_.size() && tokens_[id].size != kAbsent; }
  // REQUIRES: contains(id).
  std::string_view token(uint32_t id) const {
    return std::string_view(arena_).substr(tokens_[id].offset, tokens_[id].size);
  }

  // Bytes of all tokens together.
  size_t bytes() const { return arena_.size(); }
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
  // The key of a token in the slots. A short token is its own key, so that neither tokens_ nor the arena is read; a
  // long token has a hash. Never 0.
  struct Key {
    static constexpr size_t kShort = 7;
    Key() = default;
    explicit Key(std::string_view token);
    bool is_whole() const { return bits >> 56 <= kShort + 1; }
    // Use the upper bits; they are mixed best.
    uint64_t hash() const {
      const uint64_t mixed = bits * 0x9E3779B97F4A7C15ull;
      return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93ull;
    }
    uint64_t bits = 0;
  };
  using Keys = std::array<Key, kMany>;
  struct Slot {
    uint64_t key;  // 0: empty
    uint32_t id;
    bool is_empty() const { return key == 0; }
  };

  Vocabulary() = default;
  uint32_t find(std::string_view token, Key key) const;
  bool is_of(const Slot& slot, Key key, std::string_view token) const {
    return slot.key == key.bits && (key.is_whole() || this->token(slot.id) == token);
  }
  // Stores the tokens by id.
  [[nodiscard]] Status spell(Tokens tokens);
  // Fills the slots with the ids by token. Returns the indices of tokens whose key is there already, because the token
  // comes twice or, for a long token, another one has the same hash.
  std::vector<size_t> fill_slots(Tokens tokens);
  // Inserts a token that fill_slots() returned.
  [[nodiscard]] Status insert_again(std::string_view token, uint32_t id, Repeats repeats);

  HugeString arena_;
  HugeVector<Token> tokens_;  // by id
  ProbeTable<Slot> slots_;
  int64_t size_ = 0;
};

}  // namespace millrace::tokenizer
