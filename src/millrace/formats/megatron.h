// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes and reads the `.idx` beside a Megatron `.bin` of token ids, as Megatron-LM's IndexedDataset reads it
// (docs/format/megatron.md). Thread-safe.

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::formats {

inline constexpr std::string_view kMegatronIndexSuffix = ".idx";  // replaces ".bin"

// The vocabulary size that decides the width of ids in Megatron-LM: 2 bytes (uint16) below 65,500 entries, else 4
// (int32).
inline constexpr int64_t kMegatronNarrowVocabulary = 65'500;

// Calls `visit` with the token counts of all documents, several per call. Every call gives the same counts.
using VisitTokens = std::function<Status(const std::function<Status(std::span<const uint32_t> tokens)>& visit)>;

// Writes the `.idx` of a `.bin` with `documents` consecutive documents, one sequence each, with ids of `width` bytes
// (2 or 4). Calls `visit_tokens` twice. Errors: those of `out` and `visit_tokens`. REQUIRES: each count is below 2^31.
[[nodiscard]] Status write_megatron_index(ByteSink& out, int64_t documents, size_t width,
                                          const VisitTokens& visit_tokens);

// Returns the size of the file that write_megatron_index() writes.
int64_t megatron_index_bytes(int64_t documents);

// Compares an `.idx` with the output of write_megatron_index(), block by block.
// Errors: corruption (another content or size, naming the byte), those of reading.
[[nodiscard]] Status check_megatron_index(const RandomReader& file, int64_t documents, size_t width,
                                          const VisitTokens& visit_tokens);

// Makes the shard index of a `.bin` that another program wrote from its `.idx`. Each document becomes a sample. Reads
// both files whole. Errors: corruption (cut, damaged, of another `.bin`), unsupported (documents of several sequences,
// a mode for each sequence, ids of other types than uint16 and int32), those of reading.
[[nodiscard]] Result<ShardIndex> index_megatron(const RandomReader& shard, const RandomReader& idx);

}  // namespace millrace::formats
