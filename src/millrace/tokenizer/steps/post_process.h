// SPDX-License-Identifier: Apache-2.0
#pragma once

// Trims white space off the offsets of a token as `tokenizers` does (ByteLevel and RobertaProcessing with
// trim_offsets). Counts characters, as `tokenizers` does, although offsets are in bytes. Thread-safe.

#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/file/tokenizer_json.h"
#include "millrace/tokenizer/text/offset.h"

namespace millrace::tokenizer {

// White space at the ends of a token's text, in characters.
struct Margins {
  int64_t leading = 0, trailing = 0;
};
// Returns the margins of a token's text as the file spells it.
Margins margins_of(std::string_view token);

// Trims an offset. `is_first`: the token is the first of the text. `with_special`: special tokens were put around the
// text.
Offset trim_offset(std::string_view text, Offset offset, Margins margins, bool is_first, bool with_special,
                   const std::vector<PostProcessorSpec::Trim>& trims);

}  // namespace millrace::tokenizer
