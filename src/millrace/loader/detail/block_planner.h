// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans blocks before they are read: which samples a block holds, the order in which they are trained, and the runs
// that read them. Planning may wait for storage, so a thread does it. It plans all blocks together that were asked for
// while it was busy. Thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/detail/block.h"
#include "millrace/order/order.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct PlannedBlock {
  std::unique_ptr<Block> block;
  std::vector<std::unique_ptr<order::SampleRun>> runs;  // as the block numbers them
};

class BlockPlanner {
 public:
  using Done = std::function<void(Result<PlannedBlock>)>;

  // `source` and `decoder` must outlive it.
  BlockPlanner(order::SampleSource& source, const SampleDecoder& decoder, std::stop_token stop)
      : source_(source), decoder_(decoder), stop_(std::move(stop)) {}

  // `done` is called on the planner's thread, unless the planner is destroyed before. Errors: those of
  // SampleSource::plan; corruption (other tokens than the order was made of).
  void add(std::shared_ptr<const order::EpochOrder> order, int64_t lane, int64_t number, Done done);

 private:
  struct WantedBlock {
    std::shared_ptr<const order::EpochOrder> order;
    int64_t lane;
    int64_t number;
    Done done;
  };
  void plan_waiting();
  [[nodiscard]] Result<std::vector<PlannedBlock>> plan(std::span<const WantedBlock> wanted);

  order::SampleSource& source_;
  const SampleDecoder& decoder_;
  const std::stop_token stop_;
  Mutex mutex_;
  std::vector<WantedBlock> waiting_ GUARDED_BY(mutex_);
  Executor thread_{1, "mr-plan"};  // last: its task uses everything above
};

}  // namespace millrace::loader
