// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans space, time and interval of checkpoints. Bytes are decimal (GB = 1e9), as quotas and bandwidths are sold.
// Pure.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

// The data that a checkpoint saves per parameter.
struct CheckpointKind {
  std::string_view name;
  std::string_view what;
  double bytes_a_parameter;
};
std::span<const CheckpointKind> checkpoint_kinds();

struct CheckpointOptions {
  double bytes = 0;  // one checkpoint of one model; 0: from parameters and kind
  double parameters = 0;
  std::string_view kind = "resumable";
  int64_t models = 1;                // models that share the quota and the bandwidth
  double quota_bytes = 0;            // 0: not asked
  double used_bytes = 0;             // part of the quota that others use
  int64_t keep_last = 0;             // 0: not asked
  double bandwidth_bytes_per_s = 0;  // rate of the file system; 0: not asked
  double stall_s = 0;                // the time that a checkpoint costs training; 0: the write time
  double mtbf_s = 0;                 // mean time between failures of the whole job; 0: from gpus
  int64_t gpus = 0;
};

struct CheckpointPlan {
  double bytes = 0;                            // one checkpoint of one model
  std::optional<int64_t> fit;                  // checkpoints of every model that the rest of the quota holds
  std::optional<int64_t> keep_last_safe;       // largest k with room for k + 1 while a new one is written
  std::optional<double> keep_bytes;            // space for keep_last, of all models
  std::optional<double> write_s, write_all_s;  // one model alone; all models at once
  std::optional<double> mtbf_s;
  std::optional<double> young_s, daly_s;  // time between checkpoints
  std::optional<double> overhead;         // share of time lost to checkpoints and repeated work, at Daly's interval
  Why why;
};
// Plans checkpoints. Errors: invalid_argument (neither a size nor parameters, unknown kind, a negative number).
[[nodiscard]] Result<CheckpointPlan> plan_checkpoints(const CheckpointOptions& options);

// Return the time between checkpoints. Young 1974: sqrt(2 cost mtbf). Daly 2006: its higher order, mtbf if cost >= 2
// mtbf. REQUIRES: both > 0.
double young_interval_s(double cost_s, double mtbf_s);
double daly_interval_s(double cost_s, double mtbf_s);

}  // namespace millrace::plan
