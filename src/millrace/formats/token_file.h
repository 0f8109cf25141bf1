// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file with a head of 1,024 bytes followed by token ids, as llm.c and training scripts derived from it read it
// (docs/format/token_file.md). Thread-safe.

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::formats {

inline constexpr size_t kTokenFileHead = 1024;
inline constexpr int64_t kMaxTokenFileTokens = INT32_MAX;  // the head stores the count in 32 bits

// Returns the head of a file of `tokens` ids of `width` bytes: 2 (llm.c's files for GPT-2) or 4 (for Llama-3).
// REQUIRES: tokens <= kMaxTokenFileTokens.
std::string token_file_head(int64_t tokens, size_t width);

// Returns whether the file begins like a token file. Errors: those of reading.
[[nodiscard]] Result<bool> is_token_file(const RandomReader& file);

// Makes the shard index of a token file that another program wrote. Each document becomes a sample. A document begins
// at each id `document_start`; nullopt: the id that llm.c's scripts write there, 50256 (GPT-2) or 128000 (Llama-3).
// Ids before the first start belong to a document of the previous file and become a sample too. Reads the file twice.
// Errors: corruption (another version, cut, other bytes than the head counts), invalid_argument (no such id in the
// file), those of reading.
[[nodiscard]] Result<ShardIndex> index_token_file(const RandomReader& shard,
                                                  std::optional<uint32_t> document_start = std::nullopt);

}  // namespace millrace::formats
