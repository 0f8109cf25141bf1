// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/steps/post_process.h"

#include <algorithm>

#include "millrace/tokenizer/text/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

constexpr uint32_t kSpelledSpace = 0x120;  // "Ġ" counts as white space wherever it is written

// SAFETY: uint8_t may alias any object.
const uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

bool is_margin(const uint8_t* p, const uint8_t* end) {
  const uint32_t c = decode_code_point(p, end).value;
  return c == kSpelledSpace || code_point_classes()[c] & kWhiteFlag;
}

// `count` characters behind `offset`, at most `limit`.
int64_t forward(std::string_view text, int64_t offset, int64_t count, int64_t limit) {
  const uint8_t* const end = bytes_of(text) + text.size();
  for (; count > 0 && offset < limit; --count) offset += decode_code_point(bytes_of(text) + offset, end).size;
  return std::min(offset, limit);
}

// `count` characters before `offset`, at least `limit`; `offset` itself when the text has fewer.
int64_t backward(std::string_view text, int64_t offset, int64_t count, int64_t limit) {
  int64_t at = offset;
  for (; count > 0; --count) {
    if (at == 0) return offset;
    at = previous_character(bytes_of(text), bytes_of(text) + at) - bytes_of(text);
  }
  return std::max(at, limit);
}

}  // namespace

Margins margins_of(std::string_view token) {
  Margins margins;
  const uint8_t* const begin = bytes_of(token);
  const uint8_t* const end = begin + token.size();
  for (const uint8_t* p = begin; p < end && is_margin(p, end); p += decode_code_point(p, end).size) ++margins.leading;
  for (const uint8_t* p = end; p > begin; ++margins.trailing) {
    p = previous_character(begin, p);
    if (!is_margin(p, end)) break;
  }
  return margins;
}

Offset trim_offset(std::string_view text, Offset offset, Margins margins, bool is_first, bool with_special,
                   const std::vector<PostProcessorSpec::Trim>& trims) {
  for (const auto& trim : trims) {
    int64_t leading = margins.leading;
    // One space at the start of the text may be the one that was added: it is left alone.
    const bool at_start = offset.begin == 0 || (is_first && !(with_special && trim.behind_added));
    if (at_start && trim.add_prefix_space && leading == 1) leading = 0;
    offset.begin = forward(text, offset.begin, leading, offset.end);
    if (margins.trailing > 0) offset.end = backward(text, offset.end, margins.trailing, offset.begin);
  }
  return offset;
}

}  // namespace millrace::tokenizer
