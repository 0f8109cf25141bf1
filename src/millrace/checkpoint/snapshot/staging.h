// SPDX-License-Identifier: Apache-2.0
#pragma once

// Host memory of a Saver: for snapshots, for larger saves that go through it in pieces, for copies between tiers.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/memory/pinned.h"
#include "millrace/base/status.h"

namespace millrace::checkpoint {

inline constexpr int64_t kStagingPage = 4096;
// Returns `bytes` rounded up to whole pages.
inline int64_t in_pages(int64_t bytes) {
  return (bytes + kStagingPage - 1) / kStagingPage * kStagingPage;
}

// Counts the memory that one Saver takes, including saves that hang in storage, and keeps it within a cap.
// Thread-safe.
class StagingMemory {
 public:
  enum class Use { kImage, kCopy };

  // `cap`: bytes; 0: no cap. With tiers to copy to, a quarter of the cap is for copies, an equal share for each tier.
  StagingMemory(int64_t cap, int64_t tiers_to_copy_to);

  // Memory that is counted while this object exists. It must outlive the buffers of its pool.
  class Reservation {
   public:
    Reservation() = default;
    BufferPool& pool() const;
    explicit operator bool() const { return held_ != nullptr; }

   private:
    friend class StagingMemory;
    struct Held;
    struct HeldDeleter {
      void operator()(Held* held) const;
    };
    std::unique_ptr<Held, HeldDeleter> held_;
  };
  // Reserves memory. Errors: resource_exhausted (this cap or the process's budget).
  [[nodiscard]] Result<Reservation> reserve(Use use, int64_t bytes);

  // Returns the bytes left for images; INT64_MAX: no cap.
  int64_t image_room() const;
  // Returns the bytes that one copy may take; INT64_MAX: no cap.
  int64_t copy_share() const;
  int64_t cap() const;
  // Returns the most bytes that were taken at once.
  int64_t peak_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// One contiguous, page-aligned buffer of staging memory. It stays until it is dropped or must grow. For one thread at
// a time.
class StagedBuffer {
 public:
  // Makes room for `bytes`. Keeps the buffer when it is large enough; otherwise takes a larger one, and the contents
  // are lost.
  [[nodiscard]] Status make_room(StagingMemory& memory, int64_t bytes);
  void drop();
  // Pins the buffer for CUDA devices. Copies from a device into memory that is not pinned are correct as well, but
  // each blocks the thread that starts it. False: pinning is impossible because there is no driver or the driver
  // refuses; the log says so.
  bool pin();

  std::span<std::byte> span() const { return buffer_.span(); }
  std::byte* data() const { return buffer_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(buffer_.size()); }

 private:
  StagingMemory::Reservation reservation_;
  Buffer buffer_;
  PinnedRange pinned_;
};

}  // namespace millrace::checkpoint
