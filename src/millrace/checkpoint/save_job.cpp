// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/save_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "millrace/base/log.h"
#include "millrace/base/published.h"
#include "millrace/base/text/units.h"
#include "millrace/checkpoint/tier/tier_commit.h"
#include "millrace/checkpoint/tier/tier_job.h"

namespace millrace::checkpoint {

SaveJob::SaveJob(std::shared_ptr<Core> core, std::shared_ptr<Workspace> work, std::shared_ptr<const RankFile> file,
                 int64_t step, Documents documents)
    : core_(std::move(core)),
      work_(std::move(work)),
      file_(std::move(file)),
      step_(step),
      documents_(std::make_shared<const Documents>(std::move(documents))) {}

Status SaveJob::take(std::span<const TensorToSave> tensors, const FillImage& fill) {
  return in_pages(file_->bytes()) > core_->image_room(*work_) ? lend(tensors, fill) : copy(tensors, fill);
}

Status SaveJob::copy(std::span<const TensorToSave> tensors, const FillImage& fill) {
  is_filled_later_ = fill != nullptr;
  Status storage_ready;
  Status filled = fill_image(tensors, fill, storage_ready);
  if (filled) return storage_ready;
  tell_others(filled.error());
  return filled;
}

Status SaveJob::fill_image(std::span<const TensorToSave> tensors, const FillImage& fill, Status& storage_ready) {
  if (work_->image.bytes() < file_->bytes()) {
    for (ThroughMemory& each : core_->through) {  // of a save before that was larger
      if (!each.busy) each.buffer.drop();
    }
  }
  RETURN_IF_ERROR(work_->image.make_room(core_->memory, file_->bytes()));
  if (fill) {
    work_->pin_image();
    RETURN_IF_ERROR(fill(work_->image.span(), file_->places(tensors, 0, work_->image.span()), FillMode::kBegin));
  }
  std::optional<BoundedCall> check;
  if (core_->tiers.size() == 1) check.emplace(look_at_storage(), answered());
  file_->snapshot(tensors, work_->image.data(), work_->executor);
  if (check) storage_ready = answer_of(*check, core_->patience());
  return {};
}

Status SaveJob::lend(std::span<const TensorToSave> tensors, const FillImage& fill) {
  if (!core_->said_through.exchange(true))
    log(LogLevel::kWarning,
        "checkpoint: a save has {}, memory_bytes leaves {} for the snapshot of this rank: training stands still until "
        "it is written to {}",
        format_bytes(file_->bytes()), format_bytes(core_->image_room(*work_)), core_->tiers[0].options.root.url);
  if (Status shared = share_memory(fill != nullptr); !shared) {
    tell_others(shared.error());
    return shared;
  }
  if (core_->tiers.size() == 1) {
    BoundedCall check(look_at_storage(), answered());
    RETURN_IF_ERROR(answer_of(check, core_->patience()));
  }
  live_ = std::make_shared<LiveTensors>(tensors, fill);
  return {};
}

Status SaveJob::share_memory(bool from_device) {
  work_->image.drop();
  const int64_t all = core_->image_room(*work_);
  std::vector<ThroughMemory>& through = core_->through;
  const auto idle = std::ranges::count_if(through, [](const ThroughMemory& each) { return !each.busy; });
  const int64_t share = idle == 0 ? 0 : all / idle / kStagingPage * kStagingPage;
  if (share == 0) {
    const std::string cap = format_bytes(core_->memory.cap());
    const bool is_small = idle > 0 && core_->memory.cap() < idle * kStagingPage;
    return no_memory(is_small
                         ? fmt::format("step {}: memory_bytes allows {} for this rank, and a save takes at least {}",
                                       step_, cap, format_bytes(idle * kStagingPage))
                         : fmt::format("step {}: memory_bytes allows {} for this rank, and saves that hang in "
                                       "storage hold all but {} of it",
                                       step_, cap, format_bytes(all)));
  }
  for (ThroughMemory& each : through) {
    if (!each.busy && each.buffer.bytes() != share) each.buffer.drop();
  }
  through_.resize(through.size());
  for (size_t tier = 0; tier < through.size(); ++tier) {
    ThroughMemory& each = through[tier];
    if (each.busy || !core_->goes_to(tier, step_)) continue;
    RETURN_IF_ERROR(each.buffer.make_room(core_->memory, share));
    if (from_device && work_->is_pinned) work_->is_pinned = each.buffer.pin();
    through_[tier] = each.buffer.span();
  }
  return {};
}

// Whether the step may be saved in the only tier.
std::function<Status()> SaveJob::look_at_storage() const {
  return [core = core_, step = step_, bytes = core_->space_for(*file_)] { return core->check_storage(0, step, bytes); };
}

std::function<void()> SaveJob::answered() const {
  return [core = core_] { core->stuck.remove(0); };
}

// Storage that does not answer counts as one in which a save hangs, until it does. Errors: those of the call, timeout.
Status SaveJob::answer_of(BoundedCall& call, std::chrono::milliseconds timeout) const {
  auto answer = call.wait(timeout, [core = core_] { core->stuck.add(0); });
  if (answer) return *std::move(answer);
  return fail(ErrorCode::kTimeout, "{} has not answered for {} s", core_->tiers[0].options.root.url,
              std::chrono::round<std::chrono::seconds>(timeout).count());
}

void SaveJob::tell_others(const Error& cause) {
  if (core_->options.world_size == 1 || !documents_->state) return;
  has_told_others_ = true;
  const auto tell = [core = core_, step = step_, cause] {
    for (size_t tier = 0; tier < core->tiers.size(); ++tier) {
      if (core->goes_to(tier, step)) tell_of_failure(*core, tier, step, cause);
    }
    return Status();
  };
  BoundedCall call(tell, answered());
  static_cast<void>(answer_of(call, kStopGrace));  // else they wait for `commit_timeout`
}

std::shared_ptr<Save> SaveJob::make_save() const {
  const int64_t bytes = file_->bytes();
  const auto timeout = core_->tiers.size() > 1 ? core_->options.tier_timeout : core_->patience();
  auto save = std::make_shared<Save>(step_, bytes, core_->targets_of(step_), timeout,
                                     Save::Events{.given_up = [core = core_](size_t tier) { core->stuck.add(tier); },
                                                  .done =
                                                      [core = core_, step = step_, bytes] {
                                                        core->set_busy(step, false);
                                                        publish_add(Published::kSavesUnderWay, -1);
                                                        publish_add(Published::kUnwrittenBytes, -bytes);
                                                      }});
  save->stop_with(core_->stop.get_token());
  if (is_filled_later_) save->expect_fill();
  publish_add(Published::kSaves, 1);
  publish_add(Published::kSavesUnderWay, 1);
  publish_add(Published::kUnwrittenBytes, bytes);
  publish_now(Published::kLastSaveNs);
  return save;
}

RunningSave SaveJob::launch(std::span<std::shared_ptr<Save>> last_of_tier) {
  save_ = make_save();
  const auto source = std::make_shared<SaveSource>();
  source->file = file_;
  source->documents = documents_;
  source->live = live_;
  for (size_t tier = 0; tier < through_.size(); ++tier) {
    if (!through_[tier].empty()) core_->through[tier].busy = true;
  }
  source->through = through_;
  if (core_->tiers.size() > 1) core_->set_busy(step_, true);
  std::vector<std::pair<size_t, std::function<void()>>> jobs;  // all hold the image before the first can release it
  for (size_t tier = 0; tier < save_->tiers(); ++tier) {
    if (!save_->goes_to(tier)) continue;
    jobs.emplace_back(tier, make_tier_job(core_, work_, save_, last_of_tier[tier], tier, source));
    last_of_tier[tier] = save_;
  }
  RunningSave running{.save = save_};
  for (auto& [tier, job] : jobs) running.threads.emplace_back(tier, Thread("mr-ckpt-save", std::move(job)));
  return running;
}

Status SaveJob::await_tensors(const std::stop_token& stop) {
  if (!live_) return {};
  const bool is_free = save_->wait_image_free(stop);
  live_->leave();
  if (is_free) return {};
  save_->set_reported();
  return fail(ErrorCode::kCancelled, "stopped while step {} was written", step_);
}

RunningSave launch_commit(const std::shared_ptr<Core>& core, WrittenRecord record,
                          const std::shared_ptr<const Documents>& documents) {
  const int64_t step = record.part.step;
  const auto save =
      std::make_shared<Save>(step, 0, core->targets_of(step), core->patience(),
                             Save::Events{.given_up = [core](size_t tier) { core->stuck.add(tier); }, .done = {}});
  save->stop_with(core->stop.get_token());
  const auto job = [core, save, step, record = std::move(record), documents]() mutable {
    const StepCommit commit = commit_in(*core, 0, step, save->stop_token(), [save] { save->alive(0); });
    Status committed = commit_part(*core, commit, std::move(record), *documents);
    if (committed) {
      core->metrics.add(Metric::kSaves, 1);
      save->committed(0);
      if (core->options.rank == 0) follow_up(*core, 0, *save, documents->line);
    } else {
      core->tiers[0].sweep = true;
    }
    if (!save->finish(0, std::move(committed))) core->stuck.remove(0);
  };
  RunningSave running{.save = save};
  running.threads.emplace_back(0, Thread("mr-ckpt-commit", job));
  return running;
}

}  // namespace millrace::checkpoint
