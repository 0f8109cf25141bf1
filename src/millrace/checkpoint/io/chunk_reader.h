// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads chunks of files in bounded memory and verifies each chunk that has a hash. The storage reads ranges of whole
// pages into pooled buffers, several at once (Storage::submit). Reads can therefore bypass the page cache, however
// tensors and the caller's memory are aligned. Threads verify the bytes that have arrived and copy them out. Blocks;
// thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/executor.h"
#include "millrace/storage/storage.h"

namespace millrace::checkpoint {

struct ChunkRead {
  // Where the verified bytes go: to `out`, to ChunkReadOptions::take, or nowhere.
  enum class Use { kCopy, kTake, kCheckOnly };

  const RandomReader* file = nullptr;
  std::string_view tensor;  // named in messages; empty: the file's header
  int64_t offset = 0;       // in the file
  int64_t bytes = 0;
  std::optional<Hash128> hash;  // nullopt: not verified
  Use use = Use::kCheckOnly;
  std::byte* out = nullptr;  // kCopy only: receives the bytes
  size_t tag = 0;            // kTake only: a number for take()
  int64_t items = 0;         // added to the progress when the chunk is done
};

struct ChunkReadOptions {
  std::stop_token stop;
  Progress* progress = nullptr;  // counts the bytes of tensors
  // Receives the chunks of kTake; called from many threads.
  std::function<void(const ChunkRead&, std::span<const std::byte>)> take;
  // When set, it is called with every failure, one at a time, and reading goes on. Otherwise the first failure ends
  // the read.
  std::function<void(const Error&)> found;
  // When set, it is called first for each chunk that could not be read or has wrong bytes, from many threads. It
  // returns true when the caller gets the chunk elsewhere; the chunk is then no failure.
  std::function<bool(const ChunkRead&, const Error&)> lost;
  // When the storage has ended no read for this long, the reads under way are abandoned, and each chunk still missing
  // is a timeout. A stop then waits for a second at most. Zero: waits for ever.
  std::chrono::milliseconds patience{0};
  std::shared_ptr<const void> needed;  // objects that reads use, such as files; kept until the last read has ended
  std::shared_ptr<Executor> readers;   // when set, its threads read instead of the storage's
};

// REQUIRES: `storage` opened the files of `chunks`. Errors: the first failure: corruption naming file, tensor and
// place; those of reading; cancelled; timeout (patience); resource_exhausted (buffers). All reads have ended on
// return, except abandoned ones.
[[nodiscard]] Status read_chunks(Storage& storage, std::vector<ChunkRead> chunks, Executor& executor,
                                 const ChunkReadOptions& options);

}  // namespace millrace::checkpoint
