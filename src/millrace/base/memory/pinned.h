// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pins host memory, so that a CUDA device can copy from and to it by itself. The driver's library is opened on first
// use; this code needs no CUDA to build. Not thread-safe, but different ranges may be pinned on different threads.

#include <cstddef>
#include <span>
#include <string>

#include "millrace/base/status.h"

namespace millrace {

// Memory that stays pinned while this object exists.
class PinnedRange {
 public:
  PinnedRange() = default;
  // Touches and pins `memory` for all devices, which takes about 0.2 s per GB. Makes no context on a device, because a
  // context takes memory there. Uses the context of this thread, or else the last context that pin() or see_context()
  // saw on another thread. `library`: the file of the driver; tests name another. Errors: unsupported (no driver),
  // unavailable (no thread that called this or see_context() has used a device), resource_exhausted (the driver
  // refuses, naming its code). REQUIRES: `memory` outlives the range, and the process is not forked while it is in
  // use.
  [[nodiscard]] static Result<PinnedRange> pin(std::span<std::byte> memory,
                                               const std::string& library = "libcuda.so.1");
  // Remembers this thread's context, if it has one, for threads that have none.
  static void see_context(const std::string& library = "libcuda.so.1");
  PinnedRange(PinnedRange&& other) noexcept { *this = std::move(other); }
  PinnedRange& operator=(PinnedRange&& other) noexcept;
  ~PinnedRange();

  explicit operator bool() const { return driver_ != nullptr; }

 private:
  struct CudaDriver* driver_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace millrace
