// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "millrace/tokenizer/byte_map.h"

namespace millrace::tokenizer {
namespace {

constexpr uint32_t kNoPosition = UINT32_MAX;
// Positions in a word are 32 bits wide. A longer word is merged in parts; nothing else could hold its symbols either.
constexpr size_t kLongestWord = size_t{1} << 31;
// Scratch memory of a word above this (28 MiB of it) is given back.
constexpr size_t kKeptSymbols = size_t{1} << 20;

}  // namespace

MergeTable::MergeTable(size_t merges)
    : slots_(std::bit_ceil(merges * 3 / 2 + 2)),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::insert(uint32_t left, uint32_t right, uint32_t rank, uint32_t joined) {
  const uint64_t key = uint64_t{left} << 32 | right;
  size_t i = first_slot(key);
  while (slots_[i].key != kNone && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, uint64_t{rank} << 32 | joined};
}

Bpe::Bpe(Vocabulary vocabulary, MergeTable merges, bool ignore_merges)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), ignore_merges_(ignore_merges) {
  for (size_t b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_tokens_[b] = vocabulary_.find_bytes({&byte, 1});
  }
}

Result<Bpe> Bpe::build(const BpeSpec& spec) {
  auto vocabulary = with_context(Vocabulary::build(spec.vocab), "model.vocab");
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  if (spec.merges.size() >= UINT32_MAX)
    return fail(ErrorCode::kUnsupported, "model.merges: {} merges", spec.merges.size());
  Bpe bpe(std::move(*vocabulary), MergeTable(spec.merges.size()), spec.ignore_merges);
  const bool complete = std::ranges::find(bpe.byte_tokens_, kNoToken) == bpe.byte_tokens_.end();
  if (!complete && !spec.out_of_vocabulary_rule.empty())
    return fail(ErrorCode::kUnsupported, "model: {} with a vocabulary that lacks some bytes is not supported",
                spec.out_of_vocabulary_rule);
  RETURN_IF_ERROR(bpe.insert_merges(spec));
  return bpe;
}

Status Bpe::insert_merges(const BpeSpec& spec) {
  std::string joined;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    joined.clear();
    uint32_t ids[3];
    size_t left_size = 0;
    const bool spellable = append_bytes_of(left, joined) && (left_size = joined.size(), append_bytes_of(right, joined));
    if (spellable) {
      const std::string_view bytes = joined;
      ids[0] = vocabulary_.find_bytes(bytes.substr(0, left_size));
      ids[1] = vocabulary_.find_bytes(bytes.substr(left_size));
      ids[2] = vocabulary_.find_bytes(bytes);
    } else {
      ids[0] = vocabulary_.find(left);
      ids[1] = vocabulary_.find(right);
      ids[2] = vocabulary_.find(std::string(left).append(right));
    }
    if (std::ranges::find(ids, kNoToken) != std::end(ids))
      return fail(ErrorCode::kInvalidArgument, "model.merges[{}]: \"{}\", \"{}\" or the two joined is no token", rank,
                  left, right);
    merges_.insert(ids[0], ids[1], static_cast<uint32_t>(rank), ids[2]);
  }
  return {};
}

void Bpe::encode_word(std::string_view word, Scratch& scratch, std::vector<uint32_t>& ids) const {
  if (ignore_merges_) {
    if (const uint32_t id = vocabulary_.find_bytes(word); id != kNoToken) {
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
void Bpe::merge_short(std::string_view word, std::vector<uint32_t>& ids) const {
  uint32_t symbols[kShortWord];
  uint64_t merges[kShortWord];  // of a symbol with the next one
  size_t count = 0;
  for (const char b : word) {
    symbols[count] = byte_tokens_[static_cast<uint8_t>(b)];
    count += symbols[count] != kNoToken;
  }
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    const size_t last = count - 1;
    const size_t best = static_cast<size_t>(std::min_element(merges, merges + last) - merges);
    if (merges[best] == MergeTable::kNone) break;
    symbols[best] = static_cast<uint32_t>(merges[best]);
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    if (best + 1 < last) std::copy(merges + best + 2, merges + last, merges + best + 1);
    --count;
    if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

// A linked list of symbols and a queue of (rank, position); an entry is stale when the rank at its position is another
// by now.
void Bpe::merge_long(std::string_view word, Scratch& scratch, std::vector<uint32_t>& ids) const {
  auto& [symbols, previous, next, merges, queue] = scratch;
  symbols.clear();
  for (const char b : word)
    if (const uint32_t id = byte_tokens_[static_cast<uint8_t>(b)]; id != kNoToken) symbols.push_back(id);
  if (symbols.empty()) return;
  const size_t count = symbols.size();
  previous.resize(count);
  next.resize(count);
  merges.assign(count, MergeTable::kNone);
  queue.clear();
  const auto entry = [&](uint32_t i) { return (merges[i] & ~uint64_t{UINT32_MAX}) | i; };
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kNoPosition : i - 1;
    next[i] = i + 1 == count ? kNoPosition : i + 1;
    if (next[i] != kNoPosition) merges[i] = merges_.find(symbols[i], symbols[i + 1]);
    if (merges[i] != MergeTable::kNone) queue.push_back(entry(i));
  }
  const auto later = std::greater<uint64_t>();
  std::make_heap(queue.begin(), queue.end(), later);
  const auto refresh = [&](uint32_t i) {
    merges[i] = next[i] == kNoPosition ? MergeTable::kNone : merges_.find(symbols[i], symbols[next[i]]);
    if (merges[i] == MergeTable::kNone) return;
    queue.push_back(entry(i));
    std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    const uint64_t top = queue.front();
    std::pop_heap(queue.begin(), queue.end(), later);
    queue.pop_back();
    const auto i = static_cast<uint32_t>(top);
    if (merges[i] == MergeTable::kNone || entry(i) != top) continue;
    symbols[i] = static_cast<uint32_t>(merges[i]);
    const uint32_t joined = next[i];
    merges[joined] = MergeTable::kNone;
    next[i] = next[joined];
    if (next[i] != kNoPosition) previous[next[i]] = i;
    refresh(i);
    if (previous[i] != kNoPosition) refresh(previous[i]);
  }
  for (uint32_t i = 0; i != kNoPosition; i = next[i]) ids.push_back(symbols[i]);
  if (count > kKeptSymbols) scratch = {};
}

}  // namespace millrace::tokenizer
