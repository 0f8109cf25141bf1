// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/byte_bpe.h"

#include <algorithm>
#include <string>

#include "millrace/tokenizer/byte_map.h"

namespace millrace::tokenizer {
namespace {

// Positions in a word are 32 bits wide. A longer word is merged in parts; nothing else could hold its symbols either.
constexpr size_t kLongestWord = size_t{1} << 31;

// Tokens that spell bytes, by those bytes. No other token can come out of the model.
Vocabulary tokens_by_bytes(const Vocabulary& spelled) {
  std::string arena;
  std::vector<std::pair<size_t, uint32_t>> ends;
  for (uint32_t id = 0; id < spelled.id_limit(); ++id)
    if (spelled.contains(id) && append_bytes_of(spelled.token(id), arena)) ends.emplace_back(arena.size(), id);
  VocabularySpec tokens;
  size_t begin = 0;
  for (const auto& [end, id] : ends) {
    tokens.emplace_back(std::string_view(arena).substr(begin, end - begin), id);
    begin = end;
  }
  return *Vocabulary::build(tokens);  // the spellings differ, so the bytes do
}

}  // namespace

ByteBpe::ByteBpe(const CharBpe& model, Vocabulary words)
    : merges_(&model.merges()), words_(std::move(words)), ignore_merges_(model.ignores_merges()) {
  for (size_t b = 0; b < byte_tokens_.size(); ++b) {
    const char byte = static_cast<char>(b);
    std::string spelled;
    append_spelling_of({&byte, 1}, spelled);
    byte_tokens_[b] = model.vocabulary().find(spelled);
  }
}

std::optional<ByteBpe> ByteBpe::build(const CharBpe& model) {
  if (model.has_affixes()) return std::nullopt;
  ByteBpe bpe(model, model.ignores_merges() ? tokens_by_bytes(model.vocabulary()) : *Vocabulary::build({}));
  const bool complete = std::ranges::find(bpe.byte_tokens_, kNoToken) == bpe.byte_tokens_.end();
  if (!complete && !model.drops_unknown()) return std::nullopt;
  return bpe;
}

void ByteBpe::encode_word(std::string_view word, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
  if (ignore_merges_) {
    if (const uint32_t id = words_.find(word); id != kNoToken) {
      ids.push_back(id);
      return;
    }
  }
  if (word.size() <= kShortWord) return merge_short(word, ids);
  for (; word.size() > kLongestWord; word.remove_prefix(kLongestWord))
    merge_long(word.substr(0, kLongestWord), scratch, ids);
  merge_long(word, scratch, ids);
}

// Finds the lowest rank by looking at all of them: fewer steps than a queue for words of usual length.
void ByteBpe::merge_short(std::string_view word, std::vector<uint32_t>& ids) const {
  uint32_t symbols[kShortWord];
  uint64_t merges[kShortWord];  // of a symbol with the next one
  size_t count = 0;
  for (const char b : word) {
    symbols[count] = byte_tokens_[static_cast<uint8_t>(b)];
    count += symbols[count] != kNoToken;
  }
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_->find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    const size_t last = count - 1;
    const size_t best = static_cast<size_t>(std::min_element(merges, merges + last) - merges);
    if (merges[best] == MergeTable::kNone) break;
    symbols[best] = static_cast<uint32_t>(merges[best]);
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    if (best + 1 < last) std::copy(merges + best + 2, merges + last, merges + best + 1);
    --count;
    if (best > 0) merges[best - 1] = merges_->find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = merges_->find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
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
