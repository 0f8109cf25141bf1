// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the check functions of the SB rules. One function per rule, or for a few rules about the same thing.

#include <span>
#include <string>

#include "millrace/jobs/facts.h"
#include "millrace/jobs/lint.h"
#include "millrace/lint/report.h"

namespace millrace::jobs {

using JobCheck = void (*)(const Job&, const JobContext&, FindingReport&);

std::span<const JobCheck> option_checks();   // of #SBATCH lines
std::span<const JobCheck> value_checks();    // of what these lines ask for, as sbatch reads it
std::span<const JobCheck> step_checks();     // of the steps' options
std::span<const JobCheck> body_checks();     // of the shell code around them
std::span<const JobCheck> pair_checks();     // of options beside each other, and of what their values hold
std::span<const JobCheck> meeting_checks();  // of how the nodes find each other
std::span<const JobCheck> end_checks();      // of steps beside each other, and of the status in which the job ends
std::span<const JobCheck> text_checks();     // of the first line, variables, quotes and letters

// Whether a command of `block` is srun.
bool starts_steps(const shell::Block& block);
// The place of findings about the whole job: its first #SBATCH line.
Place job_place(const Job& job);
// The partition that the job requests, or the only one where it requests none; null when the cluster is unknown or
// lacks it.
const ClusterFacts::Partition* partition_of(const Job& job, const JobContext& context);
// The value of `--name value` or `--name=value` among a command's words, with its place.
const shell::Word* argument_after(std::span<const shell::Word> words, std::span<const std::string_view> names,
                                  std::string& value, const Job& job);

}  // namespace millrace::jobs
