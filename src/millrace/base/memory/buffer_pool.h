// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory under one cap. A MemoryBudget is the cap of the process (or of a test); a BufferPool is the part of the cap
// reserved for one user (loader, checkpoint, transfers), so that no user can starve another. Buffers are page-aligned
// and recycled. Thread-safe. A pool may be destroyed while its buffers are in use.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"

namespace millrace {

// Returns the error for too little memory (not disk space): resource_exhausted, with ENOMEM.
[[nodiscard]] tl::unexpected<Error> no_memory(std::string message);

class Buffer;

class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t cap_bytes);
  // Returns the budget of this process: MILLRACE_MEMORY (a size) or half of the memory that the machine and its cgroup
  // allow, divided by the number of local ranks (LOCAL_WORLD_SIZE or SLURM_NTASKS_PER_NODE).
  static std::shared_ptr<MemoryBudget> process();

  int64_t cap_bytes() const;
  int64_t reserved_bytes() const;

 private:
  friend class Buffer;
  friend class BufferPool;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Owned memory, given back to its pool when dropped. Contents are not cleared.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class BufferPool;
  struct Owner;
  std::shared_ptr<Owner> owner_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

class BufferPool {
 public:
  // Reserves `bytes` of the budget for `user` until the pool is dropped. Errors: resource_exhausted, naming the users
  // that hold the rest and the option to change.
  [[nodiscard]] static Result<std::unique_ptr<BufferPool>> reserve(MemoryBudget& budget, std::string user,
                                                                   int64_t bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Waits until `size_bytes` fit under the reservation. A request larger than the whole reservation is refused at once.
  // Errors: resource_exhausted, cancelled.
  [[nodiscard]] Result<Buffer> acquire(size_t size_bytes, std::stop_token stop = {});
  // As acquire(), but returns an empty Buffer instead of waiting.
  [[nodiscard]] Result<Buffer> try_acquire(size_t size_bytes);

  int64_t limit_bytes() const;
  int64_t in_use_bytes() const;

 private:
  explicit BufferPool(std::shared_ptr<Buffer::Owner> owner) : owner_(std::move(owner)) {}
  std::shared_ptr<Buffer::Owner> owner_;
};

}  // namespace millrace
