// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/progress.h"

#include <utility>

namespace millrace {

void Progress::set_phase(std::string phase) {
  MutexLock lock(mutex_);
  phase_ = std::move(phase);
}

Progress::Snapshot Progress::snapshot() const {
  Snapshot s{bytes_, total_bytes_, items_, total_items_, std::chrono::duration<double>(Clock::now() - start_).count(),
             {}};
  MutexLock lock(mutex_);
  s.phase = phase_;
  return s;
}

}  // namespace millrace
