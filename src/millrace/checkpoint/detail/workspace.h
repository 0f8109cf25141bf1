// SPDX-License-Identifier: Apache-2.0
#pragma once

// The memory of a snapshot and its threads, for saver.cpp. For one thread at a time.

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/executor.h"
#include "millrace/base/log.h"
#include "millrace/base/pinned.h"
#include "millrace/base/status.h"
#include "millrace/checkpoint/detail/threads.h"

namespace millrace::checkpoint {

// Touches the pages of `memory` until `stop`. REQUIRES: no other thread uses the memory.
inline void touch_pages(std::span<std::byte> memory, const std::stop_token& stop) {
  constexpr size_t kStep = size_t{16} << 20, kPage = 4096;
  for (size_t at = 0; at < memory.size() && !stop.stop_requested(); at += kStep) {
    const auto step = memory.subspan(at, std::min(kStep, memory.size() - at));
    for (size_t page = 0; page < step.size(); page += kPage) step[page] = std::byte{0};
  }
}

// The memory of a snapshot and the threads that fill and hash it. A save that hangs in storage keeps its own.
struct Workspace {
  Workspace(int threads, bool pin) : executor(helper_threads(threads), "mr-ckpt"), is_pinned(pin) {}

  // Memory for an image of `bytes`: what the last save used, unless this one needs more.
  [[nodiscard]] Status make_room(int64_t bytes) {
    constexpr int64_t kPage = 4096;
    const int64_t needed = (bytes + kPage - 1) / kPage * kPage;
    if (static_cast<int64_t>(image.size()) >= needed) return {};
    pinned = PinnedRange();
    image = Buffer();
    pool.reset();
    ASSIGN_OR_RETURN(pool, BufferPool::reserve(*MemoryBudget::process(), "checkpoint", needed));
    ASSIGN_OR_RETURN(image, pool->acquire(static_cast<size_t>(needed)));
    return {};
  }

  // Without it copies from a device are right, too, but each stops the thread that asks for it.
  void pin_image() {
    if (!is_pinned || pinned) return;
    if (auto range = PinnedRange::pin(image.span())) {
      pinned = std::move(*range);
    } else if (range.error().code() != ErrorCode::kUnavailable) {
      is_pinned = false;
      if (range.error().code() != ErrorCode::kUnsupported)
        log(LogLevel::kWarning, "checkpoint: saves from a GPU will stop training for longer: {}",
            range.error().to_string());
    }
  }

  Executor executor;
  std::unique_ptr<BufferPool> pool;
  // Of the rank's file, or what it goes through; kept from save to save, so that its pages are there.
  Buffer image;
  bool is_pinned;  // as far as the driver does it
  PinnedRange pinned;
};

}  // namespace millrace::checkpoint
