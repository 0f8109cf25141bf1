// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "millrace/loader/detail/scheduler_job.h"

// The part of the Scheduler that walks the order: makes jobs, finds their blocks and has these planned.

namespace millrace::loader {

namespace {

// Plans come before what is decoded, because reads begin by them.
constexpr int kPlanPriority = 1 << 30;

}  // namespace

// How many may be begun.
int64_t Scheduler::missing_jobs() const {
  if (is_stopped_ || is_memory_full_ || is_at_end_) return 0;
  return std::max<int64_t>(0, std::min(shared_.depth.load(), most_batches()) - std::ssize(jobs_));
}

// Whether next() should have a worker walk. A worker that has made a batch walks by itself, so next() wakes one only
// where half of the depth is missing: where no batch is made for a while, because all wait for reads.
bool Scheduler::is_walk_due() const {
  constexpr int64_t kPart = 2;  // of the depth
  const int64_t missing = is_walking_ ? 0 : missing_jobs();
  return missing > 0 && missing * kPart >= missing + std::ssize(jobs_);
}

// Makes the jobs that are missing. One worker at a time does. Finding the next step takes long where an epoch begins
// (a pass over all windows) or steps are skipped, so it is done without the lock, and each job is there at once.
void Scheduler::walk() {
  for (bool goes_on = true; goes_on;) {
    auto step = cursor_->next();
    Tasks tasks;
    {
      MutexLock lock(mutex_);
      add_job(std::move(step));
      goes_on = missing_jobs() > 0;
      is_walking_ = goes_on;
      tasks = take_tasks();
    }
    submit(std::move(tasks), !goes_on);
  }
}

void Scheduler::add_job(Result<std::optional<OrderCursor::Step>> step) {
  if (is_stopped_) return;
  is_at_end_ = cursor_->is_at_end();
  if (is_at_end_) changed_.notify_all();
  if (step && !*step) return;
  const auto job = std::make_shared<Job>();
  job->number = next_job_++;
  jobs_.push_back(job);
  if (!step) {
    job->error = std::move(step).error();
    job->is_done = true;
    is_to_be_announced();  // an error ends the batches, and all waiting threads must know
    return;
  }
  job->step = **std::move(step);
  for (const OrderCursor::Step::Unit& unit : job->step.units) {
    if (unit.kind == OrderCursor::Step::Unit::Kind::kPadding) {
      job->units.emplace_back();
      continue;
    }
    const BlockPtr block = live_block(*job, unit.order, unit.place);
    job->units.push_back({block, unit.place.index, place_of(job->step, unit.order, unit.place)});
    wait_for(job, block);
  }
  forget_passed_blocks(*job);
  ask_for_plans();
  if (job->blocks_left == 0) collatable_.push_back(job);
}

void Scheduler::wait_for(const JobPtr& job, const BlockPtr& block) {
  const bool counted = !block->waiting.empty() && block->waiting.back() == job;
  if (block->is_ready || counted) return;
  block->waiting.push_back(job);
  ++job->blocks_left;
}

// The block of a place in one of the job's orders. The caller has new ones planned.
Scheduler::BlockPtr Scheduler::live_block(const Job& job, size_t of, const Place& place) {
  const auto& [source, epoch, order] = job.step.orders[of];
  BlockPtr& block = live_[{source, epoch, place.lane, place.block}];
  if (block != nullptr) return block;
  block = std::make_shared<LiveBlock>();
  block->source = source;
  block->first_job = job.number;
  block->priority = job.priority();
  block->order = order;
  block->place = place;
  without_memory_.push_back(block);
  return block;
}

bool Scheduler::reads_to_plan(const LiveBlock& block) const {
  return shared_.dataset.sources[static_cast<size_t>(block.source)]->reads_to_plan();
}

// Has blocks planned that were not yet. Where planning reads the rows, as far as the memory for rows goes; how much a
// block has is known when it is planned, so it counts as the largest so far. The first one that waits is planned in any
// case when no rows are about to be decoded, so that batches always go on.
void Scheduler::ask_for_plans() {
  const int64_t limit = shared_.dataset.memory.rows->limit_bytes();
  for (const BlockPtr& block : without_memory_) {
    if (block->is_asked) continue;
    if (reads_to_plan(*block)) {
      const int64_t expected = most_rows_ > 0 ? most_rows_ : limit;
      const bool must_go_on = block == without_memory_.front() && row_blocks_decoding_ == 0;
      if (rows_held_ + expected > limit && !must_go_on) continue;
      rows_read(*block, expected);
    }
    block->is_asked = true;
    planner_->add({.source = block->source,
                   .order = block->order,
                   .lane = block->place.lane,
                   .number = block->place.block,
                   .priority = kPlanPriority + block->priority,
                   .done = [this, block = block](Result<PlannedBlock> plan) mutable {
                     planned(std::move(block), std::move(plan));
                   }});
  }
}

// The block's part of the rows that are held.
void Scheduler::rows_read(LiveBlock& block, int64_t bytes) {
  rows_held_ += bytes - block.rows_bytes;
  block.rows_bytes = bytes;
}

// Epochs of a source and rows of a lane are taken in order, so a block before the one that a lane has reached is not
// needed again.
void Scheduler::forget_passed_blocks(const Job& job) {
  const auto forget = [this](const BlockKey& from, const BlockKey& until)
                          REQUIRES_LOCK(mutex_) { live_.erase(live_.lower_bound(from), live_.lower_bound(until)); };
  for (const auto& [source, epoch, order] : job.step.orders) {
    Reached& reached = reached_[static_cast<size_t>(source)];
    if (reached.epoch >= epoch) continue;  // an earlier one fills up the last batch
    forget({source, 0, 0, 0}, {source, epoch, 0, 0});
    reached.epoch = epoch;
    reached.blocks.clear();
  }
  for (const OrderCursor::Step::Unit& unit : job.step.units) {
    if (unit.kind != OrderCursor::Step::Unit::Kind::kGiven) continue;
    const auto& [source, epoch, order] = job.step.orders[unit.order];
    Reached& reached = reached_[static_cast<size_t>(source)];
    if (reached.epoch != epoch) continue;  // the end of the epoch before
    const auto lane = static_cast<size_t>(unit.place.lane);
    if (reached.blocks.size() <= lane) reached.blocks.resize(lane + 1);
    if (reached.blocks[lane] >= unit.place.block) continue;
    reached.blocks[lane] = unit.place.block;
    forget({source, epoch, unit.place.lane, 0}, {source, epoch, unit.place.lane, unit.place.block});
  }
}

// Takes the reference to the block, as run_decoded() does: a block that only this task still held would look needed.
void Scheduler::planned(BlockPtr block, Result<PlannedBlock> plan) {
  Reads reads;
  std::vector<JobPtr> collatable;
  {
    MutexLock lock(mutex_);
    if (is_stopped_) return;
    if (plan) {
      block->plan = std::move(*plan);
    } else {
      block->error = std::move(plan).error();
    }
    if (reads_to_plan(*block)) {
      rows_read(*block, block->plan ? block->plan->block->bytes() : 0);
      most_rows_ = std::max(most_rows_, block->rows_bytes);
    }
    reads = give_memory();
    collatable = take_collatable();
    block.reset();
  }
  submit({.collatable = std::move(collatable)});
  reader_->add(std::move(reads));
}

}  // namespace millrace::loader
