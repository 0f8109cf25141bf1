// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {

// Threads that move data: a few fill a memory bus, and more would only take CPUs from training.
inline constexpr int kMaxThreads = 8;

// The threads of an Executor whose parallel_for also uses the caller's thread. `threads`: the user's choice; 0: chosen
// here.
inline int helper_threads(int threads) {
  const int wanted = threads > 0 ? threads : std::min(available_cpus(), kMaxThreads);
  return std::max(wanted - 1, 1);
}

}  // namespace millrace::checkpoint
