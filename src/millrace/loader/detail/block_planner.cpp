// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/block_planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace millrace::loader {

namespace {

// The first runs of `runs` that hold `samples` samples together.
std::vector<std::unique_ptr<order::SampleRun>> take_runs(std::vector<std::unique_ptr<order::SampleRun>>& runs,
                                                         size_t& at, int64_t samples) {
  std::vector<std::unique_ptr<order::SampleRun>> taken;
  while (samples > 0 && at < runs.size()) {
    samples -= runs[at]->samples();
    taken.push_back(std::move(runs[at++]));
  }
  return taken;
}

// A source's answer decides where memory is written, so it is checked against the order.
Status check_plan(const order::SamplePlan& plan, std::span<const uint32_t> items,
                  std::span<const order::EpochOrder::Block> blocks, std::string_view source) {
  int64_t samples = 0, in_runs = 0;
  for (const auto& block : blocks) samples += block.samples;
  for (const auto& run : plan.runs) in_runs += run->samples();
  if (std::ssize(items) == samples && in_runs == samples) return {};
  return fail(ErrorCode::kInternal, "{}: {} lengths and {} samples in runs, {} were asked for", source, items.size(),
              in_runs, samples);
}

}  // namespace

// Planning waits for storage. One worker is left to decode and collate, where there is more than one.
BlockPlanner::BlockPlanner(const Dataset& dataset, Executor& workers, std::stop_token stop)
    : dataset_(dataset),
      workers_(workers),
      stop_(std::move(stop)),
      most_tasks_(std::max(1, workers.threads() - 1)),
      queues_(dataset.sources.size()) {}

void BlockPlanner::add(WantedBlock wanted) {
  const int64_t source = wanted.source;
  const int priority = wanted.priority;
  {
    MutexLock lock(mutex_);
    SourceQueue& queue = queues_[static_cast<size_t>(source)];
    queue.waiting.push_back(std::move(wanted));
    if (queue.has_task || tasks_ == most_tasks_) return;
    queue.has_task = true;
    ++tasks_;
  }
  submit_task(source, priority);
}

void BlockPlanner::submit_task(int64_t source, int priority) {
  workers_.submit([this, source] { plan_waiting(source); }, priority);
}

void BlockPlanner::plan_waiting(int64_t source) {
  std::vector<WantedBlock> wanted;
  {
    MutexLock lock(mutex_);
    wanted.swap(queues_[static_cast<size_t>(source)].waiting);
  }
  if (auto planned = plan(wanted)) {
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i].done(std::move((*planned)[i]));
  } else {
    // One block failed. Plans each alone, so that only the batches that need that block fail.
    for (const WantedBlock& one : wanted) {
      auto alone = plan({&one, 1});
      if (alone) {
        one.done(std::move(alone->front()));
      } else {
        one.done(tl::unexpected(std::move(alone).error()));
      }
    }
  }
  std::optional<std::pair<int64_t, int>> next;
  {
    MutexLock lock(mutex_);
    queues_[static_cast<size_t>(source)].has_task = false;
    --tasks_;
    next = begin_next_task();
  }
  if (next) submit_task(next->first, next->second);
}

// Takes the waiting source whose block is used first, and returns it with its priority.
std::optional<std::pair<int64_t, int>> BlockPlanner::begin_next_task() {
  std::optional<std::pair<int64_t, int>> first;
  for (size_t source = 0; source < queues_.size(); ++source) {
    const SourceQueue& queue = queues_[source];
    if (queue.has_task) continue;
    for (const WantedBlock& wanted : queue.waiting) {
      if (!first || wanted.priority > first->second) first = {static_cast<int64_t>(source), wanted.priority};
    }
  }
  if (!first) return first;
  queues_[static_cast<size_t>(first->first)].has_task = true;
  ++tasks_;
  return first;
}

Result<std::vector<PlannedBlock>> BlockPlanner::plan(std::span<const WantedBlock> wanted) {
  const auto of_source = static_cast<size_t>(wanted.front().source);
  order::SampleSource& source = *dataset_.sources[of_source];
  const SampleDecoder& decoder = *dataset_.decoders[of_source];
  std::vector<order::EpochOrder::Block> blocks;
  std::vector<order::Window> windows;
  for (const WantedBlock& one : wanted) {
    blocks.push_back(one.order->block(one.lane, one.number));
    windows.insert(windows.end(), blocks.back().windows.begin(), blocks.back().windows.end());
  }
  ASSIGN_OR_RETURN(order::SamplePlan plan, source.plan(windows, stop_));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> all_items, decoder.count_items(plan));
  RETURN_IF_ERROR(check_plan(plan, all_items, blocks, source.name()));
  std::vector<PlannedBlock> planned;
  std::span<const uint32_t> items = all_items;
  size_t next_run = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto samples = static_cast<size_t>(blocks[i].samples);
    const std::span<const uint32_t> ours = items.first(samples);
    const int64_t sum = std::accumulate(ours.begin(), ours.end(), int64_t{0});
    if (blocks[i].tokens != 0 && blocks[i].tokens != sum) {
      return fail(ErrorCode::kCorruption, "{}: {} tokens where the order was made of {}: the dataset was replaced",
                  source.name(), sum, blocks[i].tokens);
    }
    PlannedBlock& block = planned.emplace_back();
    block.runs = take_runs(plan.runs, next_run, blocks[i].samples);
    std::vector<int64_t> run_samples;
    for (const auto& run : block.runs) run_samples.push_back(run->samples());
    order::BlockLayout layout = wanted[i].order->layout(wanted[i].lane, wanted[i].number, ours);
    if (!layout.row_ends.empty() && std::ssize(layout.row_ends) != blocks[i].units) {
      return fail(ErrorCode::kCorruption, "{}: {} rows where the order was made of {}: the dataset was replaced",
                  source.name(), layout.row_ends.size(), blocks[i].units);
    }
    block.block = std::make_unique<Block>(decoder.item(), ours, std::move(layout), run_samples);
    items = items.subspan(samples);
  }
  return planned;
}

}  // namespace millrace::loader
