// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rules for ParallelCluster files. PC01 to PC62 speak of what such a file says, PC63 to PC66 of its values and
// letters.

#include <span>

#include "millrace/lint/findings.h"

namespace millrace::pcluster {

// By id.
std::span<const Rule> config_rules();

}  // namespace millrace::pcluster
