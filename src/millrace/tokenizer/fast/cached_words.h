// SPDX-License-Identifier: Apache-2.0
#pragma once

// Maps words to ids through a WordCache, then through the words that other threads have computed. Computes the
// remaining words of a whole batch at once. Not thread-safe.

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
  // Appends the ids of all `requests` to `ids`, and stores in each request which ids are its own.
  [[nodiscard]] virtual Status encode_words(std::span<WordRequest> requests, std::vector<uint32_t>& ids) = 0;
};

class CachedWords {
 public:
  static constexpr size_t kBatch = WordBatch::kMost;

  // `shared` holds words of the same model. `shared` and `direct`, if any, must outlive the CachedWords.
  explicit CachedWords(SharedWords& shared, DirectWords* direct = nullptr) : cache_(direct), shared_(shared) {}

  // Bytes [begin, end) of a piece of less than 4 GiB; never empty.
  struct Bounds {
    uint32_t begin = 0, end = 0;
  };

  // Appends the ids of all `words`. Errors: those of `model`.
  [[nodiscard]] Status add(const WordBatch& words, WordModel& model, std::vector<uint32_t>& ids);
  // Does the same for at most kBatch words of `piece`, given by their bounds. Memory may be read up to `readable_end`.
  [[nodiscard]] Status add(std::string_view piece, std::span<const Bounds> words, const char* readable_end,
                           WordModel& model, std::vector<uint32_t>& ids);

 private:
  [[nodiscard]] Status learn(WordModel& model);
  void take_shared();

  // Room for a batch of words with few ids each: every word is written with room for the largest number.
  static constexpr size_t kRoom = (kBatch + 1) * PackedIds::kMost;

  WordCache cache_;
  SharedWords::User shared_;
  // Ids of the words that the cache has, without the others.
  std::vector<uint32_t> known_ids_ = std::vector<uint32_t>(kRoom);
  std::vector<WordRequest> missing_;    // words of a batch that the cache does not have
  std::vector<size_t> gaps_;            // place of each of missing_ in known_ids_
  std::vector<uint32_t> computed_ids_;  // ids of missing_
  std::vector<WordRequest> unknown_;    // those of missing_ that no other thread has computed either
  std::vector<size_t> unknown_at_;      // place of each of unknown_ in missing_
};

}  // namespace millrace::tokenizer
