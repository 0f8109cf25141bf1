// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {

// The most threads that move data by default. A few threads saturate a memory bus; more would only take CPUs from
// training.
inline constexpr int kMaxThreads = 8;

// Returns the number of threads for an Executor whose parallel_for also uses the caller's thread. `threads`: the
// user's choice; 0: chosen here.
inline int helper_threads(int threads) {
  const int wanted = threads > 0 ? threads : std::min(available_cpus(), kMaxThreads);
  return std::max(wanted - 1, 1);
}

}  // namespace millrace::checkpoint
