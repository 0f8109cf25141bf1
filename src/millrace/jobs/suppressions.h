// SPDX-License-Identifier: Apache-2.0
#pragma once

// Applies comments in a script that suppress a rule (lint/findings.h). A comment above a command applies to all lines
// of that command.

#include <span>
#include <vector>

#include "millrace/jobs/facts.h"
#include "millrace/lint/findings.h"

namespace millrace::jobs {

// All rules that a comment in a script may name: those of job lint, env lint and job check.
std::span<const Rule> rules_of_scripts();

void apply_job_suppressions(const Job& job, std::span<const Rule> known, std::vector<Finding>& findings);

}  // namespace millrace::jobs
