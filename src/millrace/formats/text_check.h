// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whether what is about to be read as text is text: a file of another kind would be tokenised all the same, and nobody
// would see it before training. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/formats/documents.h"

namespace millrace::formats {

// First bytes that tell every format that is known here.
inline constexpr size_t kOtherFormatHead = 512;
// First bytes of the unpacked content that check_text looks at.
inline constexpr size_t kTextHead = 64 << 10;

// `head`: the first bytes of a file, or of what was packed in it. Gzip and zstd are none of its business, nor is a
// whole Parquet file. Errors: invalid_argument, naming the format and the way out; corruption (a Parquet table that is
// cut).
[[nodiscard]] Status refuse_other_format(std::string_view name, std::string_view head);

struct TextRules {
  bool json_as_text = false;        // accept JSON in a mode other than kJsonl
  double max_invalid_utf8 = 0.001;  // refuse a file with more ill-formed sequences per byte; 1 accepts any
};

// `head`: the first kTextHead bytes of the unpacked content; `whole`: there are no more.
// Errors: those of refuse_other_format; invalid_argument (too much that is not UTF-8; JSON read as text; one JSON value
// read as lines of it).
[[nodiscard]] Status check_text(std::string_view name, std::string_view head, bool whole, DocumentMode mode,
                                const TextRules& rules);

// `invalid` ill-formed sequences in `bytes` of the text of a file. A few are taken of any file.
// Errors: invalid_argument, naming the share and the way out.
[[nodiscard]] Status check_invalid_utf8(std::string_view name, int64_t invalid, int64_t bytes, double max_share);

}  // namespace millrace::formats
