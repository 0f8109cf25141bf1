// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/cached_words.h"

#include <array>

namespace millrace::tokenizer {

Status CachedWords::add(std::string_view piece, size_t begin, std::span<const size_t> ends, const char* readable_end,
                        WordModel& model, std::vector<uint32_t>& ids) {
  const auto word_at = [&](size_t i) {
    const size_t from = i == 0 ? begin : ends[i - 1];
    return std::string_view(piece.data() + from, ends[i] - from);
  };
  return add_words(ends.size(), word_at, readable_end, model, ids);
}

Status CachedWords::add(std::string_view piece, std::span<const Place> places, const char* readable_end,
                        WordModel& model, std::vector<uint32_t>& ids) {
  const auto word_at = [&](size_t i) {
    return std::string_view(piece.data() + places[i].begin, places[i].end - places[i].begin);
  };
  return add_words(places.size(), word_at, readable_end, model, ids);
}

// First the places of all words in the cache, so that memory brings them while the others are computed; then the words
// that are not there; then the ids, of which nearly all words have at most kInlineIds: these are written without asking
// how many they are.
template <class WordAt>
Status CachedWords::add_words(size_t words, const WordAt& word_at, const char* readable_end, WordModel& model,
                              std::vector<uint32_t>& ids) {
  constexpr uint32_t kInlineIds = WordCache::kInlineIds;
  std::array<WordKey, kBatch> keys;
  std::array<const WordCache::Slot*, kBatch> slots;  // at first a word's bucket, then its slot
  std::array<uint32_t, kBatch * kInlineIds> written;
  for (size_t i = 0; i < words; ++i) {
    keys[i] = WordKey::of(word_at(i), readable_end);
    slots[i] = cache_.bucket(keys[i]);
  }
  requests_.clear();
  for (size_t i = 0; i < words; ++i) {
    slots[i] = WordCache::find(slots[i], keys[i]);
    if (slots[i] == nullptr) requests_.push_back({word_at(i), keys[i]});
  }
  if (!requests_.empty()) {
    const size_t old_buckets = cache_.bucket_count();
    RETURN_IF_ERROR(learn(model));
    if (cache_.bucket_count() != old_buckets) std::fill_n(slots.begin(), words, nullptr);
  }
  size_t count = 0;
  learned_ = requests_.begin();
  for (size_t i = 0; i < words; ++i) {
    // A word that was learned since may have moved another one or driven it out.
    if (slots[i] == nullptr || !(slots[i]->key == keys[i])) slots[i] = WordCache::find(cache_.bucket(keys[i]), keys[i]);
    const WordCache::Slot* const found = slots[i];
    if (found != nullptr && found->count <= kInlineIds) {
      std::memcpy(&written[count], found->ids, sizeof(found->ids));
      count += found->count;
    } else {
      ids.insert(ids.end(), written.begin(), written.begin() + static_cast<ptrdiff_t>(count));
      count = 0;
      RETURN_IF_ERROR(add_slow(word_at(i), keys[i], found, model, ids));
    }
  }
  ids.insert(ids.end(), written.begin(), written.begin() + static_cast<ptrdiff_t>(count));
  return {};
}

// Puts the words of `requests_` into the cache.
Status CachedWords::learn(WordModel& model) {
  word_ids_.clear();
  RETURN_IF_ERROR(model.encode_words(requests_, word_ids_));
  for (const WordRequest& request : requests_) {
    // A word that the batch has twice is here twice.
    if (WordCache::find(cache_.bucket(request.key), request.key) != nullptr) continue;
    cache_.insert(request.key, request.word, std::span(word_ids_).subspan(request.first, request.count));
  }
  return {};
}

// A word that has many ids or is long, or that others have driven out of the cache.
Status CachedWords::add_slow(std::string_view word, const WordKey& key, const WordCache::Slot* found, WordModel& model,
                             std::vector<uint32_t>& ids) {
  while (learned_ != requests_.end() && learned_->word.data() < word.data()) ++learned_;
  std::span<const uint32_t> known;
  if (learned_ != requests_.end() && learned_->word.data() == word.data()) {
    known = std::span(word_ids_).subspan(learned_->first, learned_->count);
  } else if (found == nullptr || !cache_.stored_ids(*found, word, known)) {
    WordRequest request{word, key};
    return model.encode_words({&request, 1}, ids);
  }
  ids.insert(ids.end(), known.begin(), known.end());
  return {};
}

}  // namespace millrace::tokenizer
