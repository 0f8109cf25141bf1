// SPDX-License-Identifier: Apache-2.0
#pragma once

// The memory of the host that a Saver takes for its saves: for snapshots, for larger saves that go through it, for
// copies between tiers.

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
// `bytes`, rounded up to whole pages.
inline int64_t in_pages(int64_t bytes) {
  return (bytes + kStagingPage - 1) / kStagingPage * kStagingPage;
}

// Counts what one Saver takes, also for saves that hang in storage, and holds it below a cap. Thread-safe.
class StagingMemory {
 public:
  enum class Use { kImage, kCopy };

  // cap: 0: none. With tiers to copy to, a quarter of it is theirs, an equal share for each.
  StagingMemory(int64_t cap, int64_t tiers_to_copy_to);

  // Memory that counts while this exists. It must outlive the buffers of its pool.
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
  // Errors: resource_exhausted (this cap or the process's).
  [[nodiscard]] Result<Reservation> reserve(Use use, int64_t bytes);

  // Bytes left for images; INT64_MAX: no cap.
  int64_t image_room() const;
  // Bytes that one copy may take; INT64_MAX: no cap.
  int64_t copy_share() const;
  int64_t cap() const;
  // The most that was taken at once.
  int64_t peak_bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// One run of such memory, page-aligned, kept until it is dropped or must be larger. For one thread at a time.
class StagedBuffer {
 public:
  // Room for `bytes`: what is there already, unless that is less. The contents are lost then.
  [[nodiscard]] Status make_room(StagingMemory& memory, int64_t bytes);
  void drop();
  // Pins it for CUDA devices. Without that copies from a device are right, too, but each stops the thread that asks for
  // it. False: it never will be, as there is no driver or the driver refuses; said in the log.
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
