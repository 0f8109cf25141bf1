// SPDX-License-Identifier: Apache-2.0
#pragma once

// --task I/N of verbs that several tasks run at once: "3/10", counted from 0, or "slurm" for Slurm's own numbers.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "millrace/cli/command.h"

namespace millrace::cli {

// The first of these environment variables that is not empty; else "".
std::string first_variable(std::initializer_list<const char*> names);
// How many tasks there are. Throws CLI::ValidationError.
int64_t count_of_tasks(const std::string& text);
// The user's limits of requests and bytes then hold for all tasks together, unless MILLRACE_S3_SHARE says how many
// share them. Throws CLI::ValidationError.
void share_budgets(const std::string& task, UrlOptions& options);

}  // namespace millrace::cli
