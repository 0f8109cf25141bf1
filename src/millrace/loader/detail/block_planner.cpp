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

// What a source answers decides where memory is written, so it is held against the order.
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

void BlockPlanner::add(std::shared_ptr<const order::EpochOrder> order, int64_t lane, int64_t number, Done done) {
  {
    MutexLock lock(mutex_);
    waiting_.push_back({std::move(order), lane, number, std::move(done)});
    if (waiting_.size() > 1) return;  // the thread has been told
  }
  thread_.submit([this] { plan_waiting(); });
}

void BlockPlanner::plan_waiting() {
  std::vector<WantedBlock> wanted;
  {
    MutexLock lock(mutex_);
    wanted.swap(waiting_);
  }
  if (auto planned = plan(wanted)) {
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i].done(std::move((*planned)[i]));
    return;
  }
  // One of them failed: each alone, so that only the batches that need it fail.
  for (const WantedBlock& one : wanted) {
    auto planned = plan({&one, 1});
    if (planned) {
      one.done(std::move(planned->front()));
    } else {
      one.done(tl::unexpected(std::move(planned).error()));
    }
  }
}

Result<std::vector<PlannedBlock>> BlockPlanner::plan(std::span<const WantedBlock> wanted) {
  std::vector<order::EpochOrder::Block> blocks;
  std::vector<order::Window> windows;
  for (const WantedBlock& one : wanted) {
    blocks.push_back(one.order->block(one.lane, one.number));
    windows.insert(windows.end(), blocks.back().windows.begin(), blocks.back().windows.end());
  }
  ASSIGN_OR_RETURN(order::SamplePlan plan, source_.plan(windows, stop_));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> all_items, decoder_.count_items(plan));
  RETURN_IF_ERROR(check_plan(plan, all_items, blocks, source_.name()));
  std::vector<PlannedBlock> planned;
  std::span<const uint32_t> items = all_items;
  size_t next_run = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto samples = static_cast<size_t>(blocks[i].samples);
    const std::span<const uint32_t> ours = items.first(samples);
    const int64_t sum = std::accumulate(ours.begin(), ours.end(), int64_t{0});
    if (blocks[i].tokens != 0 && blocks[i].tokens != sum) {
      return fail(ErrorCode::kCorruption, "{}: {} tokens where the order was made of {}: the dataset was replaced",
                  source_.name(), sum, blocks[i].tokens);
    }
    PlannedBlock& block = planned.emplace_back();
    block.runs = take_runs(plan.runs, next_run, blocks[i].samples);
    std::vector<int64_t> run_samples;
    for (const auto& run : block.runs) run_samples.push_back(run->samples());
    order::BlockLayout layout = wanted[i].order->layout(wanted[i].lane, wanted[i].number, ours);
    if (!layout.row_ends.empty() && std::ssize(layout.row_ends) != blocks[i].units) {
      return fail(ErrorCode::kCorruption, "{}: {} rows where the order was made of {}: the dataset was replaced",
                  source_.name(), layout.row_ends.size(), blocks[i].units);
    }
    block.block = std::make_unique<Block>(decoder_.item(), ours, std::move(layout), run_samples);
    items = items.subspan(samples);
  }
  return planned;
}

}  // namespace millrace::loader
