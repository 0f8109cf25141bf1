// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies of objects so small that to hand each from thread to thread costs more than to move it: many are under way on
// few threads. A thread does what comes next of one of them (begin it, write what was read, end it) and takes the next,
// of the same copy or of another; it sleeps only when there is nothing to do. Thread-safe.

#include <memory>

#include "millrace/base/buffer_pool.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {

class SmallCopies {
 public:
  // Copies that have begun and not ended.
  static constexpr int64_t kMostBegun = 128;

  // At most `most_threads` threads, which are started as they are needed. `buffers` outlives this.
  SmallCopies(BufferPool& buffers, int most_threads);
  // Waits for all that were started.
  ~SmallCopies();
  SmallCopies(const SmallCopies&) = delete;
  SmallCopies& operator=(const SmallCopies&) = delete;

  // Whether it is one for start(): small, and nothing has to be asked of a server before it is read and written.
  bool takes(const CopyRequest& request) const;
  // REQUIRES: takes(request).
  void start(CopyRequest request);

 private:
  struct Work;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::sync
