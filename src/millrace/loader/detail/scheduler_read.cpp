// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/loader/detail/common_size.h"
#include "millrace/loader/detail/scheduler_job.h"

// The part of the Scheduler that reads: gives memory to planned blocks, in order, and has their runs read and decoded.

namespace millrace::loader {

// Gives memory to the blocks that wait for it, in order, as far as it goes.
Scheduler::Reads Scheduler::give_memory() {
  Reads reads;
  is_memory_full_ = false;
  while (!without_memory_.empty()) {
    const BlockPtr block = without_memory_.front();
    if (!block->plan && !block->error) break;
    if (block->plan) {
      const int64_t bytes = block->plan->block->bytes();
      BufferPool& pool = *shared_.dataset.memory.blocks;
      auto arena = try_acquire_common(pool, static_cast<size_t>(bytes));
      const bool is_stuck = arena && !*arena && !may_memory_come(*block);
      if (is_stuck && evict_idle_blocks()) continue;
      if (arena && *arena) {
        block->plan->block->set_arena(std::move(*arena));
        block->has_memory = true;
        append_reads(block, reads);
      } else if (arena && !is_stuck) {
        is_memory_full_ = true;
        break;
      } else {
        block->error = no_memory(fmt::format("one batch needs more than the {} that the loader may read ahead (lane "
                                             "blocks of about {}); raise memory_bytes",
                                             format_bytes(pool.limit_bytes()), format_bytes(bytes)))
                           .value();
      }
    }
    without_memory_.pop_front();
    if (block->error) {
      if (block->plan) block->plan->runs.clear();
      rows_read(*block, 0);
    }
    if (block->error || block->runs_left == 0) block_ready(*block);
  }
  ask_for_plans();
  return reads;
}

// Whether a job before the one that needs the block is still to be collated, or any job that has all it needs: a block
// that replaces another one may be asked for after those of later jobs.
bool Scheduler::may_memory_come(const LiveBlock& block) {
  const auto first = std::ranges::find_if(jobs_, [](const JobPtr& job) { return !job->is_done; });
  if (first == jobs_.end()) return false;
  return (*first)->number < block.first_job ||
         std::any_of(
             first, jobs_.end(), [this](const JobPtr& job) REQUIRES_LOCK(mutex_) { return goes_on_by_itself(*job); });
}

bool Scheduler::goes_on_by_itself(const Job& job) {
  return !job.is_done && std::ranges::all_of(job.units, [](const Job::Unit& unit) {
    return unit.block == nullptr || unit.block->is_ready || unit.block->has_memory;
  });
}

// Blocks that only a later batch needs are read again then. A mixture with many datasets, or one whose dataset is
// paused, may have more blocks begun than memory holds. False where there is none.
bool Scheduler::evict_idle_blocks() {
  return std::erase_if(live_, [](const auto& entry) { return entry.second.use_count() == 1; }) > 0;
}

void Scheduler::append_reads(const BlockPtr& block, Reads& reads) {
  PlannedBlock& plan = *block->plan;
  block->runs_left = std::ssize(plan.runs);
  if (block->runs_left > 0 && reads_to_plan(*block)) ++row_blocks_decoding_;
  const SampleDecoder& decoder = *shared_.dataset.decoders[static_cast<size_t>(block->source)];
  for (int64_t number = 0; number < block->runs_left; ++number) {
    reads.push_back({std::move(plan.runs[static_cast<size_t>(number)]), block->priority,
                     [this, block = block, number, &decoder](order::SampleRun& run, Status read) mutable {
                       Block& rows = *block->plan->block;
                       if (read) {
                         rows.decode(number, run, decoder, shared_.metrics);
                       } else {
                         rows.set_failed(number, std::move(read).error());
                       }
                       run_decoded(std::move(block));
                     }});
  }
  plan.runs.clear();
}

// Takes the reference to the block, so that none is left in a task when a job gives up its own.
void Scheduler::run_decoded(BlockPtr block) {
  std::vector<JobPtr> collatable;
  {
    MutexLock lock(mutex_);
    if (--block->runs_left == 0 && !is_stopped_) {
      if (reads_to_plan(*block)) --row_blocks_decoding_;
      rows_read(*block, 0);
      ask_for_plans();
      block_ready(*block);
      collatable = take_collatable();
    }
    block.reset();
  }
  submit({.collatable = std::move(collatable)});
}

void Scheduler::block_ready(LiveBlock& block) {
  block.is_ready = true;
  for (const JobPtr& job : block.waiting) {
    if (--job->blocks_left == 0) collatable_.push_back(job);
  }
  block.waiting.clear();
}

}  // namespace millrace::loader
