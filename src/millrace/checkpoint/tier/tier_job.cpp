// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/tier/tier_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/published.h"
#include "millrace/checkpoint/commit/references.h"
#include "millrace/checkpoint/io/bounded_call.h"
#include "millrace/checkpoint/tier/part_copy.h"
#include "millrace/checkpoint/tier/tier_commit.h"

namespace millrace::checkpoint {

namespace {

constexpr std::chrono::milliseconds kMostLooking{60'000};  // for what the first save of a process may refer to

// Brings a save into one tier, from the snapshot or from the nearest tier's file to the commit, on a thread.
class TierJob {
 public:
  TierJob(std::shared_ptr<Core> core, std::shared_ptr<Workspace> work, std::shared_ptr<Save> save,
          std::shared_ptr<Save> before, size_t tier, std::shared_ptr<SaveSource> source)
      : core_(std::move(core)),
        work_(std::move(work)),
        save_(std::move(save)),
        before_(std::move(before)),
        at_(tier),
        source_(std::move(source)),
        documents_(source_->documents),
        holds_memory_(source_->live && !source_->through[at_].empty()) {
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
      core_->bases.forget(save_->step());
      if (!is_stuck()) core_->tiers[at_].sweep = true;  // else an older save's thread is still at it
      if (core_->tiers.size() > 1)
        log(LogLevel::kWarning, "checkpoint: step {} is not in {}: {}", save_->step(), root().url,
            status.error().to_string());
    }
    if (!save_->finish(at_, std::move(status))) core_->stuck.remove(at_);
  }

 private:
  const Location& root() const { return core_->tiers[at_].options.root; }

  // Whether an older save hangs in this tier's storage.
  bool is_stuck() const { return core_->stuck.count(at_) > (save_->given_up(at_) ? 1 : 0); }
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
    if (std::exchange(holds_memory_, false)) core_->through[at_].busy = false;
    save_->release_image(at_);
  }
  // The tier's saves end in the order of their steps, with all that they remove.
  void wait_for_save_before() {
    if (before_) {
      save_->set_waiting(at_, true);
      before_->wait_finished(at_);
      save_->set_waiting(at_, false);
    }
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
    if (source_->live && !holds_memory_) return still_stuck();
    const SaverOptions& options = core_->options;
    ASSIGN_OR_RETURN(const PartChoice chosen, choice());
    MetricTimer timer(core_->metrics, Metric::kWriteSeconds);
    const Location data = directory(at_).child(places().file(options.rank));
    ASSIGN_OR_RETURN(const auto writer, data.storage->open_write(data.key, {.size_hint_bytes = chosen.file->bytes()}));
    WrittenRecord record;
    PartRecord& part = record.part;
    ASSIGN_OR_RETURN(part, write_file(chosen, {*data.storage, *writer, alive()}));
    save_->alive(at_);
    RETURN_IF_ERROR(writer->commit(Durability::kDurable));
    part.step = save_->step();
    part.attempt = options.attempt;
    part.rank = options.rank;
    part.world_size = options.world_size;
    part.state = documents_->rank_state;
    part.in_folders = places().in_folders;
    part.shares = may_refer();
    add_referred(part, chosen.referred);
    record.text = serialize(part);
    RETURN_IF_ERROR(write_record(record));
    if (part.shares) core_->bases.add(save_, std::make_shared<const PartRecord>(part));
    return record;
  }

  // commit() of a part comes at a time that is not known here, so such a part neither refers nor is referred to.
  bool may_refer() const { return core_->options.refer_unchanged && documents_->state.has_value(); }

  // What is written. The first tier that asks chooses, and turns the image into that file's.
  Result<PartChoice> choice() {
    save_->set_waiting(at_, true);  // for memory, or for another tier that chooses
    MutexLock lock(source_->choosing);
    if (!source_->choice) source_->choice = choose();
    save_->set_waiting(at_, false);
    return *source_->choice;
  }

  Result<PartChoice> choose() {
    const RankFile& whole = *source_->file;
    PartChoice chosen{.file = source_->file};
    if (!may_refer()) return chosen;
    const auto before = find_base();
    if (!before) return chosen;
    if (source_->live) {
      ASSIGN_OR_RETURN(chosen.hashes, whole.hash(*source_->live, source_->through[at_], work_->executor));
    } else {
      chosen.hashes = whole.hash(work_->image.data(), work_->executor);
    }
    PartRecord now = whole.record(*chosen.hashes);
    now.step = save_->step();
    now.rank = core_->options.rank;
    now.world_size = core_->options.world_size;
    chosen.referred = find_unchanged(now, *before);
    if (chosen.referred.tensors.empty()) return chosen;
    ASSIGN_OR_RETURN(chosen.file, whole.without(chosen.referred.tensors));
    chosen.hashes = chosen.file->hashes_of(whole, *chosen.hashes);
    if (!source_->live) chosen.file->compact(whole, work_->image.data());
    for (const PartTensor& tensor : chosen.referred.tensors) core_->referred_bytes += tensor.bytes;
    return chosen;
  }

  // The part that this save may refer to; nullptr: none.
  std::shared_ptr<const PartRecord> find_base() {
    std::vector<bool> tiers;
    std::vector<Location> roots;
    for (size_t tier = 0; tier < core_->tiers.size(); ++tier) {
      tiers.push_back(save_->goes_to(tier));
      if (save_->goes_to(tier)) roots.push_back(core_->tiers[tier].options.root);
    }
    auto known = core_->bases.choose(save_->step(), tiers);
    const auto& line = documents_->line;
    if (known || core_->looked_for_base.exchange(true) || !line || line->empty()) return known;
    // The first save of a process continues a commit of another one.
    struct Found {
      Mutex mutex;
      std::shared_ptr<const PartRecord> part GUARDED_BY(mutex);
    };
    const auto found = std::make_shared<Found>();
    BoundedCall look(
        [found, roots, commit = line->back(), rank = core_->options.rank,
         ranks = core_->options.world_size]() -> Status {
          ASSIGN_OR_RETURN(auto part, find_part(roots, commit, rank, ranks));
          MutexLock lock(found->mutex);
          found->part = std::move(part);
          return {};
        },
        [] {});
    const auto answer = look.wait(std::min<std::chrono::milliseconds>(core_->patience() / 2, kMostLooking), [] {});
    if (!answer || !*answer)
      log(LogLevel::kInfo, "checkpoint: step {} is written whole: {}", save_->step(),
          answer ? answer->error().to_string() : "the storage does not say what it has");
    if (!answer || !*answer) return nullptr;
    MutexLock lock(found->mutex);
    if (!found->part) return nullptr;
    core_->bases.adopt(tiers, found->part);
    return core_->bases.choose(save_->step(), tiers);
  }

  Result<PartRecord> write_file(const PartChoice& chosen, const RankFile::Target& target) {
    if (source_->live)
      return chosen.file->write_through(*source_->live, source_->through[at_], target, work_->executor,
                                        save_->stop_token());
    return chosen.file->write(work_->image.data(), target, work_->executor, save_->stop_token(),
                              chosen.hashes ? &*chosen.hashes : nullptr);
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
      shared->changed.notify_all();
      save->set_waiting(at, reading);
    };
    Thread thread("mr-ckpt-copy", [shared, source, target, part, at_source, memory = core_->memory]() mutable {
      PartCopy copied = copy_part_file(source, target, part, shared->stop.get_token(), at_source, &memory);
      MutexLock lock(shared->mutex);
      shared->result = std::move(copied);
      shared->changed.notify_all();
    });
    MutexLock lock(shared->mutex);
    const auto timeout = core_->options.tier_timeout;
    while (!shared->result && !shared->is_left) {
      if (timeout.count() == 0 || !shared->reads_since) {
        shared->changed.wait(shared->mutex);
      } else if (const auto deadline = *shared->reads_since + timeout; Clock::now() < deadline) {
        static_cast<void>(shared->changed.wait_until(shared->mutex, deadline));
      } else {
        shared->is_left = true;
      }
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
    RETURN_IF_ERROR(check_sources(root(), record.part));
    RETURN_IF_ERROR(write_object(*at.storage, at.key, record.text));
    core_->metrics.add(Metric::kWriteBytes, record.part.file_bytes);
    publish_add(Published::kWriteBytes, record.part.file_bytes);
    return {};
  }

  // Without tiers save() has checked it: there the caller hears of it at once.
  Status check_tier() const {
    if (core_->tiers.size() == 1) return {};
    return core_->check_storage(at_, save_->step(), core_->space_for(*source_->file));
  }

  Status commit(WrittenRecord record) {
    if (!documents_->state) {
      core_->part = std::move(record);
      return {};
    }
    wait_for_save_before();
    if (core_->tiers[at_].options.node_local) return commit_on_node();
    StepCommit step = commit_in(*core_, at_, save_->step(), save_->stop_token(), alive());
    step.check_bases = [core = core_.get(), at = at_](std::span<const Ancestor> bases) {
      Tier& tier = core->tiers[at];
      MutexLock lock(tier.cleaning);
      return check_bases(tier.options.root, bases, &tier.known);
    };
    RETURN_IF_ERROR(commit_part(*core_, step, std::move(record), *documents_));
    set_committed();
    if (core_->options.rank == 0) follow_up(*core_, at_, *save_, documents_->line);
    return {};
  }

  Status commit_on_node() {
    const size_t shared = core_->shared_tier();
    RETURN_IF_ERROR(with_context(while_waiting([&] { return save_->result_of(shared); }),
                                 "the tier that all nodes share has no manifest"));
    const StepCommit commit = commit_in(*core_, at_, save_->step(), save_->stop_token(), alive());
    ASSIGN_OR_RETURN(const bool created, adopt_manifest(commit, core_->tiers[shared].options.root));
    set_committed();
    if (created) follow_up(*core_, at_, *save_, documents_->line);
    return {};
  }

  void set_committed() {
    if (save_->claim_success()) core_->metrics.add(Metric::kSaves, 1);
    save_->committed(at_);
  }

  Location directory(size_t tier) const {
    return step_location(core_->tiers[tier].options.root, save_->step()).child(core_->options.attempt);
  }

  const std::shared_ptr<Core> core_;
  std::shared_ptr<Workspace> work_;  // while this tier reads the image
  const std::shared_ptr<Save> save_;
  std::shared_ptr<Save> before_;  // the last one that goes to this tier; nullptr: none
  const size_t at_;
  const std::shared_ptr<SaveSource> source_;
  const std::shared_ptr<const Documents> documents_;
  bool holds_memory_;  // that a save goes through which has no image
};

}  // namespace

std::function<void()> make_tier_job(std::shared_ptr<Core> core, std::shared_ptr<Workspace> work,
                                    std::shared_ptr<Save> save, std::shared_ptr<Save> before, size_t tier,
                                    std::shared_ptr<SaveSource> source) {
  const auto job = std::make_shared<TierJob>(std::move(core), std::move(work), std::move(save), std::move(before), tier,
                                             std::move(source));
  return [job] { job->run(); };
}

}  // namespace millrace::checkpoint
