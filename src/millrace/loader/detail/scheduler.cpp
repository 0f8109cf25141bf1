// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "millrace/loader/detail/scheduler_job.h"
#include "millrace/loader/detail/state_damage.h"
#include "millrace/loader/detail/wait_error.h"

// How a batch comes to be. A worker walks the order batch by batch, up to `depth` batches ahead. Each batch is a
// job; the blocks that hold its units are looked up in live_, or begun. A block passes four stations:
//
//   planned      a worker lays it out, which may wait for indexes
//   with memory  it gets its arena, strictly in the order of first use: a later block must not take the memory that an
//                earlier batch waits for
//   reading      its runs are read and decoded, on any number of threads
//   ready        the jobs that wait for it have one block less to wait for
//
// A job whose last block is ready is collated, and next() takes jobs from the front of the queue once they are done. An
// error at any station stays with the block, so that exactly the batches that need it fail, each in its turn.
//
// A block lives as long as a job refers to it or a later row of its lane may need it. Collating a job frees the blocks
// that it was the last to use; then blocks that wait for memory go on. When the first job that is not done waits for
// memory, no other job will free any: that is an error, which says how much would do.
//
// With OnBad::kQuarantine a job whose blocks are ready is looked through before it is collated: a damaged unit gives
// its place to another one, whose block the job then waits for. What takes the place is a function of the order alone,
// so every rank that has the unit, and every resumed run, reads the same instead.
//
// This file begins, delivers and ends. scheduler_plan.cpp walks the order and has blocks planned, scheduler_read.cpp
// gives memory and reads, scheduler_damage.cpp replaces damaged units.
//
// Neither I/O nor a walk happens under the lock or on the thread that calls next(). Functions that find out under the
// lock what is to be done return it, and their callers pass it on after letting go of the lock.

namespace millrace::loader {

namespace {

// Waking a thread costs some 10 us, a thirtieth of a batch that takes 300 us: quicker batches are handed over together.
constexpr auto kQuickBatch = std::chrono::microseconds(300);
constexpr int64_t kHandOver = 8;  // quick batches that next() is told of at once
constexpr auto kHandOverWait = std::chrono::milliseconds(1);

// The cursor copies its state into every batch; the ledger is kept apart.
Start without_ledger(Start start) {
  ledger_of(start.state).clear();
  return start;
}

}  // namespace

Scheduler::Scheduler(const Shared& shared, Start start)
    : shared_(shared),
      start_(without_ledger(start)),
      at_(start_.state),
      quarantined_(std::move(ledger_of(start.state))),
      reached_(shared.dataset.sources.size()),
      cursor_(shared.dataset.order->cursor(start_)),
      workers_(std::make_unique<Executor>(shared.options.threads, "mr-loader", shared.options.cpus)),
      reader_(
          std::make_unique<RunReader>(*shared.dataset.memory.runs, *workers_, stop_.get_token(), &shared.activities)),
      planner_(std::make_unique<BlockPlanner>(shared.dataset, *workers_, stop_.get_token())) {}

Result<std::optional<Batch>> Scheduler::next(Clock::time_point deadline) {
  Tasks tasks;
  auto batch = [&] {
    MutexLock lock(mutex_);
    auto taken = take_next(deadline);
    tasks = take_tasks();
    return taken;
  }();
  submit(std::move(tasks));
  return batch;
}

Result<std::optional<Batch>> Scheduler::take_next(Clock::time_point deadline) {
  bool waited = false;
  while (!is_stopped_ && !(jobs_.empty() ? is_at_end_ : jobs_.front()->is_done)) {
    if (!collatable_.empty() || is_walk_due()) {
      submit_now();
      continue;
    }
    waited = true;
    if (deadline == kDoNotWait || !wait_for_batches(deadline))
      return fail(ErrorCode::kTimeout, "no batch is ready yet");
  }
  if (is_stopped_) return fail(ErrorCode::kCancelled, "the loader is closed");
  if (jobs_.empty()) return std::nullopt;
  const JobPtr job = jobs_.front();
  if (Status kept = check_quarantine(*job); !kept) job->error = std::move(kept).error();
  if (job->error) return tl::unexpected(*job->error);
  jobs_.pop_front();
  --jobs_done_;
  auto& depth = shared_.depth;
  if (waited) depth = std::min(depth + 1, most_batches());
  job->step.move_behind(at_);
  keep_quarantined(*job);
  shared_.metrics.add(Metric::kBatches, 1);
  shared_.metrics.add(Metric::kSamples, job->batch.rows);
  shared_.metrics.add(Metric::kTokens, job->batch.tokens);
  return std::move(job->batch);
}

// Until something has changed, or might have. False: `deadline` has passed.
bool Scheduler::wait_for_batches(Clock::time_point deadline) {
  if (!are_batches_quick_) {
    ++waiting_for_each_;
    const bool is_told = changed_.wait_until(mutex_, deadline);
    --waiting_for_each_;
    return is_told || Clock::now() < deadline;
  }
  // What is ready and was not announced is found a little later; then again, one batch is waited for.
  const bool is_told = changed_.wait_until(mutex_, std::min(Clock::now() + kHandOverWait, deadline));
  if (!is_told) are_batches_quick_ = false;
  return is_told || Clock::now() < deadline;
}

// Counts the batches that are ready, and answers whether next() should be told. It is for each batch, unless they come
// so quickly that waking a thread costs as much as a batch: then for several at once.
bool Scheduler::is_to_be_announced() {
  const Clock::time_point now = Clock::now();
  are_batches_quick_ = now - last_done_ < kQuickBatch;
  last_done_ = now;
  const int64_t before = jobs_done_;
  while (jobs_done_ < std::ssize(jobs_) && jobs_[static_cast<size_t>(jobs_done_)]->is_done) ++jobs_done_;
  if (jobs_done_ == before) return false;  // one before it is not ready
  return !are_batches_quick_ || waiting_for_each_ > 0 || jobs_done_ >= std::min(kHandOver, (std::ssize(jobs_) + 1) / 2);
}

bool Scheduler::is_stopped() {
  MutexLock lock(mutex_);
  return is_stopped_;
}

int64_t Scheduler::ready_batches() const {
  MutexLock lock(mutex_);
  return jobs_done_;
}

std::string Scheduler::stage() {
  MutexLock lock(mutex_);
  if (is_stopped_) return "move (reads from before are being ended)";
  if (jobs_.empty()) {
    return is_walking_ ? "order (the next batch is being found in it)" : "memory (no batch could be begun)";
  }
  for (const Job::Unit& unit : jobs_.front()->units) {
    if (unit.block != nullptr && !unit.block->is_ready) return block_stage(*unit.block);
  }
  return "collate (all rows of the batch are read)";
}

std::string Scheduler::block_stage(const LiveBlock& block) const {
  const std::string_view source = shared_.dataset.sources[static_cast<size_t>(block.source)]->name();
  if (!block.plan) return fmt::format("plan (indexes and shards of {} are being opened)", source);
  if (!block.has_memory) return fmt::format("memory (a block of {} waits for what others hold)", source);
  return fmt::format("read (a block of {} lacks {} more runs)", source, block.runs_left);
}

Start Scheduler::position() {
  MutexLock lock(mutex_);
  return {state_without_lock(), start_.orders};
}

order::LoaderState Scheduler::state_without_lock() const {
  order::LoaderState state = at_;
  ledger_of(state) = quarantined_;
  return state;
}

// The jobs that wait for a worker, and the walk. The caller gives them to submit() without the lock: that wakes a
// thread for each.
Scheduler::Tasks Scheduler::take_tasks() {
  Tasks tasks{take_collatable(), is_walk_due()};
  if (tasks.has_walk && tasks.collatable.empty()) ++submissions_;
  if (tasks.has_walk) is_walking_ = true;
  return tasks;
}

std::vector<Scheduler::JobPtr> Scheduler::take_collatable() {
  if (is_stopped_) collatable_.clear();
  if (!collatable_.empty()) ++submissions_;
  return std::exchange(collatable_, {});
}

void Scheduler::submit(Tasks tasks, bool is_last) {
  if (tasks.collatable.empty() && !tasks.has_walk) return;
  if (tasks.has_walk) workers_->submit([this] { walk(); }, std::numeric_limits<int>::max());
  for (JobPtr& job : tasks.collatable) {
    const int priority = job->priority();
    auto task = [this, job = std::move(job)] { collate(job); };
    if (is_last) {
      workers_->submit_last(std::move(task), priority);
    } else {
      workers_->submit(std::move(task), priority);
    }
    is_last = false;  // one task for the thread that ends
  }
  if (--submissions_ == 0) submissions_.notify_all();
}

// For a caller that is about to wait. Lets go of the lock meanwhile.
void Scheduler::submit_now() {
  Tasks tasks = take_tasks();
  mutex_.unlock();
  submit(std::move(tasks));
  mutex_.lock();
}

void Scheduler::collate(const JobPtr& job) {
  do {
    if (!replace_damaged(job)) return;
  } while (!decode_samples(*job));
  auto batch = make_batch(*job);
  Reads reads;
  std::vector<JobPtr> collatable;
  bool goes_on = false, is_announced = false, walks = false;
  {
    MutexLock lock(mutex_);
    if (batch) {
      job->batch = std::move(*batch);
    } else if (!job->error) {
      job->error = std::move(batch).error();
    }
    job->is_done = true;
    is_announced = is_to_be_announced();
    job->units.clear();  // may free blocks, whose memory others wait for
    goes_on = !is_stopped_;
    if (goes_on) {
      reads = give_memory();
      walks = !is_walking_ && missing_jobs() > 0;  // this worker, as nobody has to be woken for it
      if (walks) is_walking_ = true;
      collatable = take_collatable();
    }
  }
  if (is_announced) changed_.notify_all();  // without the lock, for which next() would wait at once
  if (goes_on) reader_->add(std::move(reads));
  submit({.collatable = std::move(collatable)}, !walks);
  if (walks) walk();
}

Result<Batch> Scheduler::make_batch(const Job& job) {
  if (shared_.options.has_fields()) {
    auto batch = make_sample_batch(job);
    if (!batch) return tl::unexpected(as_final(std::move(batch).error()));
    return with_place(std::move(*batch), job);
  }
  const int64_t pack_seq_len = shared_.options.pack_seq_len();
  auto batch = shared_.maker.make(std::ssize(job.units), [&](int64_t row, std::vector<Piece>& pieces) -> Status {
    const Job::Unit& unit = job.units[static_cast<size_t>(row)];
    if (unit.block == nullptr) return {};  // a row of padding
    if (unit.block->error) return tl::unexpected(*unit.block->error);
    return unit.block->plan->block->pieces(unit.index, pack_seq_len, pieces);
  });
  if (!batch) return tl::unexpected(as_final(std::move(batch).error()));
  return with_place(std::move(*batch), job);
}

Result<Batch> Scheduler::make_sample_batch(const Job& job) {
  std::vector<const DecodedSample*> rows;
  for (const Job::Unit& unit : job.units) {
    if (unit.block != nullptr && unit.sample == nullptr) {
      if (unit.block->error) return tl::unexpected(*unit.block->error);
      if (unit.damage) return tl::unexpected(*unit.damage);
      RETURN_IF_ERROR(unit.block->plan->block->check(unit.index, 0));
    }
    rows.push_back(unit.sample.get());
  }
  return shared_.maker.make(rows);
}

// Says where in the order the batch is.
Batch Scheduler::with_place(Batch batch, const Job& job) const {
  batch.epoch = job.step.epoch;
  batch.position = job.step.position;
  batch.next_position = job.step.next_position;
  if (carries_places()) {
    for (const Job::Unit& unit : job.units) batch.places.push_back(unit.place);
  }
  if (shared_.options.fill_last != FillLast::kNothing) {
    for (const auto& unit : job.step.units) {
      batch.row_mask.push_back(unit.kind == OrderCursor::Step::Unit::Kind::kGiven ? 1 : 0);
    }
  }
  if (shared_.options.is_mixture()) {
    for (const auto& unit : job.step.units) {
      const bool is_padding = unit.kind == OrderCursor::Step::Unit::Kind::kPadding;
      batch.sources.push_back(is_padding ? -1 : job.step.orders[unit.order].source);
    }
  }
  return batch;
}

void Scheduler::stop() {
  MutexLock stopping(stopping_);
  {
    MutexLock lock(mutex_);
    if (is_stopped_) return;
    is_stopped_ = true;
    changed_.notify_all();
  }
  stop_.request_stop();
  reader_->stop();  // its reads give work to the workers
  for (int left = submissions_; left > 0; left = submissions_) submissions_.wait(left);
  workers_.reset();
  planner_.reset();
  reader_.reset();
  MutexLock lock(mutex_);
  for (const JobPtr& job : jobs_) job->units.clear();  // a job and a block that it waits for hold each other
  jobs_.clear();
  jobs_done_ = 0;
  collatable_.clear();
  live_.clear();
  without_memory_.clear();
}

}  // namespace millrace::loader
