// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: transfers through io_uring(7). A thread that calls pread waits for one transfer. A thread with a
// ring has many transfers under way, so a few threads keep a disk busy that is fast only with many requests.
// Thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/storage/local/syscalls.h"

namespace millrace::local {

// One transfer between memory and a file.
struct Transfer {
  int fd = -1;
  bool is_write = false;
  int64_t offset = 0;
  std::span<std::byte> memory;  // a write only reads it
};

// A transfer in the queue. Destroying the rings destroys tasks that have not started.
class RingTask {
 public:
  virtual ~RingTask() = default;
  virtual int priority() const = 0;  // higher starts earlier
  // Returns the transfer to start. nullopt: no transfer is needed any more, and the task is destroyed. Called, like
  // `end`, on a thread of the rings.
  virtual std::optional<Transfer> begin() = 0;
  // `result`: the bytes moved, perhaps fewer than requested, or -errno. Must not wait, except for metadata of the
  // file.
  virtual void end(int64_t result) = 0;
};

class Rings {
 public:
  Rings(Syscalls& sys, int threads);
  ~Rings();  // waits for started transfers
  Rings(const Rings&) = delete;
  Rings& operator=(const Rings&) = delete;

  // Whether the system has io_uring and allows it; containers often forbid it. The first call starts the threads.
  bool can_serve();
  // REQUIRES: can_serve().
  void submit(std::vector<std::unique_ptr<RingTask>> tasks);

 private:
  class Worker;
  struct Shared;
  const std::unique_ptr<Shared> shared_;
};

}  // namespace millrace::local
