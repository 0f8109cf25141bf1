// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/io.h"
#include "millrace/storage/storage.h"

namespace millrace::sync {

// Reads [offset, offset + size) of an object of `storage` into a file without a name in the folder for temporary files
// (TMPDIR), for parts that are too large for memory: they are sent from there. Pieces of the size of `memory` are read
// into it, and more of them at once where `buffers` has room. Does not wait for room, and holds none when it returns;
// the disk's space goes with the answer. REQUIRES: `memory` is not empty. Errors: those of reading; cancelled;
// resource_exhausted (no room on the disk); what the file system says.
[[nodiscard]] Result<std::unique_ptr<FileRange>> spool_part(Storage& storage, const RandomReader& source,
                                                            int64_t offset, int64_t size, std::span<std::byte> memory,
                                                            BufferPool& buffers, const std::stop_token& stop);

}  // namespace millrace::sync
