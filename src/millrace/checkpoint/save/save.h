// SPDX-License-Identifier: Apache-2.0
#pragma once

// One save under way, in all tiers. The training thread, the threads of the tiers and waiting callers share it.
// Thread-safe.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/records/records.h"

namespace millrace::checkpoint {

Error forked_error(int64_t step);

class Save final : public PendingSave {
 public:
  struct TierTarget {
    std::string url;
    bool asked = true;  // the step goes there
  };
  struct Events {
    std::function<void(size_t tier)> given_up;  // its storage does not answer
    std::function<void()> done;                 // ended in all tiers
  };
  // `targets`: nearest first. `tier_timeout`: how long a tier may make no progress; zero: for ever. The events are
  // called once (`given_up` once per tier), under a lock of this object.
  Save(int64_t step, int64_t bytes, std::vector<TierTarget> targets, std::chrono::milliseconds tier_timeout = {},
       Events events = {});

  int64_t step() const override { return step_; }
  int64_t bytes() const override { return bytes_; }
  bool done() const override { return done_; }
  void filled(Status status) override;
  size_t tiers() const override { return targets_.size(); }
  const std::string& tier_url(size_t tier) const override { return targets_[tier].url; }
  TierState state(size_t tier) const override;
  [[nodiscard]] Status wait(std::stop_token stop, std::optional<size_t> tier) override;
  [[nodiscard]] Result<bool> wait_until(Clock::time_point deadline, std::optional<size_t> tier) override;
  [[nodiscard]] Status wait_removals(std::stop_token stop) override;

  // Waits for the save to end. When no tier has the step, returns the reason once, unless wait() has already returned
  // it.
  [[nodiscard]] Status take_unreported();
  // Ends the save with `why` in all tiers where it has not ended, and asks the work there to stop. A step that is
  // already committed in a tier stays committed.
  void give_up(const std::string& why);
  // Returns a token that stops on give_up(), and when `outer` of stop_with() stops.
  std::stop_token stop_token() const { return stop_.get_token(); }
  // REQUIRES: nobody knows this object yet.
  void stop_with(std::stop_token outer);
  // Marks the failure as reported to the caller, so that take_unreported() does not return it.
  void set_reported();
  // Waits until the save has ended in `tier` and returns its status; returns at once when the step does not go there.
  [[nodiscard]] Status result_of(size_t tier);
  // Notes that the storage of `tier` has answered.
  void alive(size_t tier);
  // Sets whether `tier` waits for something other than its storage. While it does, the save does not give up the tier.
  void set_waiting(size_t tier, bool waits);
  // Notes that the step is committed in `tier`. It stays committed whatever happens before finish().
  void committed(size_t tier);
  // Ends the save in `tier` for callers of wait(). From here until finish() the tier removes older steps.
  void removes(size_t tier);
  // Ends all work for the save in `tier`, with `status` unless removes() was called before. False: the tier was given
  // up before.
  bool finish(size_t tier, Status status);
  // Waits until `tier` has been finished or given up; returns at once when the step does not go there.
  void wait_finished(size_t tier);
  // Waits until all tiers have been finished or given up. False: the deadline or `stop` came first.
  [[nodiscard]] bool wait_finished_until(Clock::time_point deadline, const std::stop_token& stop = {});
  bool is_finished() const;
  bool given_up(size_t tier) const;
  // Returns true for the first call only, so that a save in several tiers is counted once.
  bool claim_success() { return !claimed_.exchange(true); }
  bool goes_to(size_t tier) const { return targets_[tier].asked; }

  // Makes wait_filled() wait for filled(). REQUIRES: no other thread has this object yet.
  void expect_fill();
  // Waits for filled(), if it was expected.
  [[nodiscard]] Status wait_filled();

  // Reports that the nearest tier has this rank's file. nullptr: it failed there, and the other tiers write from the
  // image too.
  void first_part_ended(std::shared_ptr<const WrittenRecord> part);
  std::shared_ptr<const WrittenRecord> wait_first_part();
  // The image may be overwritten when every tier that reads it has called release_image() or was given up. A tier that
  // was given up keeps its image memory in use.
  void hold_image(size_t tier);
  void release_image(size_t tier);
  // False: `stop` or the deadline came first.
  bool wait_image_free(const std::stop_token& stop = {}, Clock::time_point deadline = Clock::time_point::max());

 private:
  struct Tier {
    TierState state = TierState::kPending;
    Status status;
    Clock::time_point answered = Clock::now();
    bool waits = false;  // waits for something other than its storage
    bool committed = false;
    bool finished = false;  // or given up; nothing waits for work there any more
    bool given_up = false;
    bool reads_image = false;
  };
  void notify();
  void end(Tier& tier, Status status) REQUIRES_LOCK(mutex_);
  // Ends the tier with `status`, unless the step is committed there.
  void give_up_tier(size_t at, Status status) REQUIRES_LOCK(mutex_);
  bool all_finished() const REQUIRES_LOCK(mutex_);
  // Waits for a change, for a short time at most. Gives up tiers that do not answer.
  void wait_a_while(Clock::time_point deadline = Clock::time_point::max()) REQUIRES_LOCK(mutex_);
  bool has_ended(std::optional<size_t> tier) const REQUIRES_LOCK(mutex_);
  bool is_image_read() const REQUIRES_LOCK(mutex_);
  // Returns the first failure of `tier`, or of any tier when nullopt.
  [[nodiscard]] Status failure(std::optional<size_t> tier) const REQUIRES_LOCK(mutex_);

  const int64_t step_, bytes_;
  const std::vector<TierTarget> targets_;
  const std::chrono::milliseconds tier_timeout_;
  const Events events_;
  const uint64_t generation_ = fork_generation();
  std::stop_source stop_;
  std::optional<std::stop_callback<std::function<void()>>> forward_;
  std::atomic<bool> done_{false}, claimed_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Tier> tiers_ GUARDED_BY(mutex_);
  bool reported_ GUARDED_BY(mutex_) = false;
  std::optional<Status> filled_ GUARDED_BY(mutex_) = Status();  // nullopt: not yet
  bool first_part_known_ GUARDED_BY(mutex_) = false;
  std::shared_ptr<const WrittenRecord> first_part_ GUARDED_BY(mutex_);
};

}  // namespace millrace::checkpoint
