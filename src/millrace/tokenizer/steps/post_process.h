// SPDX-License-Identifier: Apache-2.0
#pragma once

// How `tokenizers` trims white space off the offsets of a token (ByteLevel and RobertaProcessing with trim_offsets). It
// counts characters, and so does this, over offsets in bytes. Thread-safe.

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
// From the token's text, as it is spelled in the file.
Margins margins_of(std::string_view token);

// `is_first` tells the first token of the text, `with_special` that special tokens were put around it.
Offset trim_offset(std::string_view text, Offset offset, Margins margins, bool is_first, bool with_special,
                   const std::vector<PostProcessorSpec::Trim>& trims);

}  // namespace millrace::tokenizer
