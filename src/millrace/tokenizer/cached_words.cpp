// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/cached_words.h"

#include <array>

namespace millrace::tokenizer {

Status CachedWords::add(std::string_view piece, size_t begin, std::span<const size_t> ends, const char* readable_end,
                        WordModel& model, std::vector<uint32_t>& ids) {
  const auto word_at = [text = piece.data(), begin, to = ends.data()](size_t i) {
    const size_t from = i == 0 ? begin : to[i - 1];
    return std::string_view(text + from, to[i] - from);
  };
  return add_words(ends.size(), word_at, readable_end, model, ids);
}

Status CachedWords::add(std::string_view piece, std::span<const Place> places, const char* readable_end,
                        WordModel& model, std::vector<uint32_t>& ids) {
  const auto word_at = [text = piece.data(), places](size_t i) {
    return std::string_view(text + places[i].begin, places[i].end - places[i].begin);
  };
  return add_words(places.size(), word_at, readable_end, model, ids);
}

// The ids of words that the cache has are written first: nearly all have so few that they are written without asking
// how many. Those of the others are computed together and go into the gaps that were left for them.
template <class WordAt>
Status CachedWords::add_words(size_t words, const WordAt& word_at, const char* readable_end, WordModel& model,
                              std::vector<uint32_t>& ids) {
  std::array<PackedIds, kBatch> found;
  cache_.find(words, word_at, readable_end, found);
  missing_.clear();
  gaps_.clear();
  uint32_t* written = known_ids_.data();
  size_t count = 0;
  for (size_t i = 0; i < words; ++i) {
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
      missing_.push_back({word_at(i), WordKey::of(word_at(i), readable_end)});
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
