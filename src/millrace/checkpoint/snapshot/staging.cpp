// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/snapshot/staging.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {

namespace {

constexpr int64_t kShareOfCopies = 4;  // a fourth of the cap

}  // namespace

struct StagingMemory::State {
  int64_t cap = 0;
  std::array<int64_t, 2> limits{};  // by Use
  int64_t copy_share = 0;
  mutable Mutex mutex;
  std::array<int64_t, 2> used GUARDED_BY(mutex){};  // by Use
  int64_t peak GUARDED_BY(mutex) = 0;
};

struct StagingMemory::Reservation::Held {
  std::shared_ptr<State> state;
  size_t use = 0;
  int64_t bytes = 0;
  std::unique_ptr<BufferPool> pool;

  ~Held() {
    pool.reset();
    MutexLock lock(state->mutex);
    state->used[use] -= bytes;
  }
};

BufferPool& StagingMemory::Reservation::pool() const {
  return *held_->pool;
}

void StagingMemory::Reservation::HeldDeleter::operator()(Held* held) const {
  delete held;
}

StagingMemory::StagingMemory(int64_t cap, int64_t tiers_to_copy_to) : state_(std::make_shared<State>()) {
  const int64_t all = cap > 0 ? cap : INT64_MAX;
  const int64_t copies = cap > 0 && tiers_to_copy_to > 0 ? cap / kShareOfCopies : 0;
  state_->cap = all;
  state_->limits = {all - copies, cap > 0 ? copies : INT64_MAX};
  state_->copy_share = cap > 0 ? copies / std::max<int64_t>(tiers_to_copy_to, 1) : INT64_MAX;
}

Result<StagingMemory::Reservation> StagingMemory::reserve(Use use, int64_t bytes) {
  const auto at = static_cast<size_t>(use);
  {
    MutexLock lock(state_->mutex);
    const int64_t left = state_->limits[at] - state_->used[at];
    if (bytes > left)
      return no_memory(fmt::format("a save needs {}, memory_bytes leaves {} of {} for {}", format_bytes(bytes),
                                   format_bytes(std::max<int64_t>(left, 0)), format_bytes(state_->cap),
                                   use == Use::kImage ? "snapshots" : "copies to other tiers"));
    state_->used[at] += bytes;
  }
  Reservation reservation;
  reservation.held_.reset(new Reservation::Held{state_, at, bytes, nullptr});
  ASSIGN_OR_RETURN(
      reservation.held_->pool,
      BufferPool::reserve(*MemoryBudget::process(), use == Use::kImage ? "checkpoint" : "checkpoint tiers", bytes));
  MutexLock lock(state_->mutex);
  state_->peak = std::max(state_->peak, state_->used[0] + state_->used[1]);
  return reservation;
}

int64_t StagingMemory::image_room() const {
  MutexLock lock(state_->mutex);
  const int64_t limit = state_->limits[static_cast<size_t>(Use::kImage)];
  return limit == INT64_MAX ? limit : limit - state_->used[static_cast<size_t>(Use::kImage)];
}
int64_t StagingMemory::copy_share() const {
  return state_->copy_share;
}
int64_t StagingMemory::cap() const {
  return state_->cap;
}
int64_t StagingMemory::peak_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->peak;
}

Status StagedBuffer::make_room(StagingMemory& memory, int64_t bytes) {
  const int64_t needed = in_pages(bytes);
  if (this->bytes() >= needed) return {};
  drop();
  ASSIGN_OR_RETURN(reservation_, memory.reserve(StagingMemory::Use::kImage, needed));
  ASSIGN_OR_RETURN(buffer_, reservation_.pool().acquire(static_cast<size_t>(needed)));
  return {};
}

void StagedBuffer::drop() {
  pinned_ = PinnedRange();
  buffer_ = Buffer();
  reservation_ = StagingMemory::Reservation();
}

bool StagedBuffer::pin() {
  if (pinned_ || buffer_.size() == 0) return true;
  auto range = PinnedRange::pin(span());
  if (range) {
    pinned_ = std::move(*range);
    return true;
  }
  if (range.error().code() == ErrorCode::kUnavailable) return true;  // a later save may have a context
  if (range.error().code() != ErrorCode::kUnsupported)
    log(LogLevel::kWarning, "checkpoint: saves from a GPU will stop training for longer: {}",
        range.error().to_string());
  return false;
}

}  // namespace millrace::checkpoint
