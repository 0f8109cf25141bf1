// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rules for ParallelCluster files. PC01 to PC62 check the cluster that a file describes, PC63 to PC66 its values
// and characters, PC67 to PC74 the additions of versions 3.13 to 3.16.

#include <span>

#include "millrace/lint/findings.h"

namespace millrace::pcluster {

// Returns the rules, ordered by id.
std::span<const Rule> config_rules();

}  // namespace millrace::pcluster
