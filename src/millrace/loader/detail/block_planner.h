// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lays blocks out before they are read: which samples they hold, in which trained order, and by which runs these are
// read. This may wait for storage, so it has one thread that does it for all blocks asked for meanwhile at once.
// Thread-safe.

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
  std::vector<std::unique_ptr<order::SampleRun>> runs;  // by the block's numbers
};

// What a block reserves for each sample, in numbers of 32 bits: the ids themselves, or, of samples of any kind, their
// records. Errors: unsupported (a sample that is too large).
[[nodiscard]] Result<std::vector<uint32_t>> block_lengths(std::vector<uint32_t> tokens, std::span<const int64_t> bytes);

class BlockPlanner {
 public:
  using Done = std::function<void(Result<PlannedBlock>)>;

  // `source` must outlive it.
  BlockPlanner(order::SampleSource& source, std::stop_token stop) : source_(source), stop_(std::move(stop)) {}

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
  const std::stop_token stop_;
  Mutex mutex_;
  std::vector<WantedBlock> waiting_ GUARDED_BY(mutex_);
  Executor thread_{1, "mr-plan"};  // last: its task uses everything above
};

}  // namespace millrace::loader
