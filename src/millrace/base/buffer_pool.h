// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory under one cap. A MemoryBudget is the cap of the process (or of a test); a BufferPool is one user's reservation
// inside it (loader, checkpoint, transfers), so that none can starve another. Buffers are page-aligned and recycled.
// Thread-safe. A pool must outlive nothing: buffers keep what they need alive.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "millrace/base/status.h"

namespace millrace {

// What does not fit into memory, as opposed to a disk: resource_exhausted, with ENOMEM.
[[nodiscard]] tl::unexpected<Error> no_memory(std::string message);

class Buffer;

class MemoryBudget {
 public:
  explicit MemoryBudget(int64_t cap_bytes);
  // The budget of this process: MILLRACE_MEMORY (a size) or half of what the machine and its cgroup allow, divided by
  // the number of local ranks (LOCAL_WORLD_SIZE or SLURM_NTASKS_PER_NODE).
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
  // Reserves `bytes` of the budget for `user` until the pool is dropped.
  // Errors: resource_exhausted, naming who holds the rest and the option to change.
  [[nodiscard]] static Result<std::unique_ptr<BufferPool>> reserve(MemoryBudget& budget, std::string user,
                                                                   int64_t bytes);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Waits until `size_bytes` fit under the reservation. A request larger than the whole reservation is refused at once.
  // Errors: resource_exhausted, cancelled.
  [[nodiscard]] Result<Buffer> acquire(size_t size_bytes, std::stop_token stop = {});
  // As acquire, but an empty Buffer where it would wait.
  [[nodiscard]] Result<Buffer> try_acquire(size_t size_bytes);

  int64_t limit_bytes() const;
  int64_t in_use_bytes() const;

 private:
  explicit BufferPool(std::shared_ptr<Buffer::Owner> owner) : owner_(std::move(owner)) {}
  std::shared_ptr<Buffer::Owner> owner_;
};

// Hears of each block of memory of at least kLeastBytes before its pool gives it back to the system: for those who have
// told a device or the kernel of it by address. In a child after fork it hears of nothing.
class PoolMemoryWatch {
 public:
  static constexpr size_t kLeastBytes = 1 << 20;
  // `on_release` may be called from any thread, until the destructor returns; it must not use pools.
  explicit PoolMemoryWatch(std::function<void(std::span<std::byte> block)> on_release);
  ~PoolMemoryWatch();
  PoolMemoryWatch(const PoolMemoryWatch&) = delete;
  PoolMemoryWatch& operator=(const PoolMemoryWatch&) = delete;

  // The block of such a pool that `memory` lies in; empty for all other memory.
  static std::span<std::byte> block_of(std::span<const std::byte> memory);

 private:
  uint64_t id_ = 0;
};

}  // namespace millrace
