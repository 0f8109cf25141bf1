// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/object_copy.h"

#include <algorithm>
#include <utility>

#include "millrace/base/io/path.h"
#include "millrace/sync/detail/etag_match.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/entries.h"

namespace millrace::sync {
namespace {

// Up to here a copy is a light job: kMostLight of them fit into the default memory at once.
constexpr int64_t kLightBytes = 256 << 10;

// Light is what reads, writes and commits without a question to a server that a thread would have to wait for.
CopyScheduler::Weight weight_of(const CopyRequest& request, int64_t memory_bytes) {
  Storage& to = *request.to.storage;
  const bool is_small = request.source.size <= std::min(kLightBytes, memory_bytes / 2);
  const bool cheap_source = request.from.storage->capabilities().is_local();
  const bool cheap_target = to.capabilities().is_local();
  // A file of the object's size may prove to have its content.
  const bool may_be_it = !cheap_source && request.options.target && request.options.target->size == request.source.size;
  const bool asks_target =
      may_be_it || (!cheap_target && (request.options.target || to.copies_from(*request.from.storage)));
  // Asks whether an empty object has always been empty.
  const bool asks_properties = request.from.storage->capabilities().headers && to.capabilities().headers;
  const bool asks_source = !cheap_source && (request.source.size == 0 || asks_properties ||
                                             (request.options.posix && !request.source.posix));
  const bool is_light = is_small && !asks_target && !asks_source && !request.options.dry_run && !request.is_wanted;
  return is_light ? CopyScheduler::Weight::kLight : CopyScheduler::Weight::kHeavy;
}

// Another tool's upload, or one of ours that was killed before it left block hashes, may be what is to be copied.
Result<std::optional<TransferReport>> prove_unchanged(const CopyJob& job, const CopyPlan& plan) {
  if (plan.etag.empty()) return std::nullopt;
  const bool of_source = plan.old_reader != nullptr;
  ASSIGN_OR_RETURN(auto proven, prove_by_etag(of_source ? *plan.old_reader : *plan.source, plan.etag, job.stop));
  if (!proven) return std::nullopt;
  if (!of_source && job.options.sidecar && !job.options.dry_run && !proven->blocks.empty()) {
    keep_sidecar(job.to, {.object_size = plan.old.size,
                          .object_version = plan.old.version,
                          .object_hash = proven->hash,
                          .block_bytes = kBlockBytes,
                          .blocks = std::move(proven->blocks)});
  }
  job.progress->add(plan.old.size, 0);
  return TransferReport{.object = plan.old, .hash = proven->hash, .unchanged = true};
}

}  // namespace

ObjectCopy::ObjectCopy(const CopyTools& tools, CopyRequest request)
    : tools_(tools),
      request_(std::move(request)),
      weight_(weight_of(request_, tools.buffers.limit_bytes())),
      job_{.from = request_.from,
           .source = request_.source,
           .to = request_.to,
           .options = request_.options,
           .stop = request_.stop,
           .progress = request_.progress} {}

void ObjectCopy::start(const CopyTools& tools, CopyRequest request) {
  auto copy = std::make_unique<ObjectCopy>(tools, std::move(request));
  ObjectCopy& self = *copy;
  self.self_ = std::move(copy);
  tools.scheduler.add(self.weight_, [&self] { return self.run(); });
}

void ObjectCopy::push(Completion completion) {
  {
    MutexLock lock(mutex_);
    completions_.push_back(std::move(completion));
    if (!std::exchange(is_resting_, false)) return;
  }
  tools_.scheduler.resume(weight_, [this] { return run(); });
}

CopyScheduler::Next ObjectCopy::run() {
  for (;;) {
    std::vector<Completion> completions;
    {
      MutexLock lock(mutex_);
      completions.swap(completions_);
    }
    const Next next = go_on(completions);
    if (next == Next::kEnd) end();
    if (next != Next::kCall || rest()) return next;
  }
}

// False where a completion has come already.
bool ObjectCopy::rest() {
  MutexLock lock(mutex_);
  is_resting_ = completions_.empty();
  return is_resting_;
}

CopyScheduler::Next ObjectCopy::go_on(std::span<Completion> completions) {
  while (!report_) {
    if (attempt_ == nullptr) {
      if (Status planned = plan(); !planned) report_ = tl::unexpected<Error>(std::move(planned).error());
      if (attempt_ == nullptr) break;
    }
    const Next next = attempt_->go_on(std::exchange(completions, {}));
    if (next != Next::kEnd) return next;
    end_attempt(attempt_->take_report());
  }
  return Next::kEnd;
}

// Makes an attempt. None where no copy is needed: then there is a report, or the request was not wanted.
Status ObjectCopy::plan() {
  if (request_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped before it began");
  if (!job_.again && request_.is_wanted && !request_.is_wanted()) return {};
  if (!job_.again) show_progress();
  ASSIGN_OR_RETURN(CopyPlan plan, plan_copy(job_, job_.options.delta));
  ASSIGN_OR_RETURN(auto unchanged, prove_unchanged(job_, plan));
  if (unchanged)
    report_ = *std::move(unchanged);
  else
    attempt_ = std::make_unique<CopyAttempt>(tools_, job_, std::move(plan), *this);
  return {};
}

// Small copies are counted only: they have ended before anybody could read their names.
void ObjectCopy::show_progress() {
  if (weight_ == CopyScheduler::Weight::kHeavy) {
    progress_.emplace(request_.progress, std::string(base_name(request_.source.key)), request_.source.size);
  } else if (request_.progress == nullptr) {
    progress_.emplace();
  }
  if (progress_) job_.progress = &*progress_;
}

// Another attempt follows where one is worth it; else this is the report.
void ObjectCopy::end_attempt(Result<TransferReport> report) {
  auto options = attempt_->options_of_another(report);
  attempt_.reset();
  if (report) report->moved_bytes = moved_bytes_ += report->moved_bytes;
  if (report) report->resumed_bytes = resumed_bytes_ += report->resumed_bytes;
  if (!options) {
    report_ = std::move(report);
    return;
  }
  request_.options = *std::move(options);
  job_.again = true;
  if (progress_) progress_->add(-progress_->snapshot().bytes, 0);
}

// Gives everything back, this too, before the request is answered.
void ObjectCopy::end() {
  auto self = std::move(self_);
  const auto done = std::move(request_.done);
  auto report = std::move(report_);
  if (report && !*report) report->error().add_context(describe(request_));
  self.reset();
  if (report) done(*std::move(report));
}

}  // namespace millrace::sync
