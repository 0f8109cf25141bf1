// SPDX-License-Identifier: Apache-2.0
#pragma once

// The memory of a snapshot, and the threads that fill and hash it. For one thread at a time.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>

#include "millrace/base/status.h"
#include "millrace/base/thread/executor.h"
#include "millrace/checkpoint/io/threads.h"
#include "millrace/checkpoint/snapshot/staging.h"

namespace millrace::checkpoint {

// Touches the pages of `memory` until `stop`. REQUIRES: no other thread uses the memory.
inline void touch_pages(std::span<std::byte> memory, const std::stop_token& stop) {
  constexpr size_t kStep = size_t{16} << 20, kPage = 4096;
  for (size_t at = 0; at < memory.size() && !stop.stop_requested(); at += kStep) {
    const auto step = memory.subspan(at, std::min(kStep, memory.size() - at));
    for (size_t page = 0; page < step.size(); page += kPage) step[page] = std::byte{0};
  }
}

// The memory of a snapshot and the threads that fill and hash it. A save that hangs in storage keeps its Workspace.
struct Workspace {
  Workspace(int threads, bool pin) : executor(helper_threads(threads), "mr-ckpt"), is_pinned(pin) {}

  void pin_image() { is_pinned = is_pinned && image.pin(); }

  Executor executor;
  StagedBuffer image;  // bytes of the rank's file; kept between saves, so its pages are already mapped
  bool is_pinned;      // true while the driver has the image pinned
};

}  // namespace millrace::checkpoint
