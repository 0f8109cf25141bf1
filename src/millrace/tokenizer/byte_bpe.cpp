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
  if (model.has_affixes() || model.merge_count() >= MergeLane::kMaxMerges) return std::nullopt;
  ByteBpe bpe(model);
  const bool complete = std::ranges::find(bpe.byte_tokens_, kNoToken) == bpe.byte_tokens_.end();
  if (!complete && !model.drops_unknown()) return std::nullopt;
  bpe.find_whole_words(model.vocabulary());
  return bpe;
}

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

void ByteBpe::encode_words(std::span<WordRequest> requests, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
  for (const WordRequest& request : requests)
    if (request.key.is_inline()) whole_words_.prefetch(request.key);
  merge_in_lanes(*merges_, requests, ids, [&](const WordRequest& request, MergeLane& lane) {
    const uint32_t id = find_whole_word(request.word, request.key);
    if (id == kNoToken && request.word.size() <= kShortWord) {
      start(lane, request.word);
      return true;
    }
    if (id != kNoToken)
      ids.push_back(id);
    else
      encode_word(request.word, request.key, scratch, ids);
    return false;
  });
}

void ByteBpe::start(MergeLane& lane, std::string_view word) const {
  std::array<uint8_t, kShortWord> bytes;
  std::array<uint32_t, kShortWord> symbols;
  size_t count = 0;
  for (const char b : word) {
    bytes[count] = static_cast<uint8_t>(b);
    symbols[count] = byte_tokens_[bytes[count]];
    count += symbols[count] != kNoToken;
  }
  lane.start(symbols.data(), count, [&](size_t i) { return byte_merges_[size_t{bytes[i]} << 8 | bytes[i + 1]]; });
}

void ByteBpe::merge_short(std::string_view word, std::vector<uint32_t>& ids) const {
  MergeLane lane;
  start(lane, word);
  lane.run(*merges_, ids);
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
