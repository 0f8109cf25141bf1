// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/sync.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/base/executor.h"
#include "millrace/base/log.h"
#include "millrace/base/metrics.h"
#include "millrace/base/stop_later.h"
#include "millrace/base/units.h"
#include "millrace/sync/detail/attributes.h"
#include "millrace/sync/detail/content_hash.h"
#include "millrace/sync/detail/copy_plan.h"
#include "millrace/sync/detail/durable_batches.h"
#include "millrace/sync/detail/etag_match.h"
#include "millrace/sync/detail/moved_files.h"
#include "millrace/sync/detail/path_spool.h"
#include "millrace/sync/detail/record_keeper.h"
#include "millrace/sync/detail/removal.h"
#include "millrace/sync/detail/small_copies.h"
#include "millrace/sync/detail/target_layout.h"

namespace millrace::sync {
namespace {

using Kind = Action::Kind;

constexpr size_t kActionsAhead = 32 << 10;  // planned before the first copy: most trees whole, in some 25 MB
constexpr size_t kActionsOpen = 100 << 10;  // begun or waiting for an earlier one, because the record is in order
constexpr size_t kRemoveBatch = 1000;       // between two looks whether to stop
constexpr auto kReportWait = std::chrono::milliseconds(100);  // what ended is reported so late at most

constexpr std::chrono::milliseconds kRecordPatience(600);     // after a stop
constexpr auto kAbandonedAfter = std::chrono::hours(7 * 24);  // nobody uploads one object for longer

// Both sides listed, and merged with what the record says.
struct Streams {
  EntryWalk source, target;
  std::unique_ptr<RecordReader> record;
  Plan plan;

  Streams(const Location& from, const Location& to, const SyncOptions& options, std::unique_ptr<RecordReader> reader,
          std::stop_token stop)
      : source(from, {.follow_links = options.follow_links, .filter = &options.filter, .stop = stop}),
        target(to, {.filter = &options.filter, .stop = stop}),
        record(std::move(reader)),
        plan([this] { return source.next(); }, [this] { return target.next(); },
             [this]() -> Result<std::optional<RecordEntry>> {
               if (!record) return std::nullopt;
               return record->next();
             },
             [&filter = options.filter](std::string_view path) { return !filter.passes(path); },
             {.compare = options.compare,
              .delete_extra = options.delete_extra,
              .target_folders = to.storage->capabilities().folders,
              .attributes = options.transfer.posix,
              .cheap_source = from.storage->capabilities().is_local(),
              .cheap_target = to.storage->capabilities().is_local(),
              .proof = [from = from.storage, to = to.storage](const ObjectInfo& here, const ObjectInfo& there) {
                return proof_of_equality(*from, here, *to, there);
              }}) {}

  // Between file systems rsync's rule; between objects of S3, the MD5 that it has of them.
  static const char* proof_of_equality(const Storage& from, const ObjectInfo& source, const Storage& to,
                                       const ObjectInfo& target) {
    const bool have_times = from.capabilities().folders && to.capabilities().folders;
    if (have_times && source.modified == target.modified) return "the same size and time";
    const std::string_view etag = etag_of(from, source);
    return !etag.empty() && etag == etag_of(to, target) ? "the same size and ETag" : nullptr;
  }
};

struct Totals {
  int64_t files = 0;    // to copy or compare
  int64_t bytes = 0;    // of these
  int64_t grows = 0;    // what the target's used space grows by
  int64_t largest = 0;  // a file that is replaced stays until its successor is whole

  void add(const Action& action) {
    if (action.kind != Kind::kCopy && action.kind != Kind::kCompare && action.kind != Kind::kAttributes) return;
    ++files;
    if (action.kind == Kind::kAttributes) return;  // few of them move anything
    bytes += action.size;
    if (action.kind == Kind::kCompare) return;
    grows += action.size - action.target.size;
    largest = std::max(largest, action.target.size);
  }
};

class Run {
 public:
  Run(const Location& source, const Location& target, const SyncOptions& options, const std::stop_token& stop,
      Progress* progress)
      : source_(source.with_stop(stop)),
        target_(target.with_stop(stop)),
        options_(options),
        stop_(stop),
        progress_(progress),
        folders_(target.storage->capabilities().folders),
        batched_(folders_ && target.storage->capabilities().durable &&
                 options.transfer.durability == Durability::kDurable),
        record_stop_(stop_, kRecordPatience),
        record_at_(target.with_stop(record_stop_.token())),
        record_(*record_at_.storage, prefix_of(target) + record_path(source),
                {.reads = options.record,
                 .writes = options.record && !options.dry_run,
                 .save_every = options.record_every}),
        batches_(target_, batched_, progress, [this] {
          MutexLock lock(mutex_);
          changed_.notify_all();
        }) {}

  Result<SyncReport> run() {
    const auto start = Clock::now();
    if (options_.lustre_layout && !options_.dry_run) {
      RETURN_IF_ERROR(lay_out_target(target_, *options_.lustre_layout));
    }
    const int64_t retries = process_metrics().count(Metric::kRetries);
    ASSIGN_OR_RETURN(engine_, TransferEngine::create(options_.engine));
    streams_ = open_streams();
    phase("look");
    report_.end = prepare();
    if (report_.end) {
      RETURN_IF_ERROR(check_source());
      report_.end = copy_all();
    }
    if (report_.end && options_.delete_extra) report_.end = delete_extra();
    if (report_.end) report_.end = copy_postponed();
    if (report_.end && options_.remove_source && !options_.dry_run) report_.end = remove_source();
    save_record();
    // Files that are there and not recorded were copied by a run that was killed, and it may have left more.
    const bool may_find = report_.copied_files > 0 || record_.has_changed();
    if (report_.end && may_find && !options_.dry_run) abort_abandoned();
    report_.retries = process_metrics().count(Metric::kRetries) - retries;
    report_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return std::move(report_);
  }

 private:
  std::unique_ptr<Streams> open_streams() {
    return std::make_unique<Streams>(source_, target_, options_, record_.open_last(), stop_);
  }

  void phase(const char* name) {
    if (progress_ != nullptr) progress_->set_phase(name);
  }

  // Plans ahead, and says whether all of it fits before anything is written.
  Status prepare() {
    Totals totals;
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

  Status check_room(int64_t needed_bytes) {
    Status fits = check_space(*target_.storage, prefix_of(target_), needed_bytes, target_.url);
    if (fits || fits.error().code() != ErrorCode::kResourceExhausted) return {};
    // What killed runs left takes up room, and is gone on with or removed.
    const auto left = target_.storage->list_uploads(prefix_of(target_));
    if (!left || left->empty()) return fits;
    for (const ObjectInfo& upload : *left) needed_bytes -= upload.size;
    return check_space(*target_.storage, prefix_of(target_), needed_bytes, target_.url);
  }

  // A pass of its own, for trees that are too large to be planned in memory.
  Result<Totals> count_all() {
    Totals totals;
    const auto streams = open_streams();
    for (;;) {
      ASSIGN_OR_RETURN(const auto action, streams->plan.next());
      if (!action) return totals;
      totals.add(*action);
    }
  }

  // A source without a single file may be a slip of the hand.
  Status check_source() {
    if (streams_->plan.source_files() > 0 || source_.key.empty()) return {};
    const auto info = source_.storage->stat(source_.key);
    if (info) return fail(ErrorCode::kInvalidArgument, "{} is one object, not a folder: cp copies it", source_.url);
    if (info.error().code() != ErrorCode::kNotFound) return {};
    if (!source_.storage->capabilities().folders) {
      ASSIGN_OR_RETURN(const ListPage below, source_.storage->list(prefix_of(source_), {.max_keys = 1}));
      if (!below.objects.empty() || !below.prefixes.empty()) return {};
    }
    return tl::unexpected<Error>(info.error());
  }

  Result<std::optional<Action>> next_action() {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (!ahead_.empty()) {
      std::optional<Action> action(std::move(ahead_.front()));
      ahead_.pop_front();
      return action;
    }
    if (planned_) return std::nullopt;
    return streams_->plan.next();
  }

  Status copy_all() {
    phase("copy");
    return copy_each([this] { return next_action(); });
  }

  // What could not be copied before something at the target was deleted.
  Status copy_postponed() {
    after_deletes_ = true;
    auto next = [this, at = size_t{0}]() mutable -> Result<std::optional<Action>> {
      if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      if (at == postponed_.size()) return std::nullopt;
      Action& action = postponed_[at++];
      // What is left in its place is told by the copy.
      if (!options_.dry_run) static_cast<void>(target_.storage->remove_empty_folder(prefix_of(target_) + action.path));
      return std::move(action);
    };
    return postponed_.empty() ? Status() : copy_each(next);
  }

  Status copy_each(const std::function<Result<std::optional<Action>>()>& next) {
    const size_t most =
        2 * static_cast<size_t>(std::max<int64_t>(options_.engine.objects_at_once, SmallCopies::kMostBegun));
    Executor executor(options_.engine.objects_at_once, "mr-compare");
    Status end;
    for (;;) {
      auto action = next();
      if (!action) {
        end = tl::unexpected<Error>(std::move(action).error());
        break;
      }
      if (!*action) break;
      begin(executor, std::move(**action));
      // Not for each that ends: the threads that copy should find something to do, and this one sleep.
      settle(most, most - most / 4, kActionsOpen);
    }
    settle(0, 0, 0);
    report(batches_.close());
    report(batches_.wait());
    return stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : std::move(end);
  }

  void begin(Executor& executor, Action action) {
    if (action.after_deletes && !after_deletes_) return postponed_.push_back(std::move(action));
    const bool looks = action.kind == Kind::kCompare || action.kind == Kind::kAttributes;
    const bool works = looks || (action.kind == Kind::kCopy && (!options_.dry_run || replaces_file(action)));
    const auto slot = std::make_shared<Slot>();
    slot->action = std::move(action);
    open_.push_back(slot);
    if (!works) {
      finish_at_once(*slot);
      return;
    }
    {
      MutexLock lock(mutex_);
      ++working_;
    }
    if (slot->action.kind == Kind::kCopy) return start_copy(slot);
    executor.submit([this, slot] {
      if (is_to_be_copied(*slot)) return start_copy(slot);
      end(*slot);
    });
  }

  static bool replaces_file(const Action& action) {
    return !action.target.key.empty() && action.target.kind == ObjectKind::kFile;
  }

  // The thread that calls run() sleeps until few enough are at work.
  void end(Slot& slot) {
    MutexLock lock(mutex_);
    slot.done = true;
    --working_;
    if (working_ <= awaited_) changed_.notify_all();
  }

  void finish_at_once(Slot& slot) {
    using Became = SyncEvent::Kind;
    Action& action = slot.action;
    slot.done = true;
    switch (action.kind) {
      case Kind::kSkip:
        slot.result = Became::kSkipped;
        slot.entry = entry_of(action, action.target, recorded_hash(action));
        if (slot.entry && action.recorded)
          slot.entry->attributes = same_as_recorded(action) && action.recorded->attributes;
        break;
      case Kind::kDelete:
        if (auto kept = deletes_.add({action.path, action.size, {}}); !kept) slot.error = std::move(kept).error();
        slot.result = slot.error ? Became::kFailed : Became::kDeleted;
        break;
      case Kind::kExtra:
        slot.result = Became::kExtra;
        break;
      case Kind::kPass:
        slot.result = Became::kPassed;
        break;
      case Kind::kRefuse:
        slot.result = Became::kRefused;
        break;
      case Kind::kUnreadable:
        slot.fail_with(Error(ErrorCode::kPermissionDenied, source_.child(action.path).url + ": " + action.reason),
                       progress_);
        break;
      case Kind::kKeep:
        slot.entry = action.recorded;
        break;
      case Kind::kCopy:  // in a dry run, to where nothing is
        slot.moved = foretold(*source_.storage, *target_.storage, action.size);
        break;
      case Kind::kCompare:
      case Kind::kAttributes:
        break;
    }
  }

  static bool same_as_recorded(const Action& action) {
    return is_version(action.recorded->source, action.source) && is_version(action.recorded->target, action.target);
  }

  static std::optional<Hash128> recorded_hash(const Action& action) {
    return action.recorded && same_as_recorded(action) ? action.recorded->hash : std::nullopt;
  }

  std::optional<RecordEntry> entry_of(const Action& action, const ObjectInfo& target,
                                      std::optional<Hash128> hash) const {
    if (action.source.version.empty() || target.version.empty()) return std::nullopt;
    return RecordEntry{action.path, action.source.size,     recorded_version(action.source), recorded_version(target),
                       hash,        options_.transfer.posix};
  }

  // On a thread of the executor: compares both sides.
  bool is_to_be_copied(Slot& slot) {
    const auto differs = stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : difference(slot);
    if (!differs) {
      slot.fail_with(differs.error(), progress_);
      return false;
    }
    if (*differs != nullptr) {
      slot.action.reason = *differs;
      slot.entry.reset();
      return true;
    }
    slot.result = SyncEvent::Kind::kSkipped;
    if (progress_ != nullptr) progress_->add(0, 1);
    return false;
  }

  // For people, or nullptr for none.
  Result<const char*> difference(Slot& slot) {
    Action& action = slot.action;
    if (action.kind == Kind::kCompare) {
      ASSIGN_OR_RETURN(const bool equal, compare(slot));
      if (!equal) return "other content";
      action.reason = "the same content";
    } else {
      slot.entry = entry_of(action, action.target, recorded_hash(action));
    }
    if (!options_.transfer.posix) return nullptr;
    ASSIGN_OR_RETURN(const ObjectInfo source, source_.storage->stat(action.source.key));
    ASSIGN_OR_RETURN(const ObjectInfo target, target_.storage->stat(action.target.key));
    return same_attributes(*target_.storage, source.posix, target.posix) ? nullptr : "other owner, mode or times";
  }

  void start_copy(const std::shared_ptr<Slot>& slot) {
    const Action& action = slot->action;
    TransferOptions transfer = options_.transfer;
    transfer.dry_run = options_.dry_run;
    if (replaces_file(action)) transfer.target = action.target;
    if (batched_ && action.size <= kBlockBytes && !options_.dry_run) transfer.durability = Durability::kVisible;
    slot->is_durable = transfer.durability == Durability::kDurable;
    engine_->start({.from = {source_.storage, action.source.key, source_.child(action.path).url},
                    .source = action.source,
                    .to = target_.child(action.path),
                    .options = std::move(transfer),
                    .stop = stop_,
                    .progress = progress_,
                    .done = [this, slot](Result<TransferReport> moved) {
                      take_copied(*slot, std::move(moved));
                      end(*slot);
                    }});
  }

  // On a thread of the engine.
  void take_copied(Slot& slot, Result<TransferReport> moved) {
    Action& action = slot.action;
    if (!moved) {
      slot.is_durable = true;  // nothing is there that could be lost
      if (is_folder_in_its_place(action, moved.error())) {
        slot.is_blocked = options_.delete_extra && !after_deletes_;
        moved = fail(ErrorCode::kInvalidArgument, "{}: a directory is in its place{}", target_.child(action.path).url,
                     options_.delete_extra ? ", and not empty" : ": --delete removes the files in it");
      }
      if (slot.is_blocked) return;
      return slot.fail_with(std::move(moved).error(), progress_);
    }
    slot.moved = std::move(*moved);
    if (slot.moved.unchanged) {
      slot.is_durable = true;
      slot.result = SyncEvent::Kind::kSkipped;
      action.reason = "the same content";
    }
    if (progress_ != nullptr) progress_->add(0, 1);
    if (options_.dry_run) return;
    ObjectInfo target = slot.moved.object;
    const bool knows_change = target.changed.time_since_epoch().count() != 0;
    if (folders_ && options_.record && !knows_change) {
      if (auto now = target_.storage->stat(target.key); now && now->version == target.version) target = std::move(*now);
    }
    slot.entry = entry_of(action, target, slot.moved.hash);
  }

  bool is_folder_in_its_place(const Action& action, const Error& error) const {
    if (!folders_ || error.code() != ErrorCode::kInvalidArgument) return false;
    const auto there = target_.storage->stat(prefix_of(target_) + action.path);
    return !there && there.error().code() == ErrorCode::kInvalidArgument;
  }

  // On a thread of the executor. True for the same content.
  Result<bool> compare(Slot& slot) {
    const Action& action = slot.action;
    ASSIGN_OR_RETURN(const Hash128 source, hash_object(*source_.storage, action.source, stop_, progress_));
    Hash128 target;
    if (action.known_target) {
      target = *action.recorded->hash;
    } else {
      ASSIGN_OR_RETURN(target, hash_object(*target_.storage, action.target, stop_, nullptr));
    }
    if (source == target) slot.entry = entry_of(action, action.target, source);
    if (source != target && progress_ != nullptr) progress_->add(-action.source.size, 0);  // the copy counts it
    return source == target;
  }

  // Returns at once where at most `most` are at work and `open` begun; else waits until only `fewest` are at work.
  // Reports those that ended, in their order.
  void settle(size_t most, size_t fewest, size_t open) {
    for (bool waits = false;;) {
      Slots durable;
      {
        MutexLock lock(mutex_);
        for (; !open_.empty() && open_.front()->done; open_.pop_front()) batches_.add(std::move(open_.front()));
        durable = batches_.take();
        if (durable.empty() && !batches_.is_full()) {
          if (working_ <= (waits ? fewest : most) && open_.size() <= open) return;
          waits = true;
          awaited_ = fewest;
          changed_.wait_until(mutex_, Clock::now() + kReportWait);
          awaited_ = 0;
          continue;
        }
      }
      report(durable);
      if (batches_.is_full()) report(batches_.close());
    }
  }

  void report(const Slots& slots) {
    for (const auto& slot : slots) finish(*slot);
    record_.save_part();
  }

  void finish(Slot& slot) {
    if (slot.is_blocked) return postponed_.push_back(std::move(slot.action));
    const Action& action = slot.action;
    const std::optional<RecordEntry>& entry = slot.entry ? slot.entry : action.recorded;
    const bool gone = action.kind == Kind::kDelete || action.kind == Kind::kExtra;
    if (entry && !gone && !after_deletes_) record_.keep(*entry);  // in order: the next run finds the others equal
    if (gone ? action.recorded.has_value() : slot.entry && slot.entry != action.recorded) record_.note_change();
    if (action.kind == Kind::kKeep || (action.kind == Kind::kDelete && !slot.error)) return;
    if (slot.error && slot.error->code() == ErrorCode::kCancelled) return;
    count(slot);
    const bool is_there = slot.result == SyncEvent::Kind::kCopied || slot.result == SyncEvent::Kind::kSkipped;
    if (is_there && options_.remove_source) moved_.add(action.path, action.source);
    if (options_.on_event) {
      options_.on_event({slot.result, action.path, reason_of(slot), action.size, slot.moved.moved_bytes});
    }
  }

  static std::string reason_of(const Slot& slot) { return slot.error ? slot.error->to_string() : slot.action.reason; }

  void count(Slot& slot) {
    const Action& action = slot.action;
    switch (slot.result) {
      case SyncEvent::Kind::kCopied:
        ++report_.copied_files;
        report_.copied_bytes += action.size;
        report_.moved_bytes += slot.moved.moved_bytes;
        report_.server_bytes += slot.moved.copied_bytes;
        report_.resumed_bytes += slot.moved.resumed_bytes;
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
    if (!report_.first_failure) {
      report_.first_failure =
          slot.error ? *slot.error : Error(ErrorCode::kInvalidArgument, action.path + ": " + action.reason);
    }
  }

  // Everything that the run did not come to stays as it was recorded.
  void save_record() {
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

  // What killed runs left of files that need no copy any more. Where the
  // storage cannot tell the dead from the living, only age does.
  void abort_abandoned() {
    auto uploads = target_.storage->list_uploads(prefix_of(target_));
    if (!uploads) return;
    const auto young = std::chrono::system_clock::now() - kAbandonedAfter;
    if (!target_.storage->capabilities().knows_dead)
      std::erase_if(*uploads, [&](const ObjectInfo& upload) { return upload.modified > young; });
    if (uploads->empty()) return;
    if (const auto aborted = target_.storage->abort_uploads(*uploads); !aborted) {
      log(LogLevel::kWarning, "unfinished writes of earlier runs stay: {}", aborted.error().to_string());
    }
  }

  Status delete_extra() {
    if (deletes_.count() == 0) return {};
    const auto hold = [&](std::string why) {
      report_.not_deleted = std::move(why);
      report_.extra_files += deletes_.count();
      return Status();
    };
    if (streams_->plan.source_files() == 0) return hold("the source has no files");
    if (report_.failed > 0) return hold("files failed");
    if (options_.max_delete && deletes_.count() > *options_.max_delete) {
      return hold(
          fmt::format("{} would be deleted, more than --max-delete {}", deletes_.count(), *options_.max_delete));
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

  Status remove_source() {
    phase("remove");
    ASSIGN_OR_RETURN(const MovedFiles::Report removed, moved_.remove(source_, options_.filter, stop_));
    report_.removed_files = removed.files;
    report_.failed += removed.failed;
    if (!report_.first_failure) report_.first_failure = removed.first_failure;
    return {};
  }

  void deleted(const std::string& path, int64_t size, const Status& status) {
    if (status) {
      ++report_.deleted_files;
      report_.deleted_bytes += size;
      if (options_.on_event) options_.on_event({SyncEvent::Kind::kDeleted, path, "not at the source", size, 0});
      return;
    }
    ++report_.failed;
    if (progress_ != nullptr) progress_->add_failed();
    if (!report_.first_failure) report_.first_failure = status.error();
    if (options_.on_event) options_.on_event({SyncEvent::Kind::kFailed, path, status.error().to_string(), size, 0});
  }

  const Location source_, target_;
  const SyncOptions& options_;
  const std::stop_token stop_;
  Progress* const progress_;
  const bool folders_;     // of the target
  const bool batched_;     // small files are made durable together
  StopLater record_stop_;  // what was copied before a stop is written down
  const Location record_at_;
  RecordKeeper record_;
  std::unique_ptr<Streams> streams_;
  std::deque<Action> ahead_;  // planned and not begun
  bool planned_ = false;      // nothing comes behind `ahead_`
  PathSpool deletes_;
  std::vector<Action> postponed_;  // until something in their place is deleted
  bool after_deletes_ = false;
  MovedFiles moved_;
  SyncReport report_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Slot>> open_;  // of the thread that calls run(); `done` of each is under the mutex
  size_t working_ GUARDED_BY(mutex_) = 0;
  size_t awaited_ GUARDED_BY(mutex_) = 0;  // so few have to be at work for who waits

  // The last members: their threads end before what they use.
  std::unique_ptr<TransferEngine> engine_;
  DurableBatches batches_;
};

// Whether `inner` lies in `outer`, or is it.
bool is_within(const Location& inner, const Location& outer) {
  if (inner.storage != outer.storage && inner.storage->name() != outer.storage->name()) return false;
  return outer.key.empty() || inner.key == outer.key || inner.key.starts_with(outer.key + "/");
}

}  // namespace

std::string_view event_name(SyncEvent::Kind kind) {
  switch (kind) {
    case SyncEvent::Kind::kCopied:
      return "copy";
    case SyncEvent::Kind::kSkipped:
      return "skip";
    case SyncEvent::Kind::kDeleted:
      return "delete";
    case SyncEvent::Kind::kExtra:
      return "extra";
    case SyncEvent::Kind::kPassed:
      return "pass";
    case SyncEvent::Kind::kRefused:
      return "refuse";
    case SyncEvent::Kind::kFailed:
      break;
  }
  return "fail";
}

Status SyncReport::status() const {
  RETURN_IF_ERROR(end);
  if (first_failure) {
    Error error = *first_failure;
    return tl::unexpected(error.add_context(fmt::format("{} of {} files failed, the first", failed + refused,
                                                        failed + refused + copied_files + skipped_files)));
  }
  if (not_deleted.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "nothing was deleted: {}", not_deleted);
}

Result<SyncReport> sync(const Location& source, const Location& target, const SyncOptions& options,
                        std::stop_token stop, Progress* progress) {
  const bool overlaps = is_within(target, source) || (options.delete_extra && is_within(source, target));
  if (overlaps) {
    return fail(ErrorCode::kInvalidArgument, "{} and {} overlap: one is inside the other", source.url, target.url);
  }
  return Run(source, target, options, stop, progress).run();
}

Result<SyncReport> sync(const std::string& source, const std::string& target, const SyncOptions& options,
                        std::stop_token stop, Progress* progress) {
  ASSIGN_OR_RETURN(const Location from, open_url(source));
  ASSIGN_OR_RETURN(const Location to, open_url(target));
  return sync(from, to, options, std::move(stop), progress);
}

}  // namespace millrace::sync
