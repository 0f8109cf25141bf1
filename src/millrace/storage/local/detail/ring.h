// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: transfers through rings of the kernel (io_uring(7)). A thread that calls pread waits for one
// transfer; a thread with a ring has many under way, so few threads keep a disk busy that is fast only when it has much
// to do. Thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/sync.h"
#include "millrace/storage/local/syscalls.h"

namespace millrace::local {

// What the kernel moves at once between memory and a file.
struct Transfer {
  int fd = -1;
  bool is_write = false;
  int64_t offset = 0;
  std::span<std::byte> memory;  // of a write: it is only read
};

// A transfer that waits for its turn. It is dropped unbegun when the rings are.
class RingTask {
 public:
  virtual ~RingTask() = default;
  virtual int priority() const = 0;  // higher begins earlier
  // On a thread of the rings, as `end`. Nothing: there is nothing to move any more, and the task is dropped.
  virtual std::optional<Transfer> begin() = 0;
  // `result`: the bytes that were moved, fewer than asked for perhaps, or -errno. Must not wait, but for what
  // the file system says of the file.
  virtual void end(int64_t result) = 0;
};

class Rings {
 public:
  Rings(Syscalls& sys, int threads);
  ~Rings();  // waits for what has begun
  Rings(const Rings&) = delete;
  Rings& operator=(const Rings&) = delete;

  // Whether the system has rings and allows them, which containers often do not. The first call starts the threads.
  bool can_serve();
  // REQUIRES: can_serve().
  void submit(std::vector<std::unique_ptr<RingTask>> tasks);

 private:
  class Worker;
  struct Shared;
  const std::unique_ptr<Shared> shared_;
};

}  // namespace millrace::local
