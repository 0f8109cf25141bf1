// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/cached_words.h"

#include <algorithm>
#include <array>

namespace millrace::tokenizer {

Status CachedWords::add(std::string_view piece, std::span<const Bounds> words, const char* readable_end,
                        WordModel& model, std::vector<uint32_t>& ids) {
  std::array<size_t, kBatch> begins, ends;
  for (size_t i = 0; i < words.size(); ++i) {
    begins[i] = words[i].begin;
    ends[i] = words[i].end;
  }
  return add({piece.data(), begins.data(), ends.data(), words.size(), readable_end}, model, ids);
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

// Takes the ids of words of `missing_` that other threads have computed; the others go to `unknown_`.
void CachedWords::take_shared() {
  for (const WordRequest& word : missing_)
    if (word.key.is_inline()) shared_.prefetch(word.key);
  for (size_t i = 0; i < missing_.size(); ++i) {
    WordRequest& word = missing_[i];
    const PackedIds ids = word.key.is_inline() ? shared_.find(word.key) : PackedIds::none();
    if (!ids.is_known()) {
      unknown_.push_back(word);
      unknown_at_.push_back(i);
      continue;
    }
    word.first = static_cast<uint32_t>(computed_ids_.size());
    computed_ids_.resize(word.first + PackedIds::kMost);
    word.count = static_cast<uint32_t>(ids.write(&computed_ids_[word.first]));
  }
}

// Finds the ids of the words of `missing_` and puts them into the cache.
Status CachedWords::learn(WordModel& model) {
  computed_ids_.clear();
  if (shared_.is_shared()) {
    unknown_.clear();
    unknown_at_.clear();
    take_shared();
    if (!unknown_.empty()) RETURN_IF_ERROR(model.encode_words(unknown_, computed_ids_));
    for (size_t i = 0; i < unknown_.size(); ++i) {
      const WordRequest& word = missing_[unknown_at_[i]] = unknown_[i];
      const auto ids = std::span(computed_ids_).subspan(word.first, word.count);
      if (word.key.is_inline() && PackedIds::fit(ids)) shared_.insert(word.key, PackedIds::of(ids));
    }
  } else {
    RETURN_IF_ERROR(model.encode_words(missing_, computed_ids_));
  }
  for (const WordRequest& word : missing_) {
    // A word that the batch has twice is here twice.
    if (!cache_.contains(word)) cache_.insert(word, std::span(computed_ids_).subspan(word.first, word.count));
  }
  return {};
}

}  // namespace millrace::tokenizer
