// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the files that a job left, or still writes, on file systems visible to this node: its logs, and the samples of
// its nodes. For one thread.

#include <optional>
#include <set>
#include <string>

#include "millrace/cli/command.h"
#include "millrace/slurm/details.h"

namespace millrace::cli {

struct JobFiles {
  std::string id;
  std::optional<slurm::JobDetails> details;  // details of the first element; nothing: Slurm does not know it
  std::string unknown;                       // reason why `details` is empty
  std::set<std::string> logs, samples;
};

// Finds the files of a job. `typed`: the number of a job or the name of a submitted run. Errors: not_found (neither
// the ledger nor Slurm knows it), those of asking Slurm about a job that the ledger does not know.
[[nodiscard]] Result<JobFiles> find_job_files(const std::string& typed, Context& context);

// Runs `millrace monitor --job`: prints the newest samples of each node, worst first, every `seconds`, `times` times
// (0: until stopped).
[[nodiscard]] Status watch_job(const std::string& typed, double seconds, int64_t times, Context& context);

}  // namespace millrace::cli
