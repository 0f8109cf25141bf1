// SPDX-License-Identifier: Apache-2.0
#pragma once

// The normal forms of Unicode, of the version and with the alignments that `tokenizers` has (its crate is older than
// its regular expressions). Thread-safe.

#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::tokenizer {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// One character of normalized text and how it relates to the source. change > 0: it was inserted, one source character
// gave several; 0: it stands for one source character; -n: for one source character and n more that are gone.
struct NormalizedChar {
  uint32_t c = 0;
  int32_t change = 0;
};

// True when normalizing would certainly leave `text` as it is; false: it may not.
bool is_surely_normal(NormalForm form, std::string_view text);

// Bytes [begin, end) of a text.
struct Segment {
  size_t begin = 0, end = 0;
};
// The first segment of `text` at or behind `from` that normalizing may change; what it becomes depends on nothing
// around it. An empty one at the end of `text`: there is none. REQUIRES: `from` is 0 or the end of such a segment.
Segment next_unsure(NormalForm form, std::string_view text, size_t from);

// Appends the normalized characters of `text`. Linear, times a logarithm for runs of combining marks.
void normalize(NormalForm form, std::string_view text, std::vector<NormalizedChar>& out);

}  // namespace millrace::tokenizer
