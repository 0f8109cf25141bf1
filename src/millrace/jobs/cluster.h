// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the files that job scripts are checked against: a cluster file and a plan. Pure functions of the files' text;
// thread-safe.

#include <string>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/jobs/lint.h"

namespace millrace::jobs {

// Reads a ParallelCluster file: its queues as partitions, its mounts. Findings refer to the file as `name`. Errors:
// invalid_argument (no YAML, or no queues).
[[nodiscard]] Result<ClusterFacts> read_cluster_facts(std::string_view name, std::string_view text);

// Reads the lines that `millrace plan nodes --json` prints. Errors: invalid_argument (there is no plan_model among
// them).
[[nodiscard]] Result<PlanFacts> read_plan_facts(std::string_view name, std::string_view text);

}  // namespace millrace::jobs
