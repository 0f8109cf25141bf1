// SPDX-License-Identifier: Apache-2.0
#pragma once

// The flag --task I/N of verbs that several tasks run together: "3/10", counted from 0, or "slurm" for Slurm's
// numbers.

#include <cstdint>
#include <initializer_list>
#include <string>

#include "millrace/cli/command.h"

namespace millrace::cli {

// Returns the first of these environment variables that is not empty; else "".
std::string first_variable(std::initializer_list<const char*> names);
// Returns the number of tasks. Throws CLI::ValidationError.
int64_t count_of_tasks(const std::string& text);
// Makes the user's limits on requests and bytes apply to all tasks together, unless MILLRACE_S3_SHARE says how many
// processes share them. Throws CLI::ValidationError.
void share_budgets(const std::string& task, UrlOptions& options);

}  // namespace millrace::cli
