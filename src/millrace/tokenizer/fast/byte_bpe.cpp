// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/byte_bpe.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "millrace/tokenizer/fast/long_words.h"
#include "millrace/tokenizer/file/load_threads.h"
#include "millrace/tokenizer/text/byte_map.h"

namespace millrace::tokenizer {
namespace {

// Positions in a word are 32 bits wide. A longer word is merged in parts.
constexpr size_t kLongestPiece = size_t{1} << 31;

}  // namespace

ByteBpe::TokenBytes::TokenBytes(const Vocabulary& spelled)
    : bytes(make_huge_array<char>(spelled.bytes() + 1)), readable_end(bytes.get() + spelled.bytes()) {
  tokens.reserve(static_cast<size_t>(spelled.size()));
  char* at = bytes.get();
  for (uint32_t id = 0; id < spelled.id_limit(); ++id) {
    if (!spelled.contains(id)) continue;
    char* const end = write_bytes_of(spelled.token(id), at);
    if (end == nullptr || end == at) continue;
    tokens.emplace_back(std::string_view(at, end), id);
    at = end;
  }
}

void ByteBpe::WholeWords::reserve(size_t words) {
  words_.reserve(words);
  slots_ = ProbeTable<Slot>(words);
}

void ByteBpe::WholeWords::insert(const WordKey& key, uint32_t id) {
  Slot& slot = slots_.find(key.hash(), [](const Slot&) { return false; });
  words_.push_back({key, id});
  slot = {tag(key), static_cast<uint32_t>(words_.size())};
}

uint32_t ByteBpe::WholeWords::find(const WordKey& key) const {
  const uint32_t wanted = tag(key);
  const Slot& slot = slots_.find(
      key.hash(), [&](const Slot& other) { return other.tag == wanted && words_[other.place - 1].key == key; });
  return slot.is_empty() ? kNoToken : words_[slot.place - 1].id;
}

ByteBpe::ByteBpe(const CharBpe& model)
    : merges_(&model.merges()),
      long_words_(*Vocabulary::build({})),
      byte_pairs_(size_t{256} * 256),
      ignore_merges_(model.ignores_merges()) {
  for (size_t b = 0; b < byte_tokens_.size(); ++b) {
    const char byte = static_cast<char>(b);
    std::string spelled;
    append_spelling_of({&byte, 1}, spelled);
    byte_tokens_[b] = model.vocabulary().find(spelled);
  }
}

// Bytes alone decide most first joins of a word: where two bytes have a merge of a lower rank than any merge
// that takes one of the two away, whatever token the other neighbour is in by then. Let r be the rank of the two. While
// they lie side by side as single bytes the best pair has a rank of at most r, so a merge of a higher rank does not
// come before them; all that could touch them are those two kinds of merges and their own. So they are joined in the
// end. Having them joined from the start changes nothing else if what the joined token itself takes part in has a
// higher rank than r (else the pair is not `sure`): until the two would have been joined, the best pair is one of rank
// r or less, which is there in both, and of equals the leftmost one is the same.
void ByteBpe::find_byte_pairs(const TokenBytes& tokens, size_t id_limit) {
  // What the merges of a token need of it.
  struct Use {
    uint32_t least_rank = kNoRank;
    int16_t byte = -1;  // of a token that is one
    uint8_t first = 0, last = 0;
  };
  HugeVector<Use> uses(id_limit);
  for (size_t b = 0; b < byte_tokens_.size(); ++b)
    if (byte_tokens_[b] != kNoToken) uses[byte_tokens_[b]].byte = static_cast<int16_t>(b);
  for (const auto& [token, id] : tokens.tokens) {
    uses[id].first = static_cast<uint8_t>(token.front());
    uses[id].last = static_cast<uint8_t>(token.back());
  }
  // A token that spells no bytes counts as if it began and ended with byte 0: then less is sure than could be.
  merges_->for_each([&](uint32_t left, uint32_t right, uint32_t rank, uint32_t joined) {
    Use &a = uses[left], &b = uses[right];
    a.least_rank = std::min(a.least_rank, rank);
    b.least_rank = std::min(b.least_rank, rank);
    if (b.byte >= 0) {
      BytePair& pair = byte_pairs_[size_t{a.last} << 8 | static_cast<size_t>(b.byte)];
      pair.least_left = std::min(pair.least_left, rank);
      if (a.byte >= 0) {
        pair.rank = rank;
        pair.joined = joined;
      }
    }
    if (a.byte >= 0) {
      BytePair& pair = byte_pairs_[static_cast<size_t>(a.byte) << 8 | b.first];
      pair.least_right = std::min(pair.least_right, rank);
    }
  });
  for (BytePair& pair : byte_pairs_)
    if (pair.rank != kNoRank && uses[pair.joined].least_rank <= pair.rank) pair.rank |= kUnsure;
}

// Only tokens that spell bytes can come out of the model.
void ByteBpe::find_whole_words(const TokenBytes& tokens) {
  whole_words_.reserve(tokens.tokens.size());
  VocabularySpec long_words;
  std::vector<uint32_t> ids, wanted;
  std::vector<WordRequest> short_words;
  constexpr size_t kMany = 256;  // merged and prefetched at once
  const auto insert = [&] {
    ids.clear();
    if (!ignore_merges_)
      merge_in_lanes(*merges_, short_words, ids, [&](const WordRequest& request, MergeLane& lane) {
        start(lane, request.word);
        return true;
      });
    const auto is_whole = [&](size_t i) {
      return ignore_merges_ || (short_words[i].count == 1 && ids[short_words[i].first] == wanted[i]);
    };
    for (size_t i = 0; i < short_words.size(); ++i)
      if (is_whole(i)) whole_words_.prefetch(short_words[i].key);
    for (size_t i = 0; i < short_words.size(); ++i)
      if (is_whole(i)) whole_words_.insert(short_words[i].key, wanted[i]);
    short_words.clear();
    wanted.clear();
  };
  for (const auto& [word, id] : tokens.tokens) {
    const bool is_short = word.size() <= WordKey::kInlineBytes;
    if (!is_short && ignore_merges_) {
      long_words.emplace_back(word, static_cast<uint32_t>(long_word_ids_.size()));
      long_word_ids_.push_back(id);
    }
    if (!is_short) continue;
    short_words.push_back({word, WordKey::of(word, tokens.readable_end)});
    wanted.push_back(id);
    if (short_words.size() == kMany) insert();
  }
  insert();
  long_words_ = *Vocabulary::build(long_words);  // the spellings differ, so the bytes do
}

void ByteBpe::find_sizes(const TokenBytes& tokens, size_t id_limit) {
  token_sizes_ = HugeVector<uint32_t>(id_limit);
  for (const auto& [token, id] : tokens.tokens) token_sizes_[id] = static_cast<uint32_t>(token.size());
}

std::optional<ByteBpe> ByteBpe::build(const CharBpe& model) {
  if (model.has_affixes() || model.merge_count() >= MergeLane::kMaxMerges) return std::nullopt;
  ByteBpe bpe(model);
  bpe.complete_ = std::ranges::find(bpe.byte_tokens_, kNoToken) == bpe.byte_tokens_.end();
  if (!bpe.complete_ && !model.drops_unknown()) return std::nullopt;
  const TokenBytes tokens(model.vocabulary());
  bpe.find_sizes(tokens, static_cast<size_t>(model.vocabulary().id_limit()));
  // Where merges decide which words are whole, the pairs come first.
  both(
      bpe.ignore_merges_ ? tokens.tokens.size() : 0,
      [&] { bpe.find_byte_pairs(tokens, static_cast<size_t>(model.vocabulary().id_limit())); },
      [&] { bpe.find_whole_words(tokens); });
  return bpe;
}

uint32_t ByteBpe::find_whole_word(std::string_view word, const WordKey& key) const {
  if (key.is_inline()) return whole_words_.find(key);
  const uint32_t place = long_words_.find(word);
  return place == kNoToken ? kNoToken : long_word_ids_[place];
}

void ByteBpe::encode_word(std::string_view word, const WordKey& key, MergeScratch& scratch,
                          std::vector<uint32_t>& ids) const {
  if (const uint32_t id = find_whole_word(word, key); id != kNoToken) return ids.push_back(id);
  if (word.size() <= kShortWord) return merge_short(word, ids);
  for (; word.size() > kLongestPiece; word.remove_prefix(kLongestPiece))
    merge_long(word.substr(0, kLongestPiece), scratch, ids);
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
  size_t size = 0;
  for (const char b : word) {
    bytes[size] = static_cast<uint8_t>(b);
    size += byte_tokens_[bytes[size]] != kNoToken;
  }
  // The pair of bytes i and i + 1, with a pair without merges at both ends.
  std::array<const BytePair*, kShortWord + 2> storage;
  static constexpr BytePair kNoPair;
  const BytePair** const pairs = storage.data() + 1;
  pairs[-1] = &kNoPair;
  for (size_t i = 0; i + 1 < size; ++i) pairs[i] = &byte_pairs_[size_t{bytes[i]} << 8 | bytes[i + 1]];
  if (size > 0) pairs[size - 1] = pairs[size] = &kNoPair;
  // Bit i: the bytes i and i + 1 are joined. Never of two bits side by side, since a joined pair has the lower rank.
  uint64_t joins = 0;
  for (size_t i = 0; i < size; ++i) {
    const uint32_t least = std::min(pairs[static_cast<ptrdiff_t>(i) - 1]->least_left, pairs[i + 1]->least_right);
    joins |= uint64_t{pairs[i]->rank < least} << i;
  }
  // Has no branch that the processor cannot predict: the second byte of a pair is put where the next symbol goes.
  lane.begin(size);
  size_t count = 0;
  uint64_t unknown = 0;  // bit i: symbol i or the next one is two bytes, so their merge is not known yet
  for (size_t i = 0; i < size; ++i) {
    const uint32_t is_pair = joins >> i & 1, is_second = joins << 1 >> i & 1,
                   is_unknown = is_pair | (joins >> i >> 1 & 1);
    const uint32_t byte = byte_tokens_[bytes[i]];
    const BytePair& pair = *pairs[i];
    lane.put(count, {byte ^ ((byte ^ pair.joined) & -is_pair), pair.joined, pair.rank | -is_unknown});
    unknown = (unknown & ~(uint64_t{1} << count)) | uint64_t{is_unknown} << count;
    count += 1 - is_second;
  }
  lane.end(count);
  lane.ask_for(*merges_, unknown & ((uint64_t{1} << (count - (count > 0))) - 1));
}

void ByteBpe::merge_short(std::string_view word, std::vector<uint32_t>& ids) const {
  MergeLane lane;
  start(lane, word);
  lane.run(*merges_);
  lane.append_to(ids);
}

bool ByteBpe::merge_windows(std::string_view word, std::vector<uint32_t>& ids) const {
  std::string known;
  if (!complete_) {
    std::ranges::copy_if(word, std::back_inserter(known),
                         [&](char b) { return byte_tokens_[static_cast<uint8_t>(b)] != kNoToken; });
    word = known;
  }
  const auto encode = [&](size_t begin, size_t size, MergeWindow& window) {
    MergeLane lane;
    start(lane, word.substr(begin, size));
    lane.run(*merges_);
    size_t end = begin;
    lane.for_each([&](uint32_t id, size_t) {
      end += token_sizes_[id];
      window.add({id, end});
    });
  };
  std::vector<LongToken> tokens;
  if (!merge_in_windows(word.size(), encode, tokens)) return false;
  for (const LongToken& token : tokens) ids.push_back(token.id);
  return true;
}

void ByteBpe::merge_long(std::string_view word, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
  if (merge_windows(word, ids)) return;
  scratch.symbols.clear();
  scratch.sizes.clear();
  for (const char b : word)
    if (const uint32_t id = byte_tokens_[static_cast<uint8_t>(b)]; id != kNoToken) scratch.symbols.push_back(id);
  merge_symbols(*merges_, scratch);
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

}  // namespace millrace::tokenizer
