// SPDX-License-Identifier: Apache-2.0
// Saver: checks the arguments, keeps the saves in order, ends within limits. What a save does: save_job.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/memory/pinned.h"
#include "millrace/base/text/units.h"
#include "millrace/base/text/utf8.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/save/save.h"
#include "millrace/checkpoint/save/saver_core.h"
#include "millrace/checkpoint/save/stall_timer.h"
#include "millrace/checkpoint/save_job.h"
#include "millrace/checkpoint/snapshot/rank_file.h"
#include "millrace/checkpoint/snapshot/workspace.h"

namespace millrace::checkpoint {

namespace {

constexpr size_t kMaxStateBytes = 64 << 20;  // escaped at worst sixfold, it still fits into a record
constexpr size_t kMostUnfinished = 3;        // saves, with tiers; more would hide a tier that is too slow

class RankSaver final : public Saver {
 public:
  RankSaver(Location root, const SaverOptions& options)
      : core_(std::make_shared<Core>(std::move(root), options)),
        work_(std::make_shared<Workspace>(options.threads, options.pin)),
        last_of_tier_(core_->tiers.size()) {}

  ~RankSaver() override {
    if (generation_ != fork_generation()) {
      abandon();  // the threads and any locked mutex are the parent's
      return;
    }
    stop_touching();
    bool ended = all_end_until(Clock::now() + core_->options.commit_timeout);
    if (!ended) {
      core_->stop.request_stop();
      ended = all_end_until(Clock::now() + kStopGrace);
    }
    if (ended) {
      leave_hanging();
      core_->bases.close();
      return;
    }
    log(LogLevel::kError, "checkpoint: the save of step {} hangs in storage and is left behind",
        running_.back().save->step());
    abandon();
  }

  [[nodiscard]] Result<std::shared_ptr<PendingSave>> save(int64_t step, std::span<const TensorToSave> tensors,
                                                          std::string state, std::string rank_state,
                                                          StepMetrics metrics, std::stop_token stop,
                                                          const FillImage& fill) override {
    return start(step, tensors, {std::move(state), std::move(rank_state), std::move(metrics)}, stop, fill);
  }

  [[nodiscard]] Result<std::shared_ptr<PendingSave>> save_part(int64_t step, std::span<const TensorToSave> tensors,
                                                               std::string rank_state, std::stop_token stop,
                                                               const FillImage& fill) override {
    if (core_->tiers.size() > 1)
      return fail(ErrorCode::kUnsupported, "save_part: a Saver with tiers commits each of them by itself; use save()");
    return start(step, tensors, {std::nullopt, std::move(rank_state)}, stop, fill);
  }

  [[nodiscard]] Status commit(int64_t step, std::string state, StepMetrics metrics) override {
    if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step));
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(take_failure({}));
    if (!core_->part || core_->part->part.step != step)
      return fail(ErrorCode::kInvalidArgument, "commit: no part of step {} was saved, or it is committed", step);
    RETURN_IF_ERROR(check_state(step, state));
    RETURN_IF_ERROR(clean_metrics(step, metrics));
    const auto documents =
        std::make_shared<const Documents>(Documents{std::move(state), "null", std::move(metrics), part_line_});
    running_.push_back(launch_commit(core_, *std::exchange(core_->part, std::nullopt), documents));
    const auto save = running_.back().save;
    return with_context(save->wait({}, std::nullopt), fmt::format("rank {}", core_->options.rank));
  }

  void abandon(int64_t step, const Error& cause) override {
    if (generation_ != fork_generation() || core_->options.world_size == 1) return;
    MutexLock lock(mutex_);
    SaveJob(core_, work_, file_, step, {"null", "null"}).tell_others(cause);
    last_step_ = std::max(last_step_, step);
    for (auto& tier : core_->tiers) tier.sweep = true;
  }

  void continue_from(std::optional<Lineage> line) override {
    if (generation_ != fork_generation()) return;
    MutexLock lock(mutex_);
    line_ = std::move(line);
  }

  const Metrics& metrics() const override { return core_->metrics; }
  int64_t referred_bytes() const override { return core_->referred_bytes; }
  int64_t peak_memory_bytes() const override { return core_->memory.peak_bytes(); }

  // Takes the image's memory and touches it behind the caller's back. A save that is larger than the cap has none.
  Status reserve(int64_t bytes) {
    if (in_pages(bytes) > core_->image_room(*work_)) return {};
    RETURN_IF_ERROR(work_->image.make_room(core_->memory, bytes));
    if (core_->options.pin) PinnedRange::see_context();
    toucher_ = Thread("mr-ckpt-touch", [work = work_, stop = touching_.get_token()] {
      touch_pages(work->image.span(), stop);
      if (!stop.stop_requested()) work->pin_image();
    });
    return {};
  }

 private:
  Result<std::shared_ptr<PendingSave>> start(int64_t step, std::span<const TensorToSave> tensors, Documents documents,
                                             const std::stop_token& stop, const FillImage& fill) {
    if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step));
    MutexLock lock(mutex_);
    const StallTimer stall(core_->metrics);
    RETURN_IF_ERROR(take_failure(stop));
    if (core_->tiers.size() == 1 && core_->stuck.count(0) > 0)
      return fail(ErrorCode::kUnavailable, "{} still does not answer an older save", core_->tiers[0].options.root.url);
    if (core_->part.has_value()) core_->tiers[0].sweep = true;  // never committed
    core_->part.reset();
    RETURN_IF_ERROR(check_arguments(step, tensors, fill != nullptr));
    if (documents.state) RETURN_IF_ERROR(check_state(step, *documents.state));
    RETURN_IF_ERROR(check_state(step, documents.rank_state));
    RETURN_IF_ERROR(clean_metrics(step, documents.metrics));
    if (!file_ || !file_->matches(tensors)) {
      ASSIGN_OR_RETURN(file_, RankFile::plan(tensors));
    }
    stop_touching();
    if (work_.use_count() > 1)  // one hangs in storage
      work_ = std::make_shared<Workspace>(core_->options.threads, core_->options.pin);
    const auto line = line_ ? std::optional(lineage_below(*line_, step)) : std::nullopt;
    documents.line = line;
    SaveJob job(core_, work_, file_, step, std::move(documents));
    if (Status taken = job.take(tensors, fill); !taken) {
      if (job.has_told_others()) last_step_ = step;
      return tl::unexpected<Error>(std::move(taken).error());
    }
    take_step(step, line);
    running_.push_back(job.launch(last_of_tier_));
    const auto save = running_.back().save;
    RETURN_IF_ERROR(job.await_tensors(stop));
    return save;
  }

  // `step` is the last one from now on, and the next save continues it. `line`: what it continues itself.
  void take_step(int64_t step, const std::optional<Lineage>& line) REQUIRES_LOCK(mutex_) {
    last_step_ = step;
    if (!line_) return;
    part_line_ = line;
    line_ = continue_line(*std::move(line_), core_->options.attempt, step);
  }

  // The threads of a save that has ended. One that hangs in storage is left to itself.
  void forget(RunningSave running) {
    for (auto& [tier, thread] : running.threads) {
      if (running.save->given_up(tier) && thread.joinable()) thread.detach();
    }
  }
  void leave_hanging() {
    while (!running_.empty()) {
      forget(std::move(running_.front()));
      running_.pop_front();
    }
  }

  // Waits for the saves that must have ended before the next. Their failure, unless wait() has returned it; cancelled
  // after `stop`, and they go on.
  Status take_failure(const std::stop_token& stop) REQUIRES_LOCK(mutex_) {
    const auto stopped = [](const Save& save) {
      return fail(ErrorCode::kCancelled, "stopped waiting for the save of step {}, which goes on", save.step());
    };
    const size_t most = core_->tiers.size() == 1 ? 1 : kMostUnfinished;
    while (!running_.empty() && (running_.size() >= most || running_.front().save->is_finished())) {
      const auto save = running_.front().save;
      if (!save->wait_finished_until(Clock::now() + core_->patience(), stop)) {
        if (stop.stop_requested()) return stopped(*save);
        give_up(*save);
      }
      Status status = save->take_unreported();
      forget(std::move(running_.front()));
      running_.pop_front();
      RETURN_IF_ERROR(with_context(std::move(status), fmt::format("the save of step {} failed", save->step())));
    }
    if (!running_.empty()) {
      Save& last = *running_.back().save;
      if (!last.wait_image_free(stop, Clock::now() + core_->patience())) {
        if (stop.stop_requested()) return stopped(last);
        give_up(last);
      }
    }
    return {};
  }

  // Training waits no longer for a save that is too slow. What it has under way gets a moment to stop, so that the next
  // save finds the memory and the storage free.
  void give_up(Save& save) {
    save.give_up(fmt::format(
        "rank {}: step {} is still being saved {} s after the next save() was called; save less "
        "often, or raise commit_timeout",
        core_->options.rank, save.step(), std::chrono::round<std::chrono::seconds>(core_->patience()).count()));
    const auto deadline = Clock::now() + kStopGrace;
    for (size_t tier = 0; tier < save.tiers(); ++tier) {
      if (save.given_up(tier)) core_->stuck.wait_until_none(tier, deadline);
    }
  }

  void stop_touching() {
    touching_.request_stop();
    toucher_ = Thread();
  }
  bool all_end_until(Clock::time_point deadline) {
    return std::ranges::all_of(running_,
                               [&](const RunningSave& each) { return each.save->wait_finished_until(deadline); });
  }

  // Leaves threads that cannot be joined, and what they use, to the end of the process.
  void abandon() {
    static_cast<void>(std::make_unique<std::deque<RunningSave>>(std::move(running_)).release());
    static_cast<void>(std::make_unique<Thread>(std::move(toucher_)).release());
    static_cast<void>(std::make_unique<std::shared_ptr<Workspace>>(work_).release());
    static_cast<void>(std::make_unique<std::shared_ptr<Core>>(core_).release());
  }

  static Status check_state(int64_t step, std::string_view text) {
    if (!is_utf8(text)) return fail(ErrorCode::kInvalidArgument, "step {}: a state that is not UTF-8", step);
    if (text.size() > kMaxStateBytes)
      return fail(ErrorCode::kInvalidArgument, "step {}: a state of {}; states are small, at most {}", step,
                  format_bytes(std::ssize(text)), format_bytes(kMaxStateBytes));
    return {};
  }

  // Leaves out values that are not finite: a loss that has become NaN is no reason to lose the save.
  static Status clean_metrics(int64_t step, StepMetrics& metrics) {
    for (const auto& [name, value] : metrics) {
      if (!is_utf8(name)) return fail(ErrorCode::kInvalidArgument, "step {}: a metric's name is not UTF-8", step);
    }
    std::erase_if(metrics, [](const auto& metric) { return !std::isfinite(metric.second); });
    return {};
  }

  Status check_arguments(int64_t step, std::span<const TensorToSave> tensors, bool is_filled_later) const
      REQUIRES_LOCK(mutex_) {
    if (step < 0) return fail(ErrorCode::kInvalidArgument, "step {} is negative", step);
    if (step <= last_step_)
      return fail(ErrorCode::kInvalidArgument, "step {} does not come after step {}, the last one saved", step,
                  last_step_);
    for (const TensorToSave& tensor : tensors) {
      const bool empty = std::find(tensor.box.shape.begin(), tensor.box.shape.end(), 0) != tensor.box.shape.end();
      if (tensor.data == nullptr && !empty && !is_filled_later)
        return fail(ErrorCode::kInvalidArgument, "tensor '{}' has no data", tensor.name);
    }
    return {};
  }

  const uint64_t generation_ = fork_generation();
  const std::shared_ptr<Core> core_;
  std::shared_ptr<Workspace> work_;  // of the next save
  Mutex mutex_;                      // one save() at a time
  int64_t last_step_ GUARDED_BY(mutex_) = -1;
  std::optional<Lineage> line_ GUARDED_BY(mutex_);       // what the next save continues
  std::optional<Lineage> part_line_ GUARDED_BY(mutex_);  // what the last one does, for commit()
  std::shared_ptr<const RankFile> file_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Save>> last_of_tier_ GUARDED_BY(mutex_);
  std::deque<RunningSave> running_;  // oldest first
  std::stop_source touching_;
  Thread toucher_;  // of the reserved image; ends before the image is used
};

Status check_root(const Location& root) {
  if (!root.storage) return fail(ErrorCode::kInvalidArgument, "checkpoint: no storage");
  if (root.storage->capabilities().conditional_write) return {};
  return fail(ErrorCode::kUnsupported, "checkpoint: {} cannot create an object only if it is absent", root.url);
}

// A tier of one node takes its manifests from the nearest tier that all nodes share.
Status check_shared_tier(const SaverOptions& options) {
  const auto is_local = [](const TierOptions& tier) { return tier.node_local; };
  if (std::ranges::none_of(options.tiers, is_local)) return {};
  const auto shared = std::ranges::find_if_not(options.tiers, is_local);
  const int64_t every = shared == options.tiers.end() ? options.save_every : shared->save_every;
  if (every <= 1) return {};
  return fail(ErrorCode::kInvalidArgument,
              "checkpoint: the nearest tier that all nodes share has save_every {}: it must take every save, because "
              "the tiers of single nodes get their manifests from it",
              every);
}

}  // namespace

std::string PendingSave::folder() const {
  return step_name(step());
}

Result<std::unique_ptr<Saver>> Saver::create(Location root, const SaverOptions& options) {
  const auto bad = [&](std::string_view reason) { return fail(ErrorCode::kInvalidArgument, "checkpoint: {}", reason); };
  if (!restart_of(options.attempt))
    return bad(fmt::format("'{}' is not the name of an attempt; make_attempt gives one", options.attempt));
  if (options.world_size < 1 || options.world_size > kMaxWorldSize || options.rank < 0 ||
      options.rank >= options.world_size)
    return bad(fmt::format("rank {} of {}", options.rank, options.world_size));
  if (options.threads < 0 || options.memory_bytes < 0 || options.reserve_bytes < 0 ||
      options.commit_timeout.count() < 0 || options.tier_timeout.count() < 0)
    return bad("threads, memory_bytes, reserve_bytes, commit_timeout and tier_timeout are 0 or more");
  RETURN_IF_ERROR(check_keep_rules(options.keep));
  if (options.save_every < 0 || (options.tiers.empty() && options.save_every > 1))
    return bad("save_every without tiers");
  RETURN_IF_ERROR(check_root(root));
  for (size_t i = 0; i < options.tiers.size(); ++i) {
    const TierOptions& tier = options.tiers[i];
    if (tier.save_every < 0) return bad("a negative option of a tier");
    RETURN_IF_ERROR(with_context(check_keep_rules(tier.keep), tier.root.url));
    RETURN_IF_ERROR(check_root(tier.root));
    const auto is_same = [&](const Location& other) {
      return other.url == tier.root.url || (other.storage == tier.root.storage && other.key == tier.root.key);
    };
    if (is_same(root) || std::any_of(options.tiers.begin() + static_cast<std::ptrdiff_t>(i) + 1, options.tiers.end(),
                                     [&](const TierOptions& each) { return is_same(each.root); }))
      return bad(fmt::format("{} is given twice: each tier is another folder", tier.root.url));
    if (i == 0 && tier.save_every > 1) return bad(fmt::format("{}: the nearest tier takes every save", tier.root.url));
  }
  RETURN_IF_ERROR(check_shared_tier(options));
  SaverOptions chosen = options;
  chosen.commit_timeout = std::min<std::chrono::milliseconds>(options.commit_timeout, std::chrono::hours(24 * 365));
  auto saver = std::make_unique<RankSaver>(std::move(root), chosen);
  if (options.reserve_bytes > 0) RETURN_IF_ERROR(saver->reserve(options.reserve_bytes));
  return saver;
}

}  // namespace millrace::checkpoint
