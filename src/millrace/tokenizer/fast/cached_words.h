// SPDX-License-Identifier: Apache-2.0
#pragma once

// Words to ids through a WordCache and, behind it, the words that other threads have computed. What neither has is
// computed for a whole batch at once. Not thread-safe.

#include <span>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/fast/shared_words.h"
#include "millrace/tokenizer/fast/word_cache.h"

namespace millrace::tokenizer {

// Computes the ids of words. The same bytes give the same ids every time.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the ids of all `requests` to `ids` and says in each which they are.
  [[nodiscard]] virtual Status encode_words(std::span<WordRequest> requests, std::vector<uint32_t>& ids) = 0;
};

class CachedWords {
 public:
  static constexpr size_t kBatch = WordBatch::kMost;

  // `shared` holds words of the same model. It and `direct`, if any, must outlive this.
  explicit CachedWords(SharedWords& shared, DirectWords* direct = nullptr) : cache_(direct), shared_(shared) {}

  // Bytes [begin, end) of a piece of less than 4 GiB, never none.
  struct Bounds {
    uint32_t begin = 0, end = 0;
  };

  // Appends the ids of all `words`. Errors: those of `model`.
  [[nodiscard]] Status add(const WordBatch& words, WordModel& model, std::vector<uint32_t>& ids);
  // The same of those at `words` of `piece`, at most kBatch. `readable_end` is how far memory may be read.
  [[nodiscard]] Status add(std::string_view piece, std::span<const Bounds> words, const char* readable_end,
                           WordModel& model, std::vector<uint32_t>& ids);

 private:
  [[nodiscard]] Status learn(WordModel& model);
  void take_shared();

  // What a batch of words with few ids needs at most; each is written with room for the most.
  static constexpr size_t kRoom = (kBatch + 1) * PackedIds::kMost;

  WordCache cache_;
  SharedWords::User shared_;
  std::vector<uint32_t> known_ids_ =
      std::vector<uint32_t>(kRoom);     // of the words that the cache has, without the others
  std::vector<WordRequest> missing_;    // words of a batch that the cache does not have
  std::vector<size_t> gaps_;            // where in known_ids_ each belongs
  std::vector<uint32_t> computed_ids_;  // of them
  std::vector<WordRequest> unknown_;    // those of them that other threads have not computed either
  std::vector<size_t> unknown_at_;      // where in missing_ each is
};

}  // namespace millrace::tokenizer
