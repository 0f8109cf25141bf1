// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "millrace/base/executor.h"
#include "millrace/base/log.h"
#include "millrace/base/pinned.h"
#include "millrace/base/published.h"
#include "millrace/base/sync.h"
#include "millrace/base/units.h"
#include "millrace/base/utf8.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/bounded_call.h"
#include "millrace/checkpoint/detail/commit.h"
#include "millrace/checkpoint/detail/failure.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/detail/live_tensors.h"
#include "millrace/checkpoint/detail/part_copy.h"
#include "millrace/checkpoint/detail/rank_file.h"
#include "millrace/checkpoint/detail/retention.h"
#include "millrace/checkpoint/detail/save.h"
#include "millrace/checkpoint/detail/stall_timer.h"
#include "millrace/checkpoint/detail/threads.h"
#include "millrace/checkpoint/detail/workspace.h"

namespace millrace::checkpoint {

namespace {

constexpr size_t kMaxStateBytes = 64 << 20;    // escaped at worst sixfold, it still fits into a record
constexpr size_t kMostUnfinished = 3;          // saves, with tiers; more would hide a tier that is too slow
constexpr std::chrono::seconds kStopGrace{5};  // what a storage call under way gets to end in ~Saver

// One folder of checkpoints. Its saves end one after the other, so `sweep` belongs to the save that ends.
struct Tier {
  explicit Tier(TierOptions chosen) : options(std::move(chosen)) {}
  const TierOptions options;
  std::atomic<bool> sweep{true};  // what earlier attempts or a failed save left is still to be removed
  Mutex cleaning;                 // saves that were given up may end at the same time
  KnownSteps known GUARDED_BY(cleaning);
};

// What the calling thread and the background share.
struct Core {
  Core(Location root, const SaverOptions& chosen) : options(chosen), stuck(chosen.tiers.size() + 1) {
    for (const TierOptions& tier : options.tiers) tiers.emplace_back(tier);
    tiers.emplace_back(TierOptions{.root = std::move(root), .keep = options.keep, .save_every = options.save_every});
  }

  // The nearest tier that all ranks see.
  size_t shared_tier() const {
    size_t at = 0;
    while (tiers[at].options.node_local) ++at;
    return at;
  }
  std::vector<Save::Place> places_of(int64_t step) const {
    std::vector<Save::Place> places;
    for (const Tier& tier : tiers) places.push_back({tier.options.root.url, goes_to(places.size(), step)});
    return places;
  }
  bool goes_to(size_t tier, int64_t step) const {
    const int64_t every = tiers[tier].options.save_every;
    return every <= 1 || step % every == 0;
  }
  void set_busy(int64_t step, bool is_busy) {
    MutexLock lock(mutex);
    if (is_busy)
      busy.insert(step);
    else
      busy.erase(step);
  }
  std::vector<int64_t> busy_steps() {
    MutexLock lock(mutex);
    return {busy.begin(), busy.end()};
  }
  // How long a save() waits for the save before it, and for storage that answers nothing.
  std::chrono::milliseconds patience() const { return std::max(options.commit_timeout, options.tier_timeout); }
  // Whether this attempt may save the step there, and has the space.
  Status check_storage(size_t tier, int64_t step, int64_t bytes) const {
    const Location& root = tiers[tier].options.root;
    RETURN_IF_ERROR(check_step_open(root, step, options.attempt));
    return check_space(*root.storage, prefix_below(root), bytes, fmt::format("step {} in {}", step, root.url));
  }

  const SaverOptions options;
  std::deque<Tier> tiers;  // nearest first; the last is the root
  Metrics metrics;
  std::stop_source stop;
  std::vector<std::atomic<int>> stuck;  // by tier: saves that were given up there and whose storage still hangs
  std::optional<WrittenRecord> part;    // of save_part(), until commit()
  Mutex mutex;
  std::set<int64_t> busy GUARDED_BY(mutex);  // with tiers: steps that have not ended in all of them
};

// The step is committed. What follows may fail without harm; a later save tries it again.
void follow_up(Core& core, size_t at, int64_t step, const std::optional<Lineage>& line) {
  Tier& tier = core.tiers[at];
  const Location latest = tier.options.root.child(kLatestName);
  if (auto written = write_object(*latest.storage, latest.key, step_name(step) + "\n", {}, Durability::kVisible);
      !written)
    log(LogLevel::kWarning, "checkpoint: step {} is committed, but `latest` is not moved: {}", step,
        written.error().to_string());
  MutexLock lock(tier.cleaning);
  Retention retention{.keep = tier.options.keep, .line = line, .known = &tier.known};
  if (at == 0) retention.busy = core.busy_steps();
  const auto cleaned = clean_up(tier.options.root, step, core.options.attempt, retention, tier.sweep);
  tier.sweep = !cleaned.has_value();
  if (!cleaned)
    log(LogLevel::kWarning, "checkpoint: step {} is committed, but older files are left: {}", step,
        cleaned.error().to_string());
}

StepCommit commit_in(Core& core, size_t at, int64_t step, std::stop_token stop, std::function<void()> alive = {}) {
  const SaverOptions& options = core.options;
  return {core.tiers[at].options.root,
          step,
          options.attempt,
          options.world_size,
          Clock::now() + options.commit_timeout,
          std::move(stop),
          std::move(alive)};
}

// What a save stores beside the tensors. Without `state` the part is kept for commit().
struct Documents {
  std::optional<std::string> state;
  std::string rank_state;
  StepMetrics metrics{};
  std::optional<Lineage> line{};  // what the step continues
};

// Rank 0: creates the manifest once all parts are there. Other ranks: waits for it.
Status commit_part(const Core& core, const StepCommit& commit, WrittenRecord record, const Documents& documents) {
  if (core.options.rank != 0) return await_commit(commit);
  return commit_step(commit, std::move(record), *documents.state, documents.metrics, documents.line);
}

// Leaves word in the tier why this rank fails there. Where that fails too, the others wait for `commit_timeout`.
void tell_of_failure(const Core& core, size_t tier, int64_t step, const Error& cause) {
  const SaverOptions& options = core.options;
  const TierOptions& at = core.tiers[tier].options;
  if (options.world_size == 1 || at.node_local || cause.code() == ErrorCode::kAlreadyExists) return;
  const Location attempt = step_location(at.root, step).child(options.attempt);
  if (const Status told = write_failure(attempt, RankPlaces::of_new(options.world_size), options.rank, cause); !told)
    log(LogLevel::kWarning, "checkpoint: step {}: the other ranks are not told why this one failed: {}", step,
        told.error().to_string());
}

// Brings a save into one tier, from the snapshot or from the nearest tier's file to the commit, on a thread.
class TierJob {
 public:
  TierJob(std::shared_ptr<Core> core, std::shared_ptr<Workspace> work, std::shared_ptr<Save> save,
          std::shared_ptr<Save> before, size_t tier, std::shared_ptr<const RankFile> file,
          std::shared_ptr<const Documents> documents, std::shared_ptr<LiveTensors> live)
      : core_(std::move(core)),
        work_(std::move(work)),
        save_(std::move(save)),
        before_(std::move(before)),
        at_(tier),
        file_(std::move(file)),
        documents_(std::move(documents)),
        live_(std::move(live)) {
    save_->hold_image(at_);
  }

  void run() {
    const bool was_stuck = is_stuck();
    auto written = was_stuck ? still_stuck() : write();
    if (!written && !was_stuck) tell_others(written.error());
    if (at_ == 0) save_->first_part_ended(written ? std::make_shared<const WrittenRecord>(*written) : nullptr);
    release_image();
    const bool has_part = written.has_value();
    Status status = has_part ? commit(std::move(*written)) : tl::unexpected<Error>(std::move(written).error());
    if (!status && has_part && core_->options.rank == 0) tell_others(status.error());
    wait_for_save_before();  // also when the write failed: `sweep` is that save's until it has ended
    if (!status) {
      if (!is_stuck()) core_->tiers[at_].sweep = true;  // else an older save's thread is still at it
      if (core_->tiers.size() > 1)
        log(LogLevel::kWarning, "checkpoint: step {} is not in {}: {}", save_->step(), root().url,
            status.error().to_string());
    }
    if (status && documents_->state && save_->claim_success()) core_->metrics.add(Metric::kSaves, 1);
    if (!save_->finish(at_, std::move(status))) --core_->stuck[at_];
  }

  size_t tier() const { return at_; }

 private:
  const Location& root() const { return core_->tiers[at_].options.root; }

  // Whether an older save hangs in this tier's storage.
  bool is_stuck() const { return core_->stuck[at_] > (save_->given_up(at_) ? 1 : 0); }
  tl::unexpected<Error> still_stuck() const {
    return fail(ErrorCode::kUnavailable, "{} still does not answer an older save", root().url);
  }
  // So that the other ranks do not wait for this one's part, or for its commit.
  void tell_others(const Error& cause) const {
    if (documents_->state && !save_->given_up(at_)) tell_of_failure(*core_, at_, save_->step(), cause);
  }

  // For the storage's threads.
  std::function<void()> alive() const {
    return [save = save_, at = at_] { save->alive(at); };
  }
  // Runs `wait`, in which the tier's own storage has no part.
  template <class Wait>
  auto while_waiting(Wait&& wait) {
    save_->set_waiting(at_, true);
    auto result = wait();
    save_->set_waiting(at_, false);
    return result;
  }

  void release_image() {
    work_.reset();
    save_->release_image(at_);
  }
  // The tier's saves end in the order of their steps.
  void wait_for_save_before() {
    if (before_) static_cast<void>(while_waiting([&] { return before_->result_of(at_); }));
    before_.reset();
  }

  Result<WrittenRecord> write() {
    if (at_ > 0) {
      const auto first = while_waiting([&] { return save_->wait_first_part(); });
      if (first) release_image();
      wait_for_save_before();
      if (first) return copy(*first);
    } else if (!root().storage->capabilities().is_local()) {
      save_->first_part_ended(nullptr);  // no file to read: the others write from the snapshot meanwhile
    }
    return write_image();
  }

  RankPlaces places() const { return RankPlaces::of_new(core_->options.world_size); }

  Result<WrittenRecord> write_image() {
    RETURN_IF_ERROR(while_waiting([&] { return save_->wait_filled(); }));
    RETURN_IF_ERROR(check_tier());
    const SaverOptions& options = core_->options;
    MetricTimer timer(core_->metrics, Metric::kWriteSeconds);
    const Location data = directory(at_).child(places().file(options.rank));
    ASSIGN_OR_RETURN(const auto writer, data.storage->open_write(data.key, {.size_hint_bytes = file_->bytes()}));
    WrittenRecord record;
    PartRecord& part = record.part;
    ASSIGN_OR_RETURN(part, write_file({*data.storage, *writer, alive()}));
    save_->alive(at_);
    RETURN_IF_ERROR(writer->commit(Durability::kDurable));
    part.step = save_->step();
    part.attempt = options.attempt;
    part.rank = options.rank;
    part.world_size = options.world_size;
    part.state = documents_->rank_state;
    part.in_folders = places().in_folders;
    record.text = serialize(part);
    RETURN_IF_ERROR(write_record(record));
    return record;
  }

  Result<PartRecord> write_file(const RankFile::Target& target) {
    const std::span<std::byte> memory = work_->image.span();
    if (!live_) return file_->write(memory.data(), target, work_->executor, save_->stop_token());
    constexpr size_t kPage = 4096;
    const size_t share = memory.size() / core_->tiers.size() / kPage * kPage;  // tiers may write at the same time
    return file_->write_through(*live_, memory.subspan(at_ * share, share), target, work_->executor,
                                save_->stop_token());
  }

  Result<WrittenRecord> copy(const WrittenRecord& record) {
    RETURN_IF_ERROR(check_tier());
    MetricTimer timer(core_->metrics, Metric::kWriteSeconds);
    RETURN_IF_ERROR(copy_file(record.part));
    RETURN_IF_ERROR(write_record(record));
    return record;
  }

  // From the nearest tier, a second time if that could not be read, then from any other that has the step by then.
  Status copy_file(const PartRecord& part) {
    const std::string name = places().file(core_->options.rank);
    const auto from = [&](size_t tier) {
      PartCopy copied = copy_from(directory(tier).child(name), directory(at_).child(name), part);
      if (copied.source_failed)
        log(LogLevel::kWarning, "checkpoint: {}: {}", root().url, copied.status.error().to_string());
      return copied;
    };
    PartCopy copied = from(0);
    if (copied.source_failed) copied = from(0);
    for (size_t tier = 1; tier < at_ && copied.source_failed; ++tier) {
      if (save_->goes_to(tier) && while_waiting([&] { return save_->result_of(tier); })) copied = from(tier);
    }
    return std::move(copied.status);
  }

  // A copy on a thread of its own, which is left behind when the source does not answer.
  PartCopy copy_from(const Location& source, const Location& target, const PartRecord& part) {
    struct Shared {
      std::stop_source stop;
      Mutex mutex;
      CondVar changed;
      std::optional<Clock::time_point> reads_since GUARDED_BY(mutex);
      bool is_left GUARDED_BY(mutex) = false;
      std::optional<PartCopy> result GUARDED_BY(mutex);
    };
    const auto shared = std::make_shared<Shared>();
    const std::stop_callback forward(save_->stop_token(), [shared] { shared->stop.request_stop(); });
    const auto at_source = [shared, save = save_, at = at_](bool reading) {
      MutexLock lock(shared->mutex);
      if (shared->is_left) return;
      shared->reads_since = reading ? std::optional(Clock::now()) : std::nullopt;
      save->set_waiting(at, reading);
    };
    Thread thread("mr-ckpt-copy", [shared, source, target, part, at_source] {
      PartCopy copied = copy_part_file(source, target, part, shared->stop.get_token(), at_source);
      MutexLock lock(shared->mutex);
      shared->result = std::move(copied);
      shared->changed.notify_all();
    });
    MutexLock lock(shared->mutex);
    const auto timeout = core_->options.tier_timeout;
    while (!shared->result && !shared->is_left) {
      constexpr std::chrono::milliseconds kTurn{200};
      static_cast<void>(shared->changed.wait_until(shared->mutex, Clock::now() + std::min(kTurn, timeout)));
      shared->is_left = !shared->result && timeout.count() > 0 && shared->reads_since &&
                        Clock::now() - *shared->reads_since > timeout;
    }
    if (shared->result) return std::move(*shared->result);
    shared->stop.request_stop();
    save_->set_waiting(at_, false);
    thread.detach();
    return {fail(ErrorCode::kTimeout, "{} does not answer", source.url), true};
  }

  // Data before its record, each durable before the next is visible: a record that can be seen is true.
  Status write_record(const WrittenRecord& record) {
    const Location at = directory(at_).child(places().record(core_->options.rank));
    RETURN_IF_ERROR(write_object(*at.storage, at.key, record.text));
    core_->metrics.add(Metric::kWriteBytes, file_->bytes());
    publish_add(Published::kWriteBytes, file_->bytes());
    return {};
  }

  // Without tiers save() has checked it: there the caller hears of it at once.
  Status check_tier() const {
    if (core_->tiers.size() == 1) return {};
    return core_->check_storage(at_, save_->step(), file_->bytes());
  }

  Status commit(WrittenRecord record) {
    if (!documents_->state) {
      core_->part = std::move(record);
      return {};
    }
    wait_for_save_before();
    if (core_->tiers[at_].options.node_local) return commit_on_node();
    const StepCommit step = commit_in(*core_, at_, save_->step(), save_->stop_token(), alive());
    RETURN_IF_ERROR(commit_part(*core_, step, std::move(record), *documents_));
    save_->committed(at_);
    if (core_->options.rank == 0) follow_up(*core_, at_, save_->step(), documents_->line);
    return {};
  }

  Status commit_on_node() {
    const size_t shared = core_->shared_tier();
    RETURN_IF_ERROR(with_context(while_waiting([&] { return save_->result_of(shared); }),
                                 "the tier that all nodes share has no manifest"));
    const StepCommit commit = commit_in(*core_, at_, save_->step(), save_->stop_token(), alive());
    ASSIGN_OR_RETURN(const bool created, adopt_manifest(commit, core_->tiers[shared].options.root));
    save_->committed(at_);
    if (created) follow_up(*core_, at_, save_->step(), documents_->line);
    return {};
  }

  Location directory(size_t tier) const {
    return step_location(core_->tiers[tier].options.root, save_->step()).child(core_->options.attempt);
  }

  const std::shared_ptr<Core> core_;
  std::shared_ptr<Workspace> work_;  // while this tier reads the image
  const std::shared_ptr<Save> save_;
  std::shared_ptr<Save> before_;  // the last one that goes to this tier; nullptr: none
  const size_t at_;
  const std::shared_ptr<const RankFile> file_;
  const std::shared_ptr<const Documents> documents_;
  const std::shared_ptr<LiveTensors> live_;  // what to write instead of the image; nullptr: the image
};

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
                                                               std::string rank_state, std::stop_token stop) override {
    if (core_->tiers.size() > 1)
      return fail(ErrorCode::kUnsupported, "save_part: a Saver with tiers commits each of them by itself; use save()");
    return start(step, tensors, {std::nullopt, std::move(rank_state)}, stop, {});
  }

  [[nodiscard]] Status commit(int64_t step, std::string state, StepMetrics metrics) override {
    if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step));
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(take_failure());
    if (!core_->part || core_->part->part.step != step)
      return fail(ErrorCode::kInvalidArgument, "commit: no part of step {} was saved, or it is committed", step);
    RETURN_IF_ERROR(check_state(step, state));
    RETURN_IF_ERROR(clean_metrics(step, metrics));
    const Documents documents{std::move(state), "null", std::move(metrics), part_line_};
    const Status committed = commit_part(*core_, commit_in(*core_, 0, step, core_->stop.get_token()),
                                         *std::exchange(core_->part, std::nullopt), documents);
    if (committed) {
      if (core_->options.rank == 0) follow_up(*core_, 0, step, documents.line);
      core_->metrics.add(Metric::kSaves, 1);
    } else {
      core_->tiers[0].sweep = true;
    }
    return committed;
  }

  void continue_from(std::optional<Lineage> line) override {
    if (generation_ != fork_generation()) return;
    MutexLock lock(mutex_);
    line_ = std::move(line);
  }

  const Metrics& metrics() const override { return core_->metrics; }

  // Takes the image's memory and touches it behind the caller's back.
  Status reserve(int64_t bytes) {
    const int64_t cap = core_->options.memory_bytes;
    RETURN_IF_ERROR(work_->make_room(cap > 0 ? std::min(bytes, cap) : bytes));
    if (core_->options.pin) PinnedRange::see_context();
    toucher_ = Thread("mr-ckpt-touch", [work = work_, stop = touching_.get_token()] {
      touch_pages(work->image.span(), stop);
      if (!stop.stop_requested()) work->pin_image();
    });
    return {};
  }

 private:
  struct Running {
    std::shared_ptr<Save> save;
    std::vector<std::pair<size_t, Thread>> threads{};  // by the tier that they write
  };

  Result<std::shared_ptr<PendingSave>> start(int64_t step, std::span<const TensorToSave> tensors, Documents documents,
                                             const std::stop_token& stop, const FillImage& fill) {
    if (generation_ != fork_generation()) return tl::unexpected<Error>(forked_error(step));
    MutexLock lock(mutex_);
    const StallTimer stall(core_->metrics);
    RETURN_IF_ERROR(take_failure());
    if (core_->tiers.size() == 1 && core_->stuck[0] > 0)
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
    const int64_t bytes = file_->bytes();
    if (work_.use_count() > 1)  // one hangs in storage
      work_ = std::make_shared<Workspace>(core_->options.threads, core_->options.pin);
    const int64_t cap = core_->options.memory_bytes;
    if (cap > 0 && bytes > cap) {
      if (fill) return fail(ErrorCode::kUnsupported, "step {}: a save above memory_bytes from a device", step);
      return start_through(step, tensors, std::move(documents), stop);
    }
    Status storage_ready;
    if (Status filled = fill_image(step, tensors, fill, storage_ready); !filled) {
      tell_others(step, documents, filled.error());
      return tl::unexpected<Error>(std::move(filled).error());
    }
    RETURN_IF_ERROR(storage_ready);
    take_step(step, documents);
    return launch(step, std::move(documents), nullptr, fill != nullptr);
  }

  // Takes the snapshot, and looks meanwhile whether the step may be saved. Errors: what only this rank has.
  Status fill_image(int64_t step, std::span<const TensorToSave> tensors, const FillImage& fill, Status& storage_ready)
      REQUIRES_LOCK(mutex_) {
    RETURN_IF_ERROR(work_->make_room(file_->bytes()));
    if (fill) {
      work_->pin_image();
      RETURN_IF_ERROR(fill(work_->image.span(), file_->places(tensors, work_->image.data())));
    }
    std::optional<BoundedCall> check;
    if (core_->tiers.size() == 1) check.emplace(look_at_storage(step, file_->bytes()), answered());
    file_->snapshot(tensors, work_->image.data(), work_->executor);
    if (check) storage_ready = answer_of(*check, core_->patience());
    return {};
  }

  // Whether the step may be saved in the only tier.
  std::function<Status()> look_at_storage(int64_t step, int64_t bytes) const {
    return [core = core_, step, bytes] { return core->check_storage(0, step, bytes); };
  }
  std::function<void()> answered() const {
    return [core = core_] { --core->stuck[0]; };
  }
  // Storage that does not answer counts as one in which a save hangs, until it does. Errors: those of the call,
  // timeout.
  Status answer_of(BoundedCall& call, std::chrono::milliseconds timeout) const {
    auto answer = call.wait(timeout, [core = core_] { ++core->stuck[0]; });
    if (answer) return *std::move(answer);
    return fail(ErrorCode::kTimeout, "{} has not answered for {} s", core_->tiers[0].options.root.url,
                std::chrono::round<std::chrono::seconds>(timeout).count());
  }

  // This rank's save of the step will not begin, so the others need not wait for its part. They give the step up, so it
  // cannot be saved again.
  void tell_others(int64_t step, const Documents& documents, const Error& cause) REQUIRES_LOCK(mutex_) {
    if (core_->options.world_size == 1 || !documents.state) return;
    last_step_ = step;
    const auto tell = [core = core_, step, cause] {
      for (size_t tier = 0; tier < core->tiers.size(); ++tier) {
        if (core->goes_to(tier, step)) tell_of_failure(*core, tier, step, cause);
      }
      return Status();
    };
    BoundedCall call(tell, answered());
    static_cast<void>(answer_of(call, kStopGrace));  // else they wait for `commit_timeout`
  }

  // `step` is the last one from now on, and the next save continues it.
  void take_step(int64_t step, Documents& documents) REQUIRES_LOCK(mutex_) {
    last_step_ = step;
    if (!line_) return;
    documents.line = lineage_below(*line_, step);
    part_line_ = documents.line;
    line_ = continue_line(*std::move(line_), core_->options.attempt, step);
  }

  // The tensors are written from where they are, through the memory that is allowed.
  Result<std::shared_ptr<PendingSave>> start_through(int64_t step, std::span<const TensorToSave> tensors,
                                                     Documents documents, const std::stop_token& stop)
      REQUIRES_LOCK(mutex_) {
    const int64_t cap = core_->options.memory_bytes;
    if (!std::exchange(said_through_, true))
      log(LogLevel::kWarning,
          "checkpoint: a save has {}, memory_bytes allows {}: training stands still until it is written to {}",
          format_bytes(file_->bytes()), format_bytes(cap), core_->tiers[0].options.root.url);
    RETURN_IF_ERROR(work_->make_room(cap));
    if (core_->tiers.size() == 1) {
      BoundedCall check(look_at_storage(step, file_->bytes()), answered());
      RETURN_IF_ERROR(answer_of(check, core_->patience()));
    }
    take_step(step, documents);
    const auto live = std::make_shared<LiveTensors>(tensors);
    const auto save = launch(step, std::move(documents), live);
    const bool is_free = save->wait_image_free(stop);
    live->leave();
    if (is_free) return save;
    save->set_reported();
    return fail(ErrorCode::kCancelled, "stopped while step {} was written", step);
  }

  // A thread for each tier.
  std::shared_ptr<Save> launch(int64_t step, Documents documents, const std::shared_ptr<LiveTensors>& live = nullptr,
                               bool is_filled_later = false) REQUIRES_LOCK(mutex_) {
    const bool tiered = core_->tiers.size() > 1;
    const auto save = std::make_shared<Save>(
        step, file_->bytes(), core_->places_of(step), tiered ? core_->options.tier_timeout : core_->patience(),
        Save::Events{.given_up = [core = core_](size_t tier) { ++core->stuck[tier]; },
                     .done =
                         [core = core_, step, bytes = file_->bytes()] {
                           core->set_busy(step, false);
                           publish_add(Published::kSavesUnderWay, -1);
                           publish_add(Published::kUnwrittenBytes, -bytes);
                         }});
    save->stop_with(core_->stop.get_token());
    if (is_filled_later) save->expect_fill();
    publish_add(Published::kSaves, 1);
    publish_add(Published::kSavesUnderWay, 1);
    publish_add(Published::kUnwrittenBytes, file_->bytes());
    publish_now(Published::kLastSaveNs);
    const auto shared = std::make_shared<const Documents>(std::move(documents));
    if (tiered) core_->set_busy(step, true);
    std::vector<std::shared_ptr<TierJob>> jobs;  // all hold the image before the first can release it
    for (size_t tier = 0; tier < save->tiers(); ++tier) {
      if (!save->goes_to(tier)) continue;
      jobs.push_back(std::make_shared<TierJob>(core_, work_, save, last_of_tier_[tier], tier, file_, shared, live));
      last_of_tier_[tier] = save;
    }
    running_.push_back({.save = save});
    for (auto& job : jobs) {
      const size_t tier = job->tier();
      running_.back().threads.emplace_back(tier, Thread("mr-ckpt-save", [job = std::move(job)] { job->run(); }));
    }
    return save;
  }

  // The threads of a save that has ended. One that hangs in storage is left to itself.
  void forget(Running running) {
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

  // Waits for the saves that must have ended before the next. Their failure, unless wait() has returned it.
  Status take_failure() REQUIRES_LOCK(mutex_) {
    const size_t most = core_->tiers.size() == 1 ? 1 : kMostUnfinished;
    while (!running_.empty() && (running_.size() >= most || running_.front().save->done())) {
      const auto save = running_.front().save;
      if (!save->wait_until(Clock::now() + core_->patience(), std::nullopt).value_or(true)) give_up(*save);
      Status status = save->take_unreported();
      forget(std::move(running_.front()));
      running_.pop_front();
      RETURN_IF_ERROR(with_context(std::move(status), fmt::format("the save of step {} failed", save->step())));
    }
    if (!running_.empty()) {
      Save& last = *running_.back().save;
      if (!last.wait_image_free({}, Clock::now() + core_->patience())) give_up(last);
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
    const auto hangs = [&](size_t tier) { return save.given_up(tier) && core_->stuck[tier] > 0; };
    for (size_t tier = 0; tier < save.tiers(); ++tier) {
      while (hangs(tier) && Clock::now() < deadline)
        static_cast<void>(sleep_until(Clock::now() + std::chrono::milliseconds(5), {}));
    }
  }

  void stop_touching() {
    touching_.request_stop();
    toucher_ = Thread();
  }
  bool all_end_until(Clock::time_point deadline) {
    return std::ranges::all_of(
        running_, [&](const Running& each) { return each.save->wait_until(deadline, std::nullopt).value_or(true); });
  }

  // Leaves threads that cannot be joined, and what they use, to the end of the process.
  void abandon() {
    static_cast<void>(std::make_unique<std::deque<Running>>(std::move(running_)).release());
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
  bool said_through_ GUARDED_BY(mutex_) = false;  // that saves are larger than their memory
  std::vector<std::shared_ptr<Save>> last_of_tier_ GUARDED_BY(mutex_);
  std::deque<Running> running_;  // oldest first
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
    const auto is_same = [&](const Location& other) { return other.url == tier.root.url; };
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
