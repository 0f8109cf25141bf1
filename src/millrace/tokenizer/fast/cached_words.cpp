// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/cached_words.h"

#include <algorithm>
#include <array>

namespace millrace::tokenizer {

Status CachedWords::add(std::string_view piece, std::span<const Place> places, const char* readable_end,
                        WordModel& model, std::vector<uint32_t>& ids) {
  std::array<size_t, kBatch> begins, ends;
  for (size_t i = 0; i < places.size(); ++i) {
    begins[i] = places[i].begin;
    ends[i] = places[i].end;
  }
  return add({piece.data(), begins.data(), ends.data(), places.size(), readable_end}, model, ids);
}

// The ids of words that the cache has are written first: nearly all have so few that they are written without asking
// how many. Those of the others are computed together and go into the gaps that were left for them.
Status CachedWords::add(const WordBatch& words, WordModel& model, std::vector<uint32_t>& ids) {
  WordCache::Found found;
  cache_.find(words, found);
  missing_.clear();
  gaps_.clear();
  uint32_t* written = known_ids_.data();
  size_t count = 0;
  for (size_t i = 0; i < words.size; ++i) {
    if (found[i].is_inline()) {
      count += found[i].write(written + count);
    } else if (found[i].is_known()) {
      const std::span<const uint32_t> known = cache_.stored_ids(found[i]);
      if (count + known.size() + kRoom > known_ids_.size()) {
        known_ids_.resize(2 * (count + known.size() + kRoom));
        written = known_ids_.data();
      }
      std::ranges::copy(known, written + count);
      count += known.size();
    } else {
      missing_.push_back({words[i], WordKey::of(words[i], words.readable_end)});
      gaps_.push_back(count);
    }
  }
  if (!missing_.empty()) RETURN_IF_ERROR(learn(model));
  size_t from = 0;
  for (size_t i = 0; i < missing_.size(); ++i) {
    ids.insert(ids.end(), written + from, written + gaps_[i]);
    const auto first = computed_ids_.begin() + missing_[i].first;
    ids.insert(ids.end(), first, first + missing_[i].count);
    from = gaps_[i];
  }
  ids.insert(ids.end(), written + from, written + count);
  return {};
}

// Computes the words of `missing_` and puts them into the cache.
Status CachedWords::learn(WordModel& model) {
  computed_ids_.clear();
  RETURN_IF_ERROR(model.encode_words(missing_, computed_ids_));
  for (const WordRequest& word : missing_) {
    // A word that the batch has twice is here twice.
    if (!cache_.contains(word)) cache_.insert(word, std::span(computed_ids_).subspan(word.first, word.count));
  }
  return {};
}

}  // namespace millrace::tokenizer
