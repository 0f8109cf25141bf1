// SPDX-License-Identifier: Apache-2.0
#pragma once

// Submits, cancels and requeues jobs with Slurm's commands. Functions are thread-safe.

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
  std::string cluster;  // "" unless a cluster was given to sbatch
};

// Parses "15" or "15;cluster", the output of `sbatch --parsable`. Error: corruption.
[[nodiscard]] Result<SubmittedJob> parse_submitted(std::string_view text);

// Returns the command `sbatch --parsable OPTIONS... SCRIPT ARGUMENTS...`, to run without a shell.
std::vector<std::string> submit_command(std::span<const std::string> options, const std::string& script,
                                        std::span<const std::string> arguments);

// Runs a command of submit_command(). The job gets this process's environment plus `variables`, each "NAME=VALUE", as
// far as sbatch's --export allows. Errors: invalid_argument (Slurm refuses the job; the message has its text),
// unavailable (the controller), timeout (the job may be queued all the same), not_found (sbatch is not installed).
[[nodiscard]] Result<SubmittedJob> submit(const std::vector<std::string>& command, const AskOptions& options,
                                          const std::vector<std::string>& variables = {});

// The controller's answer to a test submission.
struct TestedJob {
  bool accepted = false;
  std::string words;             // sbatch's text in one line: the estimate, or why it refuses
  std::optional<int64_t> start;  // UTC seconds since 1970; nullopt: the controller cannot tell
};
// Parses the answer of `sbatch --test-only`.
TestedJob parse_tested(bool accepted, std::string words);
// Runs a command of submit_command() with --test-only. Errors: unavailable, timeout, not_found (sbatch).
[[nodiscard]] Result<TestedJob> test_submission(std::vector<std::string> command, const AskOptions& options);

// Call scancel or scontrol once for all ids. Cancelling a job that has already ended succeeds silently. Errors:
// permission_denied, not_found (no such job), unavailable.
[[nodiscard]] Status cancel(std::span<const std::string> ids, const AskOptions& options);
[[nodiscard]] Status requeue(std::span<const std::string> ids, const AskOptions& options);

}  // namespace millrace::slurm
