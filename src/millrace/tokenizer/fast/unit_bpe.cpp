// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/unit_bpe.h"

#include <algorithm>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/fast/long_words.h"
#include "millrace/tokenizer/fast/unit_path.h"
#include "millrace/tokenizer/text/aligned_text.h"
#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

constexpr uint8_t kNotAscii = 128;

}  // namespace

UnitBpe::UnitBpe(const CharBpe& model)
    : model_(&model),
      ascii_merges_(size_t{128} * 128, MergeTable::kNone),
      tokens_(0x10000, kNoToken),
      fuses_unknown_(model.fuses_unknown() && !model.spells_all_bytes()) {
  const Vocabulary& vocabulary = model.vocabulary();
  for (uint32_t id = 0; id < vocabulary.id_limit(); ++id) {
    if (!vocabulary.contains(id) || vocabulary.token(id).empty() || vocabulary.token(id).size() > 3) continue;
    const Characters c(vocabulary.token(id));
    if (c.end() == vocabulary.token(id).size() && c.value() < tokens_.size()) tokens_[c.value()] = id;
  }
  std::copy_n(tokens_.begin(), ascii_tokens_.size(), ascii_tokens_.begin());
  ascii_tokens_[' '] = vocabulary.find(kMetaSymbol);
  for (size_t pair = 0; pair < ascii_merges_.size(); ++pair) {
    const uint32_t left = ascii_tokens_[pair >> 7], right = ascii_tokens_[pair & 0x7F];
    if (left != kNoToken && right != kNoToken) ascii_merges_[pair] = model.merges().find(left, right);
  }
}

std::unique_ptr<const UnitBpe> UnitBpe::build(const CharBpe& model) {
  const bool has_unknown = model.unknown_id() != kNoToken && !model.byte_fallback();
  if (model.has_affixes() || model.ignores_merges() || model.merge_count() >= MergeLane::kMaxMerges ||
      (!model.spells_all_bytes() && !has_unknown) || model.vocabulary().find(kMetaSymbol) == kNoToken)
    return nullptr;
  return std::unique_ptr<const UnitBpe>(new UnitBpe(model));
}

uint32_t UnitBpe::token_of(uint32_t code_point) const {
  if (code_point < 128) return ascii_tokens_[code_point];
  if (code_point < tokens_.size()) return tokens_[code_point];
  std::string bytes;
  append_utf8(code_point, bytes);
  return model_->vocabulary().find(bytes);
}

// `add` gets the first symbols of `unit`, each with its character, kNotAscii for those that are none of ASCII.
template <class Add>
void UnitBpe::for_each_symbol(std::string_view unit, const Add& add) const {
  // SAFETY: uint8_t may alias any object.
  const auto* p = reinterpret_cast<const uint8_t*>(unit.data());
  const uint8_t* const end = p + unit.size();
  bool was_unknown = false;
  while (p < end) {
    const uint8_t* const from = p;
    uint32_t id = ascii_tokens_[*p & 0x7F];
    uint8_t ascii = *p;
    if (*p < 0x80) {
      ++p;
    } else {
      const CodePoint c = decode_code_point(p, end);
      p += c.size;
      ascii = kNotAscii;
      id = c.value < tokens_.size()
               ? tokens_[c.value]
               : model_->vocabulary().find(unit.substr(unit.size() - static_cast<size_t>(end - from), c.size));
    }
    const bool unknown = id == kNoToken;
    if (!unknown) {
      add(id, ascii);
    } else if (model_->spells_all_bytes()) {
      for (const uint8_t* b = from; b < p; ++b) add(model_->byte_tokens()[*b], kNotAscii);
    } else if (!fuses_unknown_ || !was_unknown) {
      add(model_->unknown_id(), kNotAscii);
    }
    was_unknown = unknown;
  }
}

// False: the unit is too long for a lane.
bool UnitBpe::start(MergeLane& lane, std::string_view unit) const {
  std::array<uint32_t, MergeLane::kMaxSymbols> symbols;
  std::array<uint8_t, MergeLane::kMaxSymbols> ascii;
  // No unit has more symbols than bytes.
  if (unit.size() > symbols.size()) return false;
  size_t count = 0;
  for_each_symbol(unit, [&](uint32_t id, uint8_t c) {
    ascii[count] = c;
    symbols[count++] = id;
  });
  lane.begin(count);
  for (size_t i = 0; i < count; ++i) {
    uint64_t merge = MergeTable::kNone;
    if (i + 1 < count)
      merge = (ascii[i] | ascii[i + 1]) < kNotAscii ? ascii_merges_[size_t{ascii[i]} << 7 | ascii[i + 1]]
                                                    : model_->merges().find(symbols[i], symbols[i + 1]);
    lane.put(i, MergeLane::first(symbols[i], merge));
  }
  lane.end(count);
  return true;
}

void UnitBpe::encode_words(std::span<WordRequest> requests, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
  merge_in_lanes(model_->merges(), requests, ids, [&](const WordRequest& request, MergeLane& lane) {
    if (start(lane, request.word)) return true;
    merge_long(request.word, scratch, ids);
    return false;
  });
}

bool UnitBpe::merge_windows(std::span<const uint32_t> symbols, std::vector<uint32_t>& ids) const {
  const auto encode = [&](size_t begin, size_t size, MergeWindow& window) {
    MergeLane lane;
    lane.begin(size);
    for (size_t i = 0; i < size; ++i) lane.put(i, MergeLane::first(symbols[begin + i], MergeTable::kNone));
    lane.end(size);
    lane.ask_for(model_->merges(), (uint64_t{1} << (size - 1)) - 1);
    lane.run(model_->merges());
    lane.for_each([&](uint32_t id, size_t end) { window.add({id, begin + end}); });
  };
  std::vector<LongToken> tokens;
  if (!merge_in_windows(symbols.size(), encode, tokens)) return false;
  for (const LongToken& token : tokens) ids.push_back(token.id);
  return true;
}

void UnitBpe::merge_long(std::string_view unit, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
  scratch.symbols.clear();
  scratch.sizes.clear();
  for_each_symbol(unit, [&](uint32_t id, uint8_t) { scratch.symbols.push_back(id); });
  if (merge_windows(scratch.symbols, ids)) return;
  merge_symbols(model_->merges(), scratch);
  ids.insert(ids.end(), scratch.symbols.begin(), scratch.symbols.end());
}

}  // namespace millrace::tokenizer
