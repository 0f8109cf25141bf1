// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans blocks before they are read: which samples a block holds, the order in which they are trained, and the runs
// that read them. Planning may wait for storage, so tasks of the loader's workers do it, the block that is used first
// before the others. A task plans all blocks of a source together that were asked for before it began. Thread-safe.

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
  std::vector<std::unique_ptr<order::SampleRun>> runs;  // in the block's numbering
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

  // The arguments must outlive it, and it the tasks of `workers`.
  BlockPlanner(const Dataset& dataset, Executor& workers, std::stop_token stop);

  // `done` is called by a worker, unless `workers` is destroyed before. Errors: those of SampleSource::plan; corruption
  // (other tokens than the order was made of).
  void add(WantedBlock wanted);

 private:
  // Only one task plans for a source, so that blocks which are asked for meanwhile are planned together.
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
