// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the linter knows of EC2 instance types is the planner's table.

#include "millrace/plan/instances.h"

namespace millrace::pcluster {

using plan::find_instance;
using plan::Instance;
using plan::instances;
using plan::Maker;
using plan::maker_name;

}  // namespace millrace::pcluster
