// SPDX-License-Identifier: Apache-2.0
#pragma once

// The normal forms of Unicode, in the Unicode version and with the alignments of `tokenizers` (whose normalization
// crate is older than its regular expressions). Thread-safe.

#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::tokenizer {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// One character of normalized text and its relation to the source. change > 0: it was inserted, because one source
// character gave several. 0: it comes from one source character. -n: it comes from one source character, and n more
// were removed.
struct NormalizedChar {
  uint32_t c = 0;
  int32_t change = 0;
};

// Returns true if normalizing certainly leaves `text` unchanged; false if it may change it.
bool is_surely_normal(NormalForm form, std::string_view text);

// Bytes [begin, end) of a text.
struct Segment {
  size_t begin = 0, end = 0;
};
// Returns the first segment of `text` at or after `from` that normalizing may change. Its normalized form does not
// depend on the text around it. Returns an empty segment at the end of `text` if there is none. REQUIRES: `from` is 0
// or the end of such a segment.
Segment next_unsure(NormalForm form, std::string_view text, size_t from);

// Appends the normalized characters of `text`. Linear, times a logarithm for runs of combining marks.
void normalize(NormalForm form, std::string_view text, std::vector<NormalizedChar>& out);

}  // namespace millrace::tokenizer
