// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of the caller that batches are written into, such as pinned memory: buffers of one size, one behind the other.
// A buffer that was taken comes back when the last batch over it is dropped. Thread-safe. The memory must outlive the
// loader that uses it; batches do not keep it.

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

  // `buffers` buffers of `buffer_bytes` at `data`. Whoever takes batches holds up to `kept` of them at once; the others
  // are for batches that are ready or being made. Errors: invalid_argument (the alignment; no two buffers are left).
  [[nodiscard]] static Result<std::shared_ptr<BatchRing>> create(std::byte* data, int64_t buffer_bytes, int64_t buffers,
                                                                 int64_t kept);

  // The start of a free buffer, the one used last; null where `bytes` are more than a buffer has, or none is free.
  std::shared_ptr<std::byte> try_take(int64_t bytes);

  // Which buffer begins at `data`; -1: none.
  int64_t number_of(const std::byte* data) const;
  int64_t buffer_bytes() const { return buffer_bytes_; }
  int64_t buffers() const { return buffers_; }
  int64_t bytes() const { return buffers_ * buffer_bytes_; }
  // The most batches that may be ready or in the making at once.
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
