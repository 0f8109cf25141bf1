// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks that a file that is to be read as text is text. Without this check a file of another kind would be tokenised
// too, and nobody would notice before training. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/formats/documents.h"

namespace millrace::formats {

// The number of first bytes that identify every format known here.
inline constexpr size_t kOtherFormatHead = 512;
// The number of first bytes of the unpacked content that check_text() examines.
inline constexpr size_t kTextHead = 64 << 10;

// Refuses a file of a known format other than text. `head`: the first bytes of the file or of its unpacked content.
// Accepts gzip, zstd and whole Parquet files. Errors: invalid_argument, naming the format and a remedy; corruption (a
// Parquet table that is cut).
[[nodiscard]] Status refuse_other_format(std::string_view name, std::string_view head);

struct TextRules {
  bool json_as_text = false;        // accept JSON in a mode other than kJsonl
  double max_invalid_utf8 = 0.001;  // refuse a file with more ill-formed sequences per byte; 1 accepts any
};

// Checks the beginning of a text. `head`: the first kTextHead bytes of the unpacked content; `whole`: `head` is all of
// it.
// Errors: those of refuse_other_format(); invalid_argument (too many bytes that are not UTF-8; JSON read as text; one
// JSON value read as JSON lines).
[[nodiscard]] Status check_text(std::string_view name, std::string_view head, bool whole, DocumentMode mode,
                                const TextRules& rules);

// Checks the share of ill-formed sequences: `invalid` of them in `bytes` bytes of text. Accepts a few in any file.
// Errors: invalid_argument, naming the share and a remedy.
[[nodiscard]] Status check_invalid_utf8(std::string_view name, int64_t invalid, int64_t bytes, double max_share);

}  // namespace millrace::formats
