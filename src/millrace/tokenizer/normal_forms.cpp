// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/normal_forms.h"

#include <algorithm>
#include <array>
#include <optional>

#include "millrace/tokenizer/aligned_text.h"
#include "millrace/tokenizer/unicode_data.h"

namespace millrace::tokenizer {
namespace {

// Hangul syllables are composed by arithmetic (The Unicode Standard, section 3.12).
constexpr uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;
constexpr uint32_t kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

bool is_syllable(uint32_t c) {
  return c - kSyllables < kSyllableCount;
}

// What a character is to normalization, looked up in one step. Built on first use.
class NormalTables {
 public:
  static constexpr uint8_t kChangesInNfd = 1, kChangesInNfkd = 2, kMayJoin = 4, kChangesInNfc = 8;

  static const NormalTables& get() {
    static const NormalTables tables;
    return tables;
  }

  uint8_t combining_class(uint32_t c) const { return classes_[c]; }
  uint8_t flags(uint32_t c) const { return flags_[c]; }

  // The decomposition of `c`, empty when it is itself.
  std::span<const char32_t> decomposition(uint32_t c, bool compatible) const {
    if (!(flags_[c] & (compatible ? kChangesInNfd | kChangesInNfkd : kChangesInNfd))) return {};
    const Decomposition* found = compatible ? find(kNormalData.compatible, c) : nullptr;
    if (found == nullptr) found = find(kNormalData.canonical, c);
    if (found == nullptr) return {};
    return kNormalData.pool.subspan(found->offset, found->size);
  }

  std::optional<uint32_t> compose(uint32_t first, uint32_t second) const {
    if (first - kLeads < kLeadCount && second - kVowels < kVowelCount)
      return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTrailCount;
    if (is_syllable(first) && (first - kSyllables) % kTrailCount == 0 && second - kTrails - 1 < kTrailCount - 1)
      return first + (second - kTrails);
    if (!(flags_[second] & kMayJoin)) return std::nullopt;
    const auto before = [](const Composition& a, const Composition& b) {
      return a.first != b.first ? a.first < b.first : a.second < b.second;
    };
    const auto found = std::ranges::lower_bound(kNormalData.compositions, Composition{first, second, 0}, before);
    if (found == kNormalData.compositions.end() || found->first != first || found->second != second)
      return std::nullopt;
    return found->joined;
  }

 private:
  NormalTables() : classes_(kCodePointTableSize), flags_(kCodePointTableSize) {
    for (const LabelledRange& range : kNormalData.classes)
      for (uint32_t c = range.first; c <= range.last; ++c) classes_[c] = range.label;
    for (const Decomposition& entry : kNormalData.canonical) flags_[entry.c] |= kChangesInNfd | kChangesInNfc;
    for (const Decomposition& entry : kNormalData.compatible) flags_[entry.c] |= kChangesInNfkd;
    for (const Composition& entry : kNormalData.compositions) {
      flags_[entry.second] |= kMayJoin;
      flags_[entry.joined] &= static_cast<uint8_t>(~kChangesInNfc);  // it is put together again
    }
    for (uint32_t i = 0; i < kVowelCount; ++i) flags_[kVowels + i] |= kMayJoin;
    for (uint32_t i = 1; i < kTrailCount; ++i) flags_[kTrails + i] |= kMayJoin;
  }

  static const Decomposition* find(std::span<const Decomposition> entries, uint32_t c) {
    const auto found = std::ranges::lower_bound(entries, c, {}, &Decomposition::c);
    return found != entries.end() && found->c == c ? &*found : nullptr;
  }

  std::vector<uint8_t> classes_, flags_;
};

class Decomposer {
 public:
  Decomposer(bool compatible, std::vector<NormalizedChar>& out)
      : tables_(NormalTables::get()), compatible_(compatible), out_(out), sorted_(out.size()) {}

  void run(std::string_view text) {
    for (Characters c(text); !c.at_end(); c.next()) add(c.value());
    sort_marks();
  }

 private:
  void add(uint32_t c) {
    if (is_syllable(c)) {
      const uint32_t index = c - kSyllables, trail = index % kTrailCount;
      push(kLeads + index / (kVowelCount * kTrailCount), 0);
      push(kVowels + index % (kVowelCount * kTrailCount) / kTrailCount, 1);
      if (trail > 0) push(kTrails + trail, 1);
      return;
    }
    const auto parts = tables_.decomposition(c, compatible_);
    if (parts.empty()) return push(c, 0);
    for (size_t i = 0; i < parts.size(); ++i) push(parts[i], i > 0);
  }

  void push(uint32_t c, int32_t change) {
    if (tables_.combining_class(c) == 0) sort_marks();
    out_.push_back({c, change});
    if (tables_.combining_class(c) == 0) sorted_ = out_.size();
  }

  // Marks behind a starter are ordered by their classes; those of one class keep their order.
  void sort_marks() {
    const auto first = out_.begin() + static_cast<ptrdiff_t>(sorted_);
    if (out_.end() - first > 1)
      std::stable_sort(first, out_.end(), [&](const NormalizedChar& a, const NormalizedChar& b) {
        return tables_.combining_class(a.c) < tables_.combining_class(b.c);
      });
    sorted_ = out_.size();
  }

  const NormalTables& tables_;
  bool compatible_;
  std::vector<NormalizedChar>& out_;
  size_t sorted_;  // all before it is in order
};

// Joins, from `begin` on, starters with what follows them unless a mark of the same or a higher class is between. What
// is joined stands for the source characters of both.
void compose(size_t begin, std::vector<NormalizedChar>& chars) {
  const NormalTables& tables = NormalTables::get();
  constexpr size_t kNone = SIZE_MAX;
  size_t write = begin, starter = kNone;
  int blocking = -1;  // the class of the mark before, -1 right behind the starter
  for (size_t read = begin; read < chars.size(); ++read) {
    const NormalizedChar next = chars[read];
    const int combining = tables.combining_class(next.c);
    if (starter != kNone && combining > blocking) {
      if (const auto joined = tables.compose(chars[starter].c, next.c)) {
        chars[starter] = {*joined, chars[starter].change + next.change - 1};
        continue;
      }
    }
    if (combining == 0) {
      starter = write;
      blocking = -1;
    } else if (starter != kNone) {
      blocking = combining;
    }
    chars[write++] = next;
  }
  chars.resize(write);
}

}  // namespace

bool is_surely_normal(NormalForm form, std::string_view text) {
  const NormalTables& tables = NormalTables::get();
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  uint8_t changing = composed ? NormalTables::kMayJoin | NormalTables::kChangesInNfc : NormalTables::kChangesInNfd;
  if (compatible) changing |= NormalTables::kChangesInNfkd;
  for (Characters c(text); !c.at_end(); c.next()) {
    if (c.value() < 0x80) continue;
    if (tables.combining_class(c.value()) != 0 || tables.flags(c.value()) & changing) return false;
    if (!composed && is_syllable(c.value())) return false;
  }
  return true;
}

void normalize(NormalForm form, std::string_view text, std::vector<NormalizedChar>& out) {
  const size_t begin = out.size();
  Decomposer(form == NormalForm::kNfkc || form == NormalForm::kNfkd, out).run(text);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) compose(begin, out);
}

}  // namespace millrace::tokenizer
