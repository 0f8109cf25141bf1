// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generated tables behind unicode_tables.h and normal_forms.h. Private to this folder. Immutable, thread-safe.

#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {

using Ranges = std::span<const CodePointRange>;  // ascending

// A run of code points from `first` to the start of the next run, or to the last code point. Ascending.
struct Run {
  uint32_t first;
  uint8_t label;
};
using Runs = std::span<const Run>;
inline constexpr uint8_t kNoLabel = 255;  // surrogates

struct CategoryName {
  std::string_view name, long_name;
};
// The code points of some categories ("L Nl"). Code points in `differing` are included if the categories lack them,
// and excluded otherwise.
struct DerivedProperty {
  std::string_view name, categories;
  Ranges differing;
};
// The lower case of every `step`-th code point of [first, last] is that code point plus `distance`.
struct LowerRun {
  uint32_t first, last, step;
  int32_t distance;
};

struct PropertyData {
  Ranges numeric, punctuation, white_space, bert_removed, bert_space, bert_chinese, combining, nonspacing;
  std::span<const CategoryName> category_names;
  Runs categories;
  std::span<const std::string_view> script_names;  // "Han/Hani"
  Runs regex_scripts;
  std::span<const DerivedProperty> derived;
  Runs script_numbers;
  Runs clusters;                    // without Hangul syllables
  std::span<const LowerRun> lower;  // without U+0130, which becomes two characters
};
extern const PropertyData kPropertyData;

// A code point whose decomposition is the next `size` characters of the pool.
struct Decomposition {
  uint32_t c, size;
};
struct Composition {
  uint32_t first, second, joined;
};

struct NormalData {
  std::span<const char32_t> pool;  // characters of `canonical`, then of `compatible`
  std::span<const Decomposition> canonical;
  std::span<const Decomposition> compatible;
  std::span<const Composition> compositions;  // ascending
  Runs classes;                               // canonical combining classes
};
extern const NormalData kNormalData;

// Calls f(first, last, label) for each run.
template <class F>
void for_each_run(Runs runs, const F& f) {
  for (size_t i = 0; i < runs.size(); ++i)
    f(runs[i].first, i + 1 < runs.size() ? runs[i + 1].first - 1 : 0x10FFFF, runs[i].label);
}

}  // namespace millrace::tokenizer
