// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tokens "<0x00>" to "<0xFF>", with which models with byte fallback spell unknown characters. Thread-safe.

#include <array>
#include <cstdint>

#include "millrace/base/status.h"
#include "millrace/tokenizer/models/vocabulary.h"

namespace millrace::tokenizer {

// Returns the token of each byte; kNoToken if it has none.
inline std::array<uint32_t, 256> find_byte_tokens(const Vocabulary& vocabulary) {
  std::array<uint32_t, 256> ids{};
  for (size_t b = 0; b < ids.size(); ++b) ids[b] = vocabulary.find(fmt::format("<0x{:02X}>", b));
  return ids;
}

}  // namespace millrace::tokenizer
