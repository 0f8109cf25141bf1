// SPDX-License-Identifier: Apache-2.0
#pragma once

// Host memory that a CUDA device copies from and to by itself. The driver's library is opened on first use; this code
// needs no CUDA to build. Not thread-safe, but different ranges may be pinned on different threads.

#include <cstddef>
#include <span>
#include <string>

#include "millrace/base/status.h"

namespace millrace {

// Pins memory while it exists.
class PinnedRange {
 public:
  PinnedRange() = default;
  // Touches and pins `memory`, for all devices; about 0.2 s a GB. It makes no context on a device, because one takes
  // memory there. It uses the context of this thread or, where it has none, the last one that a thread had here.
  // `library`: the driver's; tests name another. Errors: unsupported (no driver), unavailable (no thread that called
  // this or see_context() has used a device), resource_exhausted (the driver refuses, naming its code).
  // REQUIRES: `memory` outlives the range, and the process is not forked while it is in use.
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
