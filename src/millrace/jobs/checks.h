// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between the check functions of the SB rules. One function checks one rule, or a few related rules.

#include <span>
#include <string>

#include "millrace/jobs/facts.h"
#include "millrace/jobs/lint.h"
#include "millrace/lint/report.h"

namespace millrace::jobs {

using JobCheck = void (*)(const Job&, const JobContext&, FindingReport&);

std::span<const JobCheck> option_checks();   // check the #SBATCH lines
std::span<const JobCheck> value_checks();    // check the request of these lines, as sbatch reads it
std::span<const JobCheck> step_checks();     // check the options of the steps
std::span<const JobCheck> body_checks();     // check the shell code around the steps
std::span<const JobCheck> pair_checks();     // check combinations of options, and their values
std::span<const JobCheck> meeting_checks();  // check how the nodes find each other
std::span<const JobCheck> end_checks();      // check parallel steps, and the job's exit status
std::span<const JobCheck> text_checks();     // check the first line, variables, quotes and letters

// Whether a command of `block` is srun.
bool starts_steps(const shell::Block& block);
// Returns the place of findings about the whole job: its first #SBATCH line.
Place job_place(const Job& job);
// Returns the partition that the job requests, or the only one if the job requests none. Null when the cluster is
// unknown or lacks the partition.
const ClusterFacts::Partition* partition_of(const Job& job, const JobContext& context);
// Finds `--name value` or `--name=value` among a command's words. Returns its word and sets `value`; null if there is
// none.
const shell::Word* argument_after(std::span<const shell::Word> words, std::span<const std::string_view> names,
                                  std::string& value, const Job& job);

}  // namespace millrace::jobs
