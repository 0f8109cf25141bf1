// SPDX-License-Identifier: Apache-2.0
#pragma once

// The generated tables behind unicode_tables.h and normal_forms.h. Private to this folder. Immutable, thread-safe.

#include <cstdint>
#include <span>
#include <string_view>

#include "millrace/tokenizer/unicode_tables.h"

namespace millrace::tokenizer {

using Ranges = std::span<const CodePointRange>;  // ascending

struct LabelledRange {
  uint32_t first, last;
  uint8_t label;
};
struct NamedRanges {
  std::string_view name;
  Ranges ranges;
};
struct Lower {
  uint32_t c, lower;
};

struct PropertyData {
  Ranges numeric, punctuation, white_space, bert_removed, bert_space, bert_chinese, combining, nonspacing;
  Ranges regex_word, regex_digit, extend, prepend, control, pictographic;
  std::span<const std::string_view> category_names;
  std::span<const LabelledRange> categories;
  std::span<const LabelledRange> script_numbers;
  std::span<const NamedRanges> scripts;
  std::span<const Lower> lower;  // but for U+0130, which becomes two characters
};
extern const PropertyData kPropertyData;

// Characters [offset, offset + size) of the pool.
struct Decomposition {
  uint32_t c, offset, size;
};
struct Composition {
  uint32_t first, second, joined;
};

struct NormalData {
  std::span<const char32_t> pool;
  std::span<const Decomposition> canonical;
  std::span<const Decomposition> compatible;
  std::span<const Composition> compositions;  // ascending
  std::span<const LabelledRange> classes;     // canonical combining classes above 0
};
extern const NormalData kNormalData;

}  // namespace millrace::tokenizer
