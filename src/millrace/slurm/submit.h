// SPDX-License-Identifier: Apache-2.0
#pragma once

// Submits, cancels and requeues jobs by Slurm's commands. Functions are thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

struct SubmittedJob {
  std::string id;       // "15"
  std::string cluster;  // "" unless sbatch was told of one
};

// "15" and "15;cluster", the output of `sbatch --parsable`. Error: corruption.
[[nodiscard]] Result<SubmittedJob> parse_submitted(std::string_view text);

// `sbatch --parsable OPTIONS... SCRIPT ARGUMENTS...`, without a shell.
std::vector<std::string> submit_command(std::span<const std::string> options, const std::string& script,
                                        std::span<const std::string> arguments);

// Runs a command of submit_command(). The job gets this process's environment with `variables`, "NAME=VALUE" each, as
// sbatch's --export allows. Errors: invalid_argument (Slurm refuses the job; the message holds its words),
// unavailable (the controller), timeout (the job may be queued all the same), not_found (sbatch is not installed).
[[nodiscard]] Result<SubmittedJob> submit(const std::vector<std::string>& command, const AskOptions& options,
                                          const std::vector<std::string>& variables = {});

// The controller's answer to a test submission.
struct TestedJob {
  bool accepted = false;
  std::string words;             // of sbatch, in one line: the estimate, or why it refuses
  std::optional<int64_t> start;  // UTC seconds since 1970, as far as the controller can tell
};
// The answer of `sbatch --test-only`.
TestedJob parse_tested(bool accepted, std::string words);
// Runs a command of submit_command() with --test-only. Errors: unavailable, timeout, not_found (sbatch).
[[nodiscard]] Result<TestedJob> test_submission(std::vector<std::string> command, const AskOptions& options);

// One call of scancel or of scontrol for all ids. Slurm cancels a job that ended without a word. Errors:
// permission_denied, not_found (no such job), unavailable.
[[nodiscard]] Status cancel(std::span<const std::string> ids, const AskOptions& options);
[[nodiscard]] Status requeue(std::span<const std::string> ids, const AskOptions& options);

}  // namespace millrace::slurm
