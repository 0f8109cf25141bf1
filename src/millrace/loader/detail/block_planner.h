// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans blocks before they are read: the samples of a block, the order in which they are trained, and the runs that
// read them. Planning may wait for storage, so tasks of the loader's workers do it, in the order in which the blocks
// are used. A task plans together all blocks of its source that were asked for before it began. Thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/detail/block.h"
#include "millrace/loader/detail/dataset.h"
#include "millrace/order/order.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct PlannedBlock {
  std::unique_ptr<Block> block;
  std::vector<std::unique_ptr<order::SampleRun>> runs;  // numbered as in the block
};

class BlockPlanner {
 public:
  using Done = std::function<void(Result<PlannedBlock>)>;
  struct WantedBlock {
    int64_t source = 0;
    std::shared_ptr<const order::EpochOrder> order;
    int64_t lane = 0;
    int64_t number = 0;
    int priority = 0;  // priority of the task, among those of `workers`
    Done done;
  };

  // The arguments must outlive this object, and this object must outlive the tasks of `workers`.
  BlockPlanner(const Dataset& dataset, Executor& workers, std::stop_token stop);

  // Plans a block on a worker, which then calls `done`, unless `workers` is destroyed before. Errors: those of
  // SampleSource::plan; corruption (token counts that differ from those that the order was made from).
  void add(WantedBlock wanted);

 private:
  // Only one task at a time plans for a source, so that blocks asked for meanwhile are planned together.
  struct SourceQueue {
    std::vector<WantedBlock> waiting;
    bool has_task = false;
  };
  void submit_task(int64_t source, int priority);
  void plan_waiting(int64_t source);
  [[nodiscard]] std::optional<std::pair<int64_t, int>> begin_next_task() REQUIRES_LOCK(mutex_);
  [[nodiscard]] Result<std::vector<PlannedBlock>> plan(std::span<const WantedBlock> wanted);

  const Dataset& dataset_;
  Executor& workers_;
  const std::stop_token stop_;
  const int most_tasks_;
  Mutex mutex_;
  std::vector<SourceQueue> queues_ GUARDED_BY(mutex_);  // one queue per source
  int tasks_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::loader
