// SPDX-License-Identifier: Apache-2.0
#pragma once

// Manages memory of the caller, such as pinned memory, that batches are written into: consecutive buffers of one size.
// A taken buffer is free again when the last batch that uses it is dropped. Thread-safe. The memory must outlive the
// loader that uses it; batches do not keep the memory alive.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::loader {

class BatchRing : public std::enable_shared_from_this<BatchRing> {
 public:
  static constexpr int64_t kAlignment = 64;  // alignment of each buffer, and of each array in it

  // Divides the memory at `data` into `buffers` buffers of `buffer_bytes`. The user of the batches holds up to `kept`
  // of them at once. The other buffers are for batches that are ready or being made. Errors: invalid_argument
  // (alignment; fewer than two other buffers).
  [[nodiscard]] static Result<std::shared_ptr<BatchRing>> create(std::byte* data, int64_t buffer_bytes, int64_t buffers,
                                                                 int64_t kept);

  // Takes the free buffer that was used last and returns its start. Null: `bytes` is larger than a buffer, or no
  // buffer is free.
  std::shared_ptr<std::byte> try_take(int64_t bytes);

  // Returns the number of the buffer that begins at `data`; -1: none.
  int64_t number_of(const std::byte* data) const;
  int64_t buffer_bytes() const { return buffer_bytes_; }
  int64_t buffers() const { return buffers_; }
  int64_t bytes() const { return buffers_ * buffer_bytes_; }
  // Returns the most batches that may be ready or being made at once.
  int64_t most_batches() const { return buffers_ - kept_; }
  int64_t free_buffers() const;

 private:
  BatchRing(std::byte* data, int64_t buffer_bytes, int64_t buffers, int64_t kept);

  std::byte* const data_;
  const int64_t buffer_bytes_, buffers_, kept_;
  mutable Mutex mutex_;
  std::vector<std::byte*> free_ GUARDED_BY(mutex_);
};

}  // namespace millrace::loader
