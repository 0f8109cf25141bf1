// SPDX-License-Identifier: Apache-2.0
#pragma once

// Advises where to run a job: the partition that starts it now, the one that finishes first, the one that costs least.
// For each partition and number of GPUs it finds the batch that fits, the accumulation that reaches the effective
// batch, the time as a range, the wait and the cost. Pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/effective_batch.h"
#include "millrace/plan/eta.h"
#include "millrace/plan/memory.h"
#include "millrace/plan/partitions.h"

namespace millrace::plan {

struct AdviceJob {
  MemoryModel memory;
  int64_t effective_low = 0, effective_high = 0;  // samples per step
  std::optional<int64_t> effective_target;
  int64_t max_gpus = 0;       // 0: a whole partition
  std::vector<int64_t> gpus;  // counts to choose from; empty: powers of two in a node, then whole nodes
  // The steps of effective_target (or effective_high) samples. advise() chooses GPU, GPUs, micro batch and
  // accumulation.
  EtaOptions eta;
  std::string script = "job.sh";
};

struct Advice {
  std::string partition;
  Gpu gpu;
  Placement where;
  EffectiveBatch batch;
  std::string state;            // state of the partition
  bool starts_now = false;      // the GPUs are free, and no job waits for them
  std::optional<Range> wait_s;  // nullopt: unknown
  EtaPlan eta;
  std::string sbatch;              // the command
  std::vector<std::string> notes;  // cautions for this choice
};

struct AdvicePlan {
  std::vector<Advice> all;                             // one for each partition and number of GPUs
  std::optional<size_t> start_now, fastest, cheapest;  // indices in `all`
  bool priced = false;                                 // `cheapest` compares money; otherwise GPU-hours
  Why why;                                             // notes say which partitions were skipped, and why
};
// Makes the advice. Errors: invalid_argument (those of plan_eta for the job; no partition to run on).
[[nodiscard]] Result<AdvicePlan> advise(const AdviceJob& job, const std::vector<Partition>& partitions);

}  // namespace millrace::plan
