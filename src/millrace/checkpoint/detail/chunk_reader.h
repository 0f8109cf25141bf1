// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads hash chunks of rank files on many threads and verifies every one, in bounded memory. Small chunks that are
// neighbours in their file are read in one go. Blocks; thread-safe.

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "millrace/base/executor.h"
#include "millrace/base/hash.h"
#include "millrace/base/io.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"

namespace millrace::checkpoint {

struct ChunkRead {
  const RandomReader* file = nullptr;
  std::string_view tensor;  // for messages
  int64_t offset = 0;       // in the file
  int64_t bytes = 0;        // at most kChunkBytes
  Hash128 hash;
  std::byte* out = nullptr;  // where the bytes go; null: to `take`, through scratch memory
  size_t tag = 0;            // for `take`
  int64_t items = 0;         // to add to the progress when it is done
};

struct ChunkReadOptions {
  std::stop_token stop;
  Progress* progress = nullptr;
  // Gets the verified bytes of chunks without `out`; called from many threads.
  std::function<void(const ChunkRead&, std::span<const std::byte>)> take;
  // When set, is told of every failure, one at a time, and reading goes on; else the first failure ends it.
  std::function<void(const Error&)> found;
};

// Errors: the first failure: corruption naming file, tensor and place; those of reading; cancelled; resource_exhausted
// (scratch memory).
[[nodiscard]] Status read_chunks(std::vector<ChunkRead> chunks, Executor& executor, const ChunkReadOptions& options);

}  // namespace millrace::checkpoint
