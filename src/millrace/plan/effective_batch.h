// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds all ways to reach an effective batch: micro batch x data-parallel ranks x accumulation steps. Pure functions.

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct EffectiveBatchOptions {
  int64_t low = 0, high = 0;              // samples per optimizer step, both inclusive
  std::optional<int64_t> target;          // preferred within [low, high]
  std::vector<int64_t> gpus;              // counts to choose from
  int64_t micro_low = 1, micro_high = 1;  // samples per GPU and pass
  int64_t max_accumulation = 64;
  int64_t tensor_parallel = 1, pipeline_parallel = 1, context_parallel = 1;
};

struct EffectiveBatch {
  int64_t micro = 0;
  int64_t gpus = 0;
  int64_t data_parallel = 0;  // gpus / (tensor x pipeline x context)
  int64_t accumulation = 0;
  int64_t effective = 0;
  double learning_rate_factor = 1;  // effective / target: linear; its root for Adam-like optimizers

  bool operator==(const EffectiveBatch&) const = default;
};

struct EffectiveBatchPlan {
  // Best first: nearest to the target, then the largest micro batch, then the fewest steps of accumulation, then the
  // fewest GPUs. Empty if no batch is in [low, high].
  std::vector<EffectiveBatch> exact;
  std::optional<EffectiveBatch> below, above;  // the nearest ones, if `exact` is empty
  Why why;
};
// Finds the ways. Errors: invalid_argument (an empty range, GPUs that the parallel sizes do not divide, more than a
// million ways).
[[nodiscard]] Result<EffectiveBatchPlan> plan_effective_batch(const EffectiveBatchOptions& options);

}  // namespace millrace::plan
