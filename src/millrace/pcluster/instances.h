// SPDX-License-Identifier: Apache-2.0
#pragma once

// The linter reads EC2 instance types from the planner's table.

#include "millrace/plan/instances.h"

namespace millrace::pcluster {

using plan::find_instance;
using plan::Instance;
using plan::instances;
using plan::Maker;
using plan::maker_name;

}  // namespace millrace::pcluster
