// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file of nothing but token ids behind a head of 1,024 bytes, as llm.c and the training scripts after it read it
// (docs/format/token_file.md). Thread-safe.

#include <cstdint>
#include <string>

namespace millrace::formats {

inline constexpr size_t kTokenFileHead = 1024;
inline constexpr int64_t kMaxTokenFileTokens = INT32_MAX;  // the head counts in 32 bits

// Of `tokens` ids of `width` bytes: 2 (llm.c's files for GPT-2) or 4 (for Llama-3).
// REQUIRES: tokens <= kMaxTokenFileTokens.
std::string token_file_head(int64_t tokens, size_t width);

}  // namespace millrace::formats
