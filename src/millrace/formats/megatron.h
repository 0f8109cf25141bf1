// SPDX-License-Identifier: Apache-2.0
#pragma once

// The `.idx` beside a Megatron `.bin` of token ids, as Megatron-LM's IndexedDataset reads it (docs/format/megatron.md).
// Thread-safe.

#include <cstdint>
#include <span>
#include <string>

namespace millrace::formats {

// How wide Megatron-LM takes ids to be for a vocabulary: 2 bytes (uint16) below 65,500 entries, else 4 (int32).
inline constexpr int64_t kMegatronNarrowVocabulary = 65'500;

// Of documents back to back in a `.bin`, one sequence each: `tokens` ids of `width` bytes, 2 or 4.
// REQUIRES: each count is below 2^31.
std::string serialize_megatron_index(std::span<const uint32_t> tokens, size_t width);

}  // namespace millrace::formats
