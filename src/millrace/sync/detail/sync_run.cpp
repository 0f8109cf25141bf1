// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/sync_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/metrics.h"
#include "millrace/sync/detail/copy_scheduler.h"
#include "millrace/sync/detail/target_layout.h"
#include "millrace/sync/removal.h"

// The phases of a sync, each on the thread that called:
//
//   look     list both sides and plan ahead; does all of it fit?
//   copy     plan ──► ActionWindow ──► engine ──► ActionWindow ──► report, record
//   delete   what only the target has, after both listings and every copy have ended
//   copy     files in whose place something had to be deleted first
//   record   written whole
//   folders  owner, mode and times of folders, which a file written into them would change
//   remove   from the source, for a move
//
// Two hand-overs between threads for each file of a tree: to the engine, and back to be reported.

namespace millrace::sync {
namespace {

using Kind = Action::Kind;

constexpr size_t kActionsAhead = 32 << 10;  // planned before the first copy: most trees whole, in some 25 MB
// Where others may take what was not begun: little, so that a tree of few large files is shared too.
constexpr size_t kActionsAheadOfOthers = 64;
// Keys that S3 deletes in one request; between two of them a stop is seen.
constexpr size_t kRemoveBatch = 1000;
// After a stop. With the seconds that a batch scheduler leaves between SIGTERM and SIGKILL (Slurm: 30) this is little,
// and to a person at a terminal it is no wait.
constexpr std::chrono::milliseconds kRecordPatience(600);
// The age in AWS's examples of a rule that ends unfinished uploads.
constexpr auto kAbandonedAfter = std::chrono::hours(7 * 24);

// As many again as the engine has under way, so that it always finds the next one.
int64_t most_at_work(const SyncOptions& options) {
  const EngineOptions& engine = options.engine;
  if (options.range != nullptr) return static_cast<int64_t>(kActionsAheadOfOthers);
  return 2 * std::max<int64_t>(engine.objects_at_once, CopyScheduler::kMostLight);
}

bool is_batched(const Location& target, const SyncOptions& options) {
  const Capabilities capabilities = target.storage->capabilities();
  return capabilities.folders && capabilities.durable && options.transfer.durability == Durability::kDurable;
}

}  // namespace

SyncRun::SyncRun(const Location& source, const Location& target, const SyncOptions& options,
                 const std::stop_token& stop, Progress* progress)
    : source_(source.with_stop(stop)),
      target_(target.with_stop(stop)),
      options_(options),
      stop_(stop),
      progress_(progress),
      batched_(is_batched(target, options)),
      record_stop_(stop_, kRecordPatience),
      record_at_(target.with_stop(record_stop_.token())),
      record_(
          *record_at_.storage, prefix_of(target) + record_path(source),
          {.reads = options.record, .writes = options.record && !options.dry_run, .save_every = options.record_every}),
      window_(target_, batched_, most_at_work(options), progress,
              [this](const PendingActions& ended) { report(ended); }) {}

Result<SyncReport> SyncRun::run() {
  const auto start = Clock::now();
  if (options_.lustre_layout && !options_.dry_run) {
    RETURN_IF_ERROR(lay_out_target(target_, *options_.lustre_layout));
  }
  const int64_t retries = process_metrics().count(Metric::kRetries);
  ASSIGN_OR_RETURN(engine_, TransferEngine::create(options_.engine));
  runner_.emplace(source_, target_, options_, *engine_, batched_, stop_, progress_,
                  [this](PendingAction& pending) { window_.end(pending); });
  streams_ = open_streams();
  phase("look");
  report_.end = plan_ahead();
  if (report_.end) {
    RETURN_IF_ERROR(check_source());
    report_.end = copy_all();
  }
  if (report_.end && options_.delete_extra) report_.end = delete_extra();
  if (report_.end) report_.end = copy_postponed();
  save_record();
  if (report_.end && options_.transfer.posix) carry_folder_attributes();
  if (report_.end && options_.remove_source && !options_.dry_run) report_.end = remove_source();
  // Files that are there and not recorded were copied by a run that was killed, and it may have left more.
  const bool may_find = (report_.copied_files > 0 || record_.has_changed()) && options_.range == nullptr;
  if (report_.end && may_find && !options_.dry_run) abort_abandoned();
  report_.retries = process_metrics().count(Metric::kRetries) - retries;
  report_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return std::move(report_);
}

std::unique_ptr<SyncStreams> SyncRun::open_streams() {
  return std::make_unique<SyncStreams>(source_, target_, options_, record_.open_last(), stop_);
}

void SyncRun::phase(const char* name) {
  if (progress_ != nullptr) progress_->set_phase(name);
}

// ---- look

// Plans ahead, and says whether all of it fits before anything is written.
Status SyncRun::plan_ahead() {
  SyncTotals totals;
  if (options_.range != nullptr) return {};  // how much there will be nobody knows
  while (ahead_.size() < kActionsAhead && !planned_) {
    ASSIGN_OR_RETURN(auto action, streams_->plan.next());
    planned_ = !action;
    if (!action) break;
    totals.add(*action);
    ahead_.push_back(std::move(*action));
  }
  const bool knows_space = target_.storage->capabilities().free_space;
  if (!planned_ && knows_space) {
    ASSIGN_OR_RETURN(totals, count_all());
  }
  if (progress_ != nullptr && (planned_ || knows_space)) progress_->set_totals(totals.bytes, totals.files);
  return check_room(totals.grows + totals.largest);
}

Status SyncRun::check_room(int64_t needed_bytes) {
  Status fits = check_space(*target_.storage, prefix_of(target_), needed_bytes, target_.url);
  if (fits || fits.error().code() != ErrorCode::kResourceExhausted) return {};
  // What killed runs left takes up room. This run resumes it, or removes it.
  const auto left = target_.storage->list_uploads(prefix_of(target_));
  if (!left || left->empty()) return fits;
  for (const ObjectInfo& upload : *left) needed_bytes -= upload.size;
  return check_space(*target_.storage, prefix_of(target_), needed_bytes, target_.url);
}

// Lists both sides once more, for trees that are too large to be planned in memory.
Result<SyncTotals> SyncRun::count_all() {
  SyncTotals totals;
  const auto streams = open_streams();
  for (;;) {
    ASSIGN_OR_RETURN(const auto action, streams->plan.next());
    if (!action) return totals;
    totals.add(*action);
  }
}

// A source without a single file may be a slip of the hand.
Status SyncRun::check_source() {
  if (streams_->plan.source_files() > 0 || source_.key.empty() || options_.range != nullptr) return {};
  const auto info = source_.storage->stat(source_.key);
  if (info) return fail(ErrorCode::kInvalidArgument, "{} is one object, not a folder: cp copies it", source_.url);
  if (info.error().code() != ErrorCode::kNotFound) return {};
  if (!source_.storage->capabilities().folders) {
    ASSIGN_OR_RETURN(const ListPage below, source_.storage->list(prefix_of(source_), {.max_keys = 1}));
    if (!below.objects.empty() || !below.prefixes.empty()) return {};
  }
  return tl::unexpected<Error>(info.error());
}

Result<std::optional<Action>> SyncRun::next_action() {
  if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  if (!ahead_.empty()) {
    std::optional<Action> action(std::move(ahead_.front()));
    ahead_.pop_front();
    return action;
  }
  if (planned_) return std::nullopt;
  ASSIGN_OR_RETURN(auto action, streams_->plan.next());
  if (action && options_.range != nullptr) options_.range->begin(action->path);
  return action;
}

// ---- copy

Status SyncRun::copy_all() {
  phase("copy");
  return copy_each([this] { return next_action(); });
}

// What could not be copied before something at the target was deleted.
Status SyncRun::copy_postponed() {
  after_deletes_ = true;
  runner_->expect_no_folders();
  auto next = [this, at = size_t{0}]() mutable -> Result<std::optional<Action>> {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (at == postponed_.size()) return std::nullopt;
    Action& action = postponed_[at++];
    // The copy tells what is left in its place.
    const bool is_folder = action.kind == Kind::kFolder;
    if (!options_.dry_run && !is_folder) {
      static_cast<void>(target_.storage->remove_empty_folder(prefix_of(target_) + action.path));
    }
    return std::move(action);
  };
  return postponed_.empty() ? Status() : copy_each(next);
}

Status SyncRun::copy_each(const NextAction& next) {
  Status end;
  for (;;) {
    auto action = next();
    if (!action) {
      end = tl::unexpected<Error>(std::move(action).error());
      break;
    }
    if (!*action) break;
    begin(std::move(**action));
    window_.make_room();
  }
  window_.drain();
  return stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : std::move(end);
}

void SyncRun::begin(Action action) {
  if (options_.transfer.posix && !after_deletes_) folders_.see(action);
  if (action.after_deletes && !after_deletes_) return postponed_.push_back(std::move(action));
  const auto pending = std::make_shared<PendingAction>();
  pending->action = std::move(action);
  const bool starts = runner_->takes_time(pending->action);
  if (!starts) runner_->settle(*pending, deletes_);
  window_.add(pending, starts);
  if (starts) runner_->start(pending);
}

void SyncRun::report(const PendingActions& ended) {
  for (const auto& pending : ended) {
    range_stopped_ |= pending->error && pending->error->code() == ErrorCode::kCancelled;
    if (options_.range != nullptr && !range_stopped_) options_.range->finish(pending->action.path);
    finish(*pending);
  }
  record_.save_so_far();
}

void SyncRun::finish(PendingAction& pending) {
  if (pending.is_blocked) return postponed_.push_back(std::move(pending.action));
  const Action& action = pending.action;
  const std::optional<RecordEntry>& entry = pending.entry ? pending.entry : action.recorded;
  const bool gone = action.kind == Kind::kDelete || action.kind == Kind::kExtra;
  if (entry && !gone && !after_deletes_) record_.keep(*entry);  // in order: the next run finds the others equal
  if (gone ? action.recorded.has_value() : pending.entry && pending.entry != action.recorded) record_.note_change();
  if (action.kind == Kind::kKeep || (action.kind == Kind::kDelete && !pending.error)) return;
  if (options_.transfer.posix && is_folder_marker(action.source.key.empty() ? action.target : action.source)) return;
  if (pending.error && pending.error->code() == ErrorCode::kCancelled) return;
  if (action.kind == Kind::kFolder && !pending.error) {
    if (pending.is_new_folder) ++report_.made_folders;
    if (options_.remove_source) moved_.add_folder(action.path);
    return;
  }
  count(pending);
  const bool is_there = pending.result == SyncEvent::Kind::kCopied || pending.result == SyncEvent::Kind::kSkipped;
  if (is_there && options_.remove_source) moved_.add(action.path, action.source);
  if (!options_.on_event) return;
  const std::string reason = pending.error ? pending.error->to_string() : action.reason;
  options_.on_event({pending.result, action.path, reason, action.size, pending.moved.moved_bytes});
}

void SyncRun::count(const PendingAction& pending) {
  const Action& action = pending.action;
  switch (pending.result) {
    case SyncEvent::Kind::kCopied:
      ++report_.copied_files;
      report_.copied_bytes += action.size;
      report_.moved_bytes += pending.moved.moved_bytes;
      report_.server_bytes += pending.moved.copied_bytes;
      report_.resumed_bytes += pending.moved.resumed_bytes;
      return;
    case SyncEvent::Kind::kSkipped:
      ++report_.skipped_files;
      report_.skipped_bytes += action.size;
      return;
    case SyncEvent::Kind::kExtra:
      ++report_.extra_files;
      return;
    case SyncEvent::Kind::kPassed:
      ++report_.passed;
      return;
    case SyncEvent::Kind::kRefused:
      ++report_.refused;
      break;
    case SyncEvent::Kind::kDeleted:
      return;
    case SyncEvent::Kind::kFailed:
      ++report_.failed;
      break;
  }
  note_failure(pending.error ? *pending.error : Error(ErrorCode::kInvalidArgument, action.path + ": " + action.reason));
}

void SyncRun::note_failure(Error error) {
  if (!report_.first_failure) report_.first_failure = std::move(error);
}

// ---- delete, remove

Status SyncRun::delete_extra() {
  if (deletes_.count() == 0) return {};
  const auto hold = [&](std::string why) {
    report_.not_deleted = std::move(why);
    report_.extra_files += deletes_.count();
    return Status();
  };
  if (streams_->plan.source_files() == 0) return hold("the source has no files");
  if (report_.failed > 0) return hold("files failed");
  if (options_.max_delete && deletes_.count() > *options_.max_delete) {
    return hold(fmt::format("{} would be deleted, more than --max-delete {}", deletes_.count(), *options_.max_delete));
  }
  phase("delete");
  Removal removal(
      *target_.storage, options_.dry_run,
      [this](const std::string& path, int64_t size, const Status& removed) { deleted(path, size, removed); });
  for (;;) {
    ASSIGN_OR_RETURN(auto batch, deletes_.take(kRemoveBatch));
    if (batch.empty()) return {};
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    for (auto& item : batch) {
      std::string key = prefix_of(target_) + item.path;
      removal.add(std::move(item.path), std::move(key), item.size);
    }
    removal.flush();
  }
}

void SyncRun::deleted(const std::string& path, int64_t size, const Status& status) {
  if (status) {
    ++report_.deleted_files;
    report_.deleted_bytes += size;
    if (options_.on_event) options_.on_event({SyncEvent::Kind::kDeleted, path, "not at the source", size, 0});
    return;
  }
  ++report_.failed;
  if (progress_ != nullptr) progress_->add_failed();
  note_failure(status.error());
  if (options_.on_event) options_.on_event({SyncEvent::Kind::kFailed, path, status.error().to_string(), size, 0});
}

void SyncRun::carry_folder_attributes() {
  phase("folders");
  FolderAttributes::Report carried = folders_.carry(source_, target_, options_.dry_run, stop_);
  report_.set_folders = carried.set;
  report_.failed += carried.failed;
  if (carried.first_failure) note_failure(*std::move(carried.first_failure));
  if (carried.first_left) {
    log(LogLevel::kWarning, "{}, and so keeps its owner, mode and times{}", carried.first_left->to_string(),
        carried.left > 1 ? fmt::format("; {} more folders too", carried.left - 1) : "");
  }
  if (stop_.stop_requested()) report_.end = fail(ErrorCode::kCancelled, "stopped");
}

Status SyncRun::remove_source() {
  phase("remove");
  ASSIGN_OR_RETURN(const MovedFiles::Report removed, moved_.remove(source_, options_.filter, stop_));
  report_.removed_files = removed.files;
  report_.failed += removed.failed;
  if (removed.first_failure) note_failure(*removed.first_failure);
  return {};
}

// ---- the end

// Everything that the run did not come to stays as it was recorded.
void SyncRun::save_record() {
  if (const auto& problem = streams_->plan.record_problem(); !problem.empty()) {
    log(LogLevel::kWarning, "a part of the record of the last sync is lost: {}", problem);
    record_.note_change();
  }
  if (!record_.is_to_be_saved()) return;
  for (const Action& action : ahead_) {
    if (action.recorded) record_.keep(*action.recorded);
  }
  while (const auto entry = streams_->plan.rest_of_record()) record_.keep(*entry);
  streams_.reset();
  record_.save();
}

// What killed runs left of files that need no copy any more. Where the storage cannot tell the dead from the living,
// only age does.
void SyncRun::abort_abandoned() {
  auto uploads = target_.storage->list_uploads(prefix_of(target_));
  if (!uploads) return;
  const auto young = std::chrono::system_clock::now() - kAbandonedAfter;
  if (!target_.storage->capabilities().knows_dead) {
    std::erase_if(*uploads, [&](const ObjectInfo& upload) { return upload.modified > young; });
  }
  if (uploads->empty()) return;
  if (const auto aborted = target_.storage->abort_uploads(*uploads); !aborted) {
    log(LogLevel::kWarning, "unfinished writes of earlier runs stay: {}", aborted.error().to_string());
  }
}

}  // namespace millrace::sync
