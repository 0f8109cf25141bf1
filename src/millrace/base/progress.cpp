// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/progress.h"

#include <utility>

namespace millrace {

Progress::Progress(Progress* whole, std::string name, int64_t total_bytes)
    : total_bytes_(total_bytes), whole_(whole), name_(std::move(name)) {
  if (whole_ == nullptr) return;
  MutexLock lock(whole_->mutex_);
  whole_->parts_.push_back(this);
}

Progress::~Progress() {
  if (whole_ == nullptr) return;
  MutexLock lock(whole_->mutex_);
  std::erase(whole_->parts_, this);
}

void Progress::set_phase(std::string phase) {
  MutexLock lock(mutex_);
  phase_ = std::move(phase);
}

Progress::Snapshot Progress::snapshot() const {
  Snapshot s{.bytes = bytes_,
             .total_bytes = total_bytes_,
             .items = items_,
             .total_items = total_items_,
             .failed = failed_,
             .seconds = std::chrono::duration<double>(Clock::now() - start_).count()};
  MutexLock lock(mutex_);
  s.phase = phase_;
  for (const Progress* part : parts_) s.parts.push_back({part->name_, part->bytes_, part->total_bytes_});
  return s;
}

}  // namespace millrace
