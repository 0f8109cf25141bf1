// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file of token ids behind a head of 1,024 bytes, as llm.c and training scripts derived from it read it
// (docs/format/token_file.md). Thread-safe.

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::formats {

inline constexpr size_t kTokenFileHead = 1024;
inline constexpr int64_t kMaxTokenFileTokens = INT32_MAX;  // the head counts in 32 bits

// The head of a file of `tokens` ids of `width` bytes: 2 (llm.c's files for GPT-2) or 4 (for Llama-3).
// REQUIRES: tokens <= kMaxTokenFileTokens.
std::string token_file_head(int64_t tokens, size_t width);

// Whether the file begins as a token file does. Errors: those of reading.
[[nodiscard]] Result<bool> is_token_file(const RandomReader& file);

// The shard index of a token file that another program wrote: a sample a document. Documents begin at each id
// `document_start`; nothing: the one that llm.c's scripts put there, 50256 (GPT-2) or 128000 (Llama-3). What comes
// before the first is the end of a document of the file before, and a sample too. Reads the file twice.
// Errors: corruption (another version, cut, other bytes than the head counts), invalid_argument (no such id in the
// file), those of reading.
[[nodiscard]] Result<ShardIndex> index_token_file(const RandomReader& shard,
                                                  std::optional<uint32_t> document_start = std::nullopt);

}  // namespace millrace::formats
