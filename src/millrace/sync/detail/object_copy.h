// SPDX-License-Identifier: Apache-2.0
#pragma once

// One copy from its plan to its commit: parts are read, many at once, hashed in order by the thread that called, and
// written or copied, many at once. Thread-safe between copies.

#include <atomic>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/executor.h"
#include "millrace/sync/detail/copy_plan.h"

namespace millrace::sync {

// What copies share.
struct CopyTools {
  BufferPool& buffers;
  Executor& blocking;         // for what has no asynchronous form: copies inside a storage
  std::atomic<int>& sending;  // parts that are sent from files now
};

// REQUIRES: job.progress is not null.
[[nodiscard]] Result<TransferReport> copy_object(const CopyTools& tools, const CopyJob& job);

}  // namespace millrace::sync
