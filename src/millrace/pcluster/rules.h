// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rules for ParallelCluster files. PC01 to PC62 are about the cluster that a file describes, PC63 to PC66 about its
// values and letters, PC67 to PC74 about what 3.13 to 3.16 added.

#include <span>

#include "millrace/lint/findings.h"

namespace millrace::pcluster {

// By id.
std::span<const Rule> config_rules();

}  // namespace millrace::pcluster
