// SPDX-License-Identifier: Apache-2.0
#pragma once

// Comments in a script that silence a rule (lint/findings.h): one above a command is for all lines of that command.

#include <span>
#include <vector>

#include "millrace/jobs/facts.h"
#include "millrace/lint/findings.h"

namespace millrace::jobs {

// All rules that a script may name in a comment: those of job lint, env lint and job check.
std::span<const Rule> rules_of_scripts();

void apply_job_suppressions(const Job& job, std::span<const Rule> known, std::vector<Finding>& findings);

}  // namespace millrace::jobs
