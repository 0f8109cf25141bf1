// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/text/normal_forms.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "millrace/tokenizer/text/unicode_data.h"

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
  // Its form of that kind is something else, unless what is around it joins it; it may join what is before it; its
  // combining class is not 0.
  static constexpr uint8_t kChangesInNfd = 1, kChangesInNfkd = 2, kChangesInNfc = 4, kMayJoin = 8, kIsMark = 16;

  static const NormalTables& get() {
    static const NormalTables tables;
    return tables;
  }

  uint8_t combining_class(uint32_t c) const { return classes_[c]; }
  uint8_t flags(uint32_t c) const { return flags_[c]; }

  // The decomposition of `c`, empty when it is itself. Not of Hangul syllables.
  std::span<const char32_t> decomposition(uint32_t c, bool compatible) const {
    if (compatible && flags_[c] & kChangesInNfkd) {
      if (const Slice* found = find(compatible_, c)) return kNormalData.pool.subspan(found->offset, found->size);
    }
    if (!(flags_[c] & kChangesInNfd)) return {};
    const Slice* found = find(canonical_, c);
    return found ? kNormalData.pool.subspan(found->offset, found->size) : std::span<const char32_t>();
  }

  std::optional<uint32_t> compose(uint32_t first, uint32_t second) const {
    if (!(flags_[second] & kMayJoin)) return std::nullopt;
    if (first - kLeads < kLeadCount && second - kVowels < kVowelCount)
      return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTrailCount;
    if (is_syllable(first) && (first - kSyllables) % kTrailCount == 0 && second - kTrails - 1 < kTrailCount - 1)
      return first + (second - kTrails);
    const auto before = [](const Composition& a, const Composition& b) {
      return a.first != b.first ? a.first < b.first : a.second < b.second;
    };
    const auto found = std::ranges::lower_bound(kNormalData.compositions, Composition{first, second, 0}, before);
    if (found == kNormalData.compositions.end() || found->first != first || found->second != second)
      return std::nullopt;
    return found->joined;
  }

 private:
  // Characters [offset, offset + size) of the pool.
  struct Slice {
    uint32_t c, offset, size;
  };

  NormalTables() : classes_(kCodePointTableSize), flags_(kCodePointTableSize) {
    uint32_t offset = 0;
    const auto slices_of = [&](std::span<const Decomposition> entries, std::vector<Slice>& slices, uint8_t flags) {
      for (const Decomposition& entry : entries) {
        slices.push_back({entry.c, offset, entry.size});
        offset += entry.size;
        flags_[entry.c] |= flags;
      }
    };
    slices_of(kNormalData.canonical, canonical_, kChangesInNfd | kChangesInNfc);
    slices_of(kNormalData.compatible, compatible_, kChangesInNfkd);
    for_each_run(kNormalData.classes, [&](uint32_t first, uint32_t last, uint8_t combining_class) {
      for (uint32_t c = first; combining_class != 0 && c <= last; ++c) {
        classes_[c] = combining_class;
        flags_[c] |= kIsMark;
      }
    });
    for (const Composition& entry : kNormalData.compositions) {
      flags_[entry.second] |= kMayJoin;
      flags_[entry.joined] &= static_cast<uint8_t>(~kChangesInNfc);  // it is put together again
    }
    for (uint32_t i = 0; i < kSyllableCount; ++i) flags_[kSyllables + i] |= kChangesInNfd;
    for (uint32_t i = 0; i < kVowelCount; ++i) flags_[kVowels + i] |= kMayJoin;
    for (uint32_t i = 1; i < kTrailCount; ++i) flags_[kTrails + i] |= kMayJoin;
  }

  static const Slice* find(const std::vector<Slice>& slices, uint32_t c) {
    const auto found = std::ranges::lower_bound(slices, c, {}, &Slice::c);
    return found != slices.end() && found->c == c ? &*found : nullptr;
  }

  std::vector<uint8_t> classes_, flags_;
  std::vector<Slice> canonical_, compatible_;
};

class Decomposer {
 public:
  Decomposer(bool compatible, std::vector<NormalizedChar>& out)
      : tables_(NormalTables::get()), compatible_(compatible), out_(out), sorted_(out.size()) {}

  void run(std::string_view text) {
    // SAFETY: uint8_t may alias any object.
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    for (const uint8_t* const end = p + text.size(); p < end;) {
      const CodePoint c = decode_code_point(p, end);
      p += c.size;
      add(c.value);
    }
    sort_marks();
  }

 private:
  void add(uint32_t c) {
    constexpr uint8_t kAnyChange = NormalTables::kChangesInNfd | NormalTables::kChangesInNfkd;
    if (!(tables_.flags(c) & kAnyChange)) return push(c, 0);
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
    const bool is_mark = tables_.flags(c) & NormalTables::kIsMark;
    if (!is_mark) sort_marks();
    out_.push_back({c, change});
    if (!is_mark) sorted_ = out_.size();
  }

  // Marks behind a starter are ordered by their classes; those of one class keep their order. Most runs are short.
  void sort_marks() {
    if (out_.size() - sorted_ <= 1) {
      sorted_ = out_.size();
      return;
    }
    const auto first = out_.begin() + static_cast<ptrdiff_t>(sorted_);
    const auto before = [&](const NormalizedChar& a, const NormalizedChar& b) {
      return tables_.combining_class(a.c) < tables_.combining_class(b.c);
    };
    constexpr ptrdiff_t kShort = 16;
    if (out_.end() - first > kShort) {
      std::stable_sort(first, out_.end(), before);
    } else {
      for (auto i = first; i != out_.end(); ++i) std::rotate(std::upper_bound(first, i, *i, before), i, i + 1);
    }
    sorted_ = out_.size();
  }

  const NormalTables& tables_;
  bool compatible_;
  std::vector<NormalizedChar>& out_;
  size_t sorted_;  // all before it is in order
};

// The first byte from `p` on that is not ASCII, or `end`.
const uint8_t* skip_ascii(const uint8_t* p, const uint8_t* end) {
  for (uint64_t bytes = 0; end - p >= static_cast<ptrdiff_t>(sizeof(bytes)); p += sizeof(bytes)) {
    std::memcpy(&bytes, p, sizeof(bytes));
    if (bytes & 0x8080808080808080u) break;
  }
  while (p != end && *p < 0x80) ++p;
  return p;
}

// Joins, from `begin` on, starters with what follows them unless a mark of the same or a higher class is between. What
// is joined stands for the source characters of both.
void compose(size_t begin, std::vector<NormalizedChar>& chars) {
  const NormalTables& tables = NormalTables::get();
  constexpr size_t kNone = SIZE_MAX;
  size_t write = begin, starter = kNone;
  int blocking = -1;  // the class of the mark before, -1 right behind the starter
  for (size_t read = begin; read < chars.size(); ++read) {
    const NormalizedChar next = chars[read];
    if (!(tables.flags(next.c) & (NormalTables::kMayJoin | NormalTables::kIsMark))) {
      starter = write;
      blocking = -1;
      chars[write++] = next;
      continue;
    }
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

// The quick check of Unicode Standard Annex #15, section 9. Text may be cut before each character that passes it and is
// no mark: nothing before it is composed with it.
Segment next_unsure(NormalForm form, std::string_view text, size_t from) {
  const NormalTables& tables = NormalTables::get();
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  uint8_t changing = composed ? NormalTables::kMayJoin | NormalTables::kChangesInNfc : NormalTables::kChangesInNfd;
  if (compatible) changing |= NormalTables::kChangesInNfkd;
  // SAFETY: uint8_t may alias any object.
  const auto* const begin = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* const end = begin + text.size();
  const uint8_t* p = begin + from;
  const uint8_t* cut = p;  // the last place where the text may be cut
  uint8_t last_class = 0;
  for (;;) {
    const uint8_t* const other = skip_ascii(p, end);
    if (other == end) return {text.size(), text.size()};
    if (other != p) {
      last_class = 0;
      cut = other - 1;
    }
    const CodePoint c = decode_code_point(other, end);
    p = other + c.size;
    const uint8_t flags = tables.flags(c.value);
    const uint8_t combining_class = flags & NormalTables::kIsMark ? tables.combining_class(c.value) : uint8_t{0};
    if (flags & changing || (combining_class != 0 && combining_class < last_class)) break;
    if (combining_class == 0) cut = other;
    last_class = combining_class;
  }
  while (p < end && *p >= 0x80) {
    const CodePoint c = decode_code_point(p, end);
    if (!(tables.flags(c.value) & (changing | NormalTables::kIsMark))) break;
    p += c.size;
  }
  return {static_cast<size_t>(cut - begin), static_cast<size_t>(p - begin)};
}

bool is_surely_normal(NormalForm form, std::string_view text) {
  const Segment first = next_unsure(form, text, 0);
  return first.begin == first.end;
}

void normalize(NormalForm form, std::string_view text, std::vector<NormalizedChar>& out) {
  const size_t begin = out.size();
  Decomposer(form == NormalForm::kNfkc || form == NormalForm::kNfkd, out).run(text);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) compose(begin, out);
}

}  // namespace millrace::tokenizer
