// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/byte_bpe.h"

#include <algorithm>
#include <bit>
#include <string>

#include "millrace/tokenizer/byte_map.h"

namespace millrace::tokenizer {
namespace {

// Positions in a word are 32 bits wide. A longer word is merged in parts; nothing else could hold its symbols either.
constexpr size_t kLongestWord = size_t{1} << 31;

// A rank and a place in a short word share 32 bits.
constexpr int kPlaceBits = 6;
constexpr size_t kMaxMerges = size_t{1} << (32 - kPlaceBits);

}  // namespace

void ByteBpe::WholeWords::resize(size_t words) {
  const size_t slots = std::bit_ceil(words * 2 + 2);
  keys_.assign(slots, WordKey{0, 0});
  ids_.assign(slots, kNoToken);
  shift_ = 64 - std::countr_zero(slots);
}

void ByteBpe::WholeWords::insert(const WordKey& key, uint32_t id) {
  size_t i = first_slot(key);
  while (ids_[i] != kNoToken) i = (i + 1) & (ids_.size() - 1);
  keys_[i] = key;
  ids_[i] = id;
}

uint32_t ByteBpe::WholeWords::find(const WordKey& key) const {
  for (size_t i = first_slot(key);; i = (i + 1) & (ids_.size() - 1)) {
    if (keys_[i] == key) return ids_[i];
    if (ids_[i] == kNoToken) return kNoToken;
  }
}

ByteBpe::ByteBpe(const CharBpe& model)
    : merges_(&model.merges()),
      long_words_(*Vocabulary::build({})),
      byte_merges_(size_t{256} * 256, MergeTable::kNone),
      ignore_merges_(model.ignores_merges()) {
  for (size_t b = 0; b < byte_tokens_.size(); ++b) {
    const char byte = static_cast<char>(b);
    std::string spelled;
    append_spelling_of({&byte, 1}, spelled);
    byte_tokens_[b] = model.vocabulary().find(spelled);
  }
  for (size_t pair = 0; pair < byte_merges_.size(); ++pair) {
    const uint32_t left = byte_tokens_[pair >> 8], right = byte_tokens_[pair & 0xFF];
    if (left != kNoToken && right != kNoToken) byte_merges_[pair] = merges_->find(left, right);
  }
}

// Only tokens that spell bytes can come out of the model.
void ByteBpe::find_whole_words(const Vocabulary& spelled) {
  std::string arena;
  std::vector<std::pair<size_t, uint32_t>> ends;
  for (uint32_t id = 0; id < spelled.id_limit(); ++id)
    if (spelled.contains(id) && append_bytes_of(spelled.token(id), arena)) ends.emplace_back(arena.size(), id);
  whole_words_.resize(ends.size());
  VocabularySpec long_words;
  std::vector<uint32_t> ids;
  size_t begin = 0;
  for (const auto& [end, id] : ends) {
    const auto word = std::string_view(arena).substr(begin, end - begin);
    begin = end;
    if (word.empty()) continue;
    const bool is_short = word.size() <= WordKey::kInlineBytes;
    if (!is_short && ignore_merges_) long_words.emplace_back(word, id);
    if (!is_short) continue;
    ids.clear();
    if (!ignore_merges_) merge_short(word, ids);
    if (ignore_merges_ || (ids.size() == 1 && ids[0] == id))
      whole_words_.insert(WordKey::of(word, arena.data() + arena.size()), id);
  }
  long_words_ = *Vocabulary::build(long_words);  // the spellings differ, so the bytes do
}

std::optional<ByteBpe> ByteBpe::build(const CharBpe& model) {
  if (model.has_affixes() || model.merge_count() >= kMaxMerges) return std::nullopt;
  ByteBpe bpe(model);
  const bool complete = std::ranges::find(bpe.byte_tokens_, kNoToken) == bpe.byte_tokens_.end();
  if (!complete && !model.drops_unknown()) return std::nullopt;
  bpe.find_whole_words(model.vocabulary());
  return bpe;
}

// One word of up to kShortWord bytes while it is merged. The lowest rank is found by looking at all of them: fewer
// steps than a queue for words of usual length. A symbol that was joined to the one before it stays where it is,
// without a merge.
class ByteBpe::Lane {
 public:
  void start(const ByteBpe& bpe, std::string_view word) {
    count_ = 0;
    std::array<uint8_t, kShortWord> bytes;
    for (const char b : word) {
      bytes[count_] = static_cast<uint8_t>(b);
      symbols_[count_] = bpe.byte_tokens_[bytes[count_]];
      count_ += symbols_[count_] != kNoToken;
    }
    for (size_t i = 0; i < count_; ++i) {
      previous_[i] = static_cast<uint8_t>(i - 1);
      next_[i] = static_cast<uint8_t>(i + 1);
      set_merge(i, i + 1 < count_ ? bpe.byte_merges_[size_t{bytes[i]} << 8 | bytes[i + 1]] : MergeTable::kNone);
    }
    for (size_t i = count_; i % kStride != 0; ++i) order_[i] = kNoMerge;
  }

  // Joins the best pair and asks memory for the merges of the new symbol with its neighbours. False: there is none.
  bool join(const MergeTable& table) {
    std::array<uint32_t, kStride> lowest;
    lowest.fill(kNoMerge);
    for (size_t i = 0; i < count_; i += kStride)
      for (size_t k = 0; k < kStride; ++k) lowest[k] = std::min(lowest[k], order_[i + k]);
    const uint32_t first = std::min(std::min(lowest[0], lowest[1]), std::min(lowest[2], lowest[3]));
    if (first == kNoMerge) return false;
    const size_t best = first & kPlaceMask, joined = next_[best], right = next_[joined];
    symbols_[best] = results_[best];
    order_[joined] = order_[best] = kNoMerge;
    next_[best] = static_cast<uint8_t>(right);
    joined_ = best;
    if (right < count_) {
      previous_[right] = static_cast<uint8_t>(best);
      table.prefetch(symbols_[best], symbols_[right]);
    }
    if (best > 0) table.prefetch(symbols_[previous_[best]], symbols_[best]);
    return true;
  }

  // Looks up what join asked for.
  void find_merges(const MergeTable& table) {
    const size_t right = next_[joined_];
    if (right < count_) set_merge(joined_, table.find(symbols_[joined_], symbols_[right]));
    if (joined_ == 0) return;
    const size_t left = previous_[joined_];
    set_merge(left, table.find(symbols_[left], symbols_[joined_]));
  }

  void append_to(std::vector<uint32_t>& ids) const {
    for (size_t i = 0; i < count_; i = next_[i]) ids.push_back(symbols_[i]);
  }

 private:
  static constexpr uint32_t kNoMerge = UINT32_MAX;
  static constexpr uint32_t kPlaceMask = (1 << kPlaceBits) - 1;
  static constexpr size_t kStride = 4;
  static_assert(kShortWord <= kPlaceMask && kShortWord % kStride == 0);

  // `merge` as MergeTable has it.
  void set_merge(size_t i, uint64_t merge) {
    const auto rank = static_cast<uint32_t>(merge >> 32);
    order_[i] = merge == MergeTable::kNone ? kNoMerge : rank << kPlaceBits | static_cast<uint32_t>(i);
    results_[i] = static_cast<uint32_t>(merge);
  }

  std::array<uint32_t, kShortWord> symbols_;
  std::array<uint32_t, kShortWord> order_;    // of the merge of a symbol with the next one: its rank, then its place
  std::array<uint32_t, kShortWord> results_;  // what that merge gives
  std::array<uint8_t, kShortWord> previous_, next_;
  size_t count_ = 0, joined_ = 0;
};

uint32_t ByteBpe::find_whole_word(std::string_view word, const WordKey& key) const {
  if (key.is_inline()) return whole_words_.find(key);
  return ignore_merges_ ? long_words_.find(word) : kNoToken;
}

void ByteBpe::encode_word(std::string_view word, const WordKey& key, MergeScratch& scratch,
                          std::vector<uint32_t>& ids) const {
  if (const uint32_t id = find_whole_word(word, key); id != kNoToken) return ids.push_back(id);
  if (word.size() <= kShortWord) return merge_short(word, ids);
  for (; word.size() > kLongestWord; word.remove_prefix(kLongestWord))
    merge_long(word.substr(0, kLongestWord), scratch, ids);
  merge_long(word, scratch, ids);
}

void ByteBpe::encode_words(std::span<Request> requests, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
  constexpr size_t kLanes = 8;
  std::array<Lane, kLanes> storage;
  std::array<Lane*, kLanes> lanes;
  std::array<Request*, kLanes> words;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = &storage[i];
  size_t busy = 0, taken = 0;
  const auto finish = [&](Request& request, size_t first) {
    request.first = static_cast<uint32_t>(first);
    request.count = static_cast<uint32_t>(ids.size() - first);
  };
  for (const Request& request : requests)
    if (request.key.is_inline()) whole_words_.prefetch(request.key);
  // Takes words until one needs a lane; false when there is none left.
  const auto take = [&](size_t lane) {
    for (; taken < requests.size();) {
      Request& request = requests[taken++];
      const size_t first = ids.size();
      const uint32_t id = find_whole_word(request.word, request.key);
      if (id == kNoToken && request.word.size() <= kShortWord) {
        lanes[lane]->start(*this, request.word);
        words[lane] = &request;
        if (lanes[lane]->join(*merges_)) return true;
        lanes[lane]->append_to(ids);
      } else if (id != kNoToken) {
        ids.push_back(id);
      } else {
        encode_word(request.word, request.key, scratch, ids);
      }
      finish(request, first);
    }
    return false;
  };
  while (busy < kLanes && take(busy)) ++busy;
  while (busy > 0) {
    for (size_t i = 0; i < busy;) {
      lanes[i]->find_merges(*merges_);
      if (lanes[i]->join(*merges_)) {
        ++i;
        continue;
      }
      const size_t first = ids.size();
      lanes[i]->append_to(ids);
      finish(*words[i], first);
      if (take(i)) {
        ++i;
      } else {
        --busy;
        std::swap(lanes[i], lanes[busy]);
        words[i] = words[busy];
      }
    }
  }
}

void ByteBpe::merge_short(std::string_view word, std::vector<uint32_t>& ids) const {
  Lane lane;
  lane.start(*this, word);
  while (lane.join(*merges_)) lane.find_merges(*merges_);
  lane.append_to(ids);
}

void ByteBpe::merge_long(std::string_view word, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
  scratch.symbols.clear();
  scratch.sizes.clear();
  for (const char b : word)
    if (const uint32_t id = byte_tokens_[static_cast<uint8_t>(b)]; id != kNoToken) scratch.symbols.push_back(id);
  merge_symbols(*merges_, scratch);
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

}  // namespace millrace::tokenizer
