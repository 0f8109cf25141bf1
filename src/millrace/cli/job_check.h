// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares flags between `job check` and `job submit`, which checks first. For one thread.

#include "millrace/cli/command.h"
#include "millrace/jobs/preflight.h"

namespace millrace::cli {

// Adds --data, --checkpoints, --checkpoint-size, --keep-last, --deep and --probe.
void add_check_flags(CLI::App& app, jobs::CheckRequest& request);

}  // namespace millrace::cli
