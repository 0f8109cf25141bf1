// SPDX-License-Identifier: Apache-2.0
#pragma once

// What holds for every text and every tokenizer.

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {

// What a file asks for and is not done is logged; here that is noise.
inline const bool quiet = (set_log_sink({}, LogLevel::kError), true);

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// The ids of `text`, which are the same with offsets and without, and again; of bytes that are no UTF-8 they may be any
// ids. Nothing: it cannot be encoded.
inline std::optional<std::vector<uint32_t>> checked_ids(Encoder& encoder, std::string_view text) {
  std::vector<uint32_t> ids, alone, again;
  std::vector<Offset> offsets;
  const bool encoded = encoder.encode(text, {}, ids, &offsets).has_value();
  const bool encoded_alone = encoder.encode(text, {}, alone).has_value();
  const bool encoded_again = encoder.encode(text, {}, again).has_value();
  if (is_utf8(text)) {
    require(encoded_alone == encoded, "offsets make no error");
    require(encoded_again == encoded, "the same answer again");
    require(!encoded || ids == alone, "the same ids without offsets");
    require(!encoded || ids == again, "the same ids again");
  }
  if (!encoded) return std::nullopt;
  require(ids.size() == offsets.size(), "an offset for each id");
  for (const Offset& offset : offsets)
    require(0 <= offset.begin && offset.begin <= offset.end && offset.end <= static_cast<int64_t>(text.size()),
            "offsets inside the text");
  return ids;
}

}  // namespace millrace::tokenizer
