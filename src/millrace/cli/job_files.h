// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a job left, and leaves, on file systems that this node sees: its logs, and the samples of its nodes. For one
// thread.

#include <optional>
#include <set>
#include <string>

#include "millrace/cli/command.h"
#include "millrace/slurm/details.h"

namespace millrace::cli {

struct JobFiles {
  std::string id;
  std::optional<slurm::JobDetails> details;  // of its first element; nothing where Slurm does not know it
  std::string unknown;                       // why
  std::set<std::string> logs, samples;
};

// `typed`: the number of a job or the name of a submitted run. Errors: not_found (neither the ledger nor Slurm knows
// it), those of asking Slurm about a job that the ledger does not know.
[[nodiscard]] Result<JobFiles> find_job_files(const std::string& typed, Context& context);

// `millrace monitor --job`: the newest samples of each node, worst first, every `seconds`, `times` times (0: until
// stopped).
[[nodiscard]] Status watch_job(const std::string& typed, double seconds, int64_t times, Context& context);

}  // namespace millrace::cli
