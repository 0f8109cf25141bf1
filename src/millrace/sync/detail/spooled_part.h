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
// (TMPDIR), for parts that are too large for memory: they are sent from there. As many blocks are read at once as
// `buffers` has room for. Holds no memory when it returns; the disk's space goes with the answer.
// Errors: those of reading; cancelled; resource_exhausted (no room); what the file system says.
[[nodiscard]] Result<std::unique_ptr<FileRange>> spool_part(Storage& storage, const RandomReader& source,
                                                            int64_t offset, int64_t size, BufferPool& buffers,
                                                            const std::stop_token& stop);

}  // namespace millrace::sync
