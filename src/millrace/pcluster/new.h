// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes a ParallelCluster file from a dozen lines (docs/cluster.md lists the keys). Reserved nodes stay up, EFA and
// NVMe are used, permissions match the buckets, and storage outlives the cluster. Thread-safe.

#include <string>
#include <string_view>

#include "millrace/pcluster/version.h"

namespace millrace::pcluster {

// The oldest ParallelCluster that accepts the written file.
inline constexpr Version kOldestForNew{3, 8, 0};

// Writes a file that has neither errors nor warnings of lint_config for `version`. Errors: invalid_argument with place
// and reason if the spec cannot be read, or does not describe a possible cluster.
[[nodiscard]] Result<std::string> new_config(std::string_view spec, std::string_view spec_file, const Version& version);

}  // namespace millrace::pcluster
