// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/save/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/base/log.h"

namespace millrace::checkpoint {

Error forked_error(int64_t step) {
  return Error(ErrorCode::kUnsupported,
               fmt::format("save of step {}: this Saver belongs to the process that forked; create one here", step));
}

Save::Save(int64_t step, int64_t bytes, std::vector<TierTarget> targets, std::chrono::milliseconds tier_timeout,
           Events events)
    : step_(step),
      bytes_(bytes),
      targets_(std::move(targets)),
      tier_timeout_(tier_timeout),
      events_(std::move(events)),
      tiers_(targets_.size()) {
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i].asked) continue;
    tiers_[i].state = TierState::kNotAsked;
    tiers_[i].finished = true;
  }
}

TierState Save::state(size_t tier) const {
  MutexLock lock(mutex_);
  return tiers_[tier].state;
}

bool Save::has_ended(std::optional<size_t> tier) const {
  if (!tier) return done_;
  return tiers_[*tier].state != TierState::kPending;
}

Status Save::failure(std::optional<size_t> tier) const {
  if (tier) return tiers_[*tier].status;
  for (const Tier& each : tiers_) {
    if (!each.status) return each.status;
  }
  return {};
}

Status Save::wait(std::stop_token stop, std::optional<size_t> tier) {
  // After a fork the thread that would finish is the parent's, and so may be the mutex.
  if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step_));
  const std::stop_callback wake(stop, [this] { notify(); });
  MutexLock lock(mutex_);
  while (!has_ended(tier) && !stop.stop_requested()) wait_a_while();
  if (!has_ended(tier))
    return fail(ErrorCode::kCancelled, "stopped waiting for the save of step {}, which goes on", step_);
  Status status = failure(tier);
  reported_ = reported_ || !tier || targets_.size() == 1;
  return status;
}

Result<bool> Save::wait_until(Clock::time_point deadline, std::optional<size_t> tier) {
  if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step_));
  MutexLock lock(mutex_);
  while (!has_ended(tier) && Clock::now() < deadline) wait_a_while(deadline);
  return has_ended(tier);
}

Status Save::wait_removals(std::stop_token stop) {
  if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step_));
  const std::stop_callback wake(stop, [this] { notify(); });
  MutexLock lock(mutex_);
  while (!all_finished() && !stop.stop_requested()) wait_a_while();
  if (all_finished()) return {};
  return fail(ErrorCode::kCancelled, "stopped waiting for the removals behind step {}, which go on", step_);
}

void Save::wait_finished(size_t tier) {
  MutexLock lock(mutex_);
  while (!tiers_[tier].finished) wait_a_while();
}

bool Save::wait_finished_until(Clock::time_point deadline, const std::stop_token& stop) {
  if (generation_ != fork_generation()) return true;  // what goes on is the parent's
  const std::stop_callback wake(stop, [this] { notify(); });
  MutexLock lock(mutex_);
  while (!all_finished() && !stop.stop_requested() && Clock::now() < deadline) wait_a_while(deadline);
  return all_finished();
}

bool Save::is_finished() const {
  MutexLock lock(mutex_);
  return all_finished();
}

bool Save::all_finished() const {
  return std::ranges::all_of(tiers_, &Tier::finished);
}

void Save::notify() {
  MutexLock lock(mutex_);
  changed_.notify_all();
}

void Save::set_reported() {
  MutexLock lock(mutex_);
  reported_ = true;
}

Status Save::take_unreported() {
  MutexLock lock(mutex_);
  while (!done_) wait_a_while();
  if (std::exchange(reported_, true)) return {};
  const bool saved =
      std::any_of(tiers_.begin(), tiers_.end(), [](const Tier& tier) { return tier.state == TierState::kDurable; });
  return saved ? Status() : failure(std::nullopt);
}

void Save::give_up(const std::string& why) {
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < tiers_.size(); ++i) {
      if (!tiers_[i].finished) give_up_tier(i, fail(ErrorCode::kTimeout, "{}: {}", targets_[i].url, why));
    }
  }
  stop_.request_stop();
}

void Save::give_up_tier(size_t at, Status status) {
  Tier& tier = tiers_[at];
  tier.given_up = tier.finished = true;
  events_.given_up(at);
  if (tier.state == TierState::kPending) end(tier, tier.committed ? Status() : std::move(status));
  changed_.notify_all();
}

void Save::stop_with(std::stop_token outer) {
  forward_.emplace(std::move(outer), [this] { stop_.request_stop(); });
}

void Save::wait_a_while(Clock::time_point deadline) {
  const auto now = Clock::now();
  std::vector<std::string> given_up;
  for (size_t i = 0; tier_timeout_.count() > 0 && i < tiers_.size(); ++i) {
    Tier& tier = tiers_[i];
    if (tier.finished || tier.waits) continue;
    const auto gives_up = tier.answered + tier_timeout_;
    if (now < gives_up) {
      deadline = std::min<Clock::time_point>(deadline, gives_up);
      continue;
    }
    given_up.push_back(targets_[i].url);
    give_up_tier(i, fail(ErrorCode::kTimeout, "step {}: {} has not answered for {} s", step_, targets_[i].url,
                         std::chrono::round<std::chrono::seconds>(tier_timeout_).count()));
  }
  if (!given_up.empty()) {
    if (tiers_.size() == 1) return;  // there is none that goes on; the save's error says it
    mutex_.unlock();                 // a log sink may be anything
    for (const std::string& url : given_up)
      log(LogLevel::kWarning, "checkpoint: step {}: {} has not answered for {} s: the other tiers go on without it",
          step_, url, std::chrono::round<std::chrono::seconds>(tier_timeout_).count());
    mutex_.lock();
    return;
  }
  if (deadline == Clock::time_point::max()) return changed_.wait(mutex_);
  static_cast<void>(changed_.wait_until(mutex_, deadline));
}

void Save::alive(size_t tier) {
  MutexLock lock(mutex_);
  tiers_[tier].answered = Clock::now();
}

void Save::set_waiting(size_t tier, bool waits) {
  MutexLock lock(mutex_);
  tiers_[tier].waits = waits;
  tiers_[tier].answered = Clock::now();
  changed_.notify_all();  // its time runs from now on
}

void Save::committed(size_t tier) {
  MutexLock lock(mutex_);
  tiers_[tier].committed = true;
}

void Save::removes(size_t tier) {
  MutexLock lock(mutex_);
  tiers_[tier].answered = Clock::now();
  if (tiers_[tier].state == TierState::kPending) end(tiers_[tier], {});  // else it was given up before
}

bool Save::given_up(size_t tier) const {
  MutexLock lock(mutex_);
  return tiers_[tier].given_up;
}

Status Save::result_of(size_t tier) {
  MutexLock lock(mutex_);
  while (!has_ended(tier)) wait_a_while();
  return failure(tier);
}

void Save::end(Tier& tier, Status status) {
  tier.state = status ? TierState::kDurable : TierState::kFailed;
  tier.status = std::move(status);
  tier.reads_image = false;
  if (&tier == tiers_.data()) first_part_known_ = true;  // without a part, unless it is known
  const bool was_done = done_;
  done_ =
      std::none_of(tiers_.begin(), tiers_.end(), [](const Tier& each) { return each.state == TierState::kPending; });
  if (done_ && !was_done && events_.done) events_.done();
  changed_.notify_all();
}

bool Save::finish(size_t tier, Status status) {
  MutexLock lock(mutex_);
  if (tiers_[tier].given_up) return false;
  tiers_[tier].finished = true;
  if (tiers_[tier].state == TierState::kPending) end(tiers_[tier], std::move(status));
  changed_.notify_all();
  return true;
}

void Save::first_part_ended(std::shared_ptr<const WrittenRecord> part) {
  MutexLock lock(mutex_);
  if (std::exchange(first_part_known_, true)) return;
  first_part_ = std::move(part);
  changed_.notify_all();
}

std::shared_ptr<const WrittenRecord> Save::wait_first_part() {
  MutexLock lock(mutex_);
  while (!first_part_known_) wait_a_while();
  return first_part_;
}

void Save::expect_fill() {
  MutexLock lock(mutex_);
  filled_.reset();
}

void Save::filled(Status status) {
  MutexLock lock(mutex_);
  if (!status) reported_ = true;  // the caller knows
  if (!filled_) filled_ = std::move(status);
  changed_.notify_all();
}

Status Save::wait_filled() {
  MutexLock lock(mutex_);
  while (!filled_) wait_a_while();
  return *filled_;
}

void Save::hold_image(size_t tier) {
  MutexLock lock(mutex_);
  tiers_[tier].reads_image = true;
}

void Save::release_image(size_t tier) {
  MutexLock lock(mutex_);
  tiers_[tier].reads_image = false;
  changed_.notify_all();
}

bool Save::is_image_read() const {
  return std::ranges::any_of(tiers_, &Tier::reads_image);
}

bool Save::wait_image_free(const std::stop_token& stop, Clock::time_point deadline) {
  const std::stop_callback wake(stop, [this] { notify(); });
  MutexLock lock(mutex_);
  while (is_image_read() && !stop.stop_requested() && Clock::now() < deadline) wait_a_while(deadline);
  return !is_image_read();
}

}  // namespace millrace::checkpoint
