// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs Slurm's commands. Functions are thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/command.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// Runs words[0] without the environment variables of the caller that change the output of Slurm's commands. Returns
// the output even if the command failed. Errors: not_found (it is not installed), timeout (no answer within the
// limit), cancelled, resource_exhausted (an answer of more than 256 MiB).
[[nodiscard]] Result<CommandOutput> run_slurm(const std::vector<std::string>& words, const AskOptions& options);

// Returns the output of a successful command. Errors: as for run_slurm(); unavailable (it failed; the message has its
// text).
[[nodiscard]] Result<std::string> slurm_answer(const std::vector<std::string>& words, const AskOptions& options);

// Runs `sacct -n -P` with these words. Errors: as for slurm_answer(); unsupported (the cluster keeps no accounting).
[[nodiscard]] Result<std::string> accounting_answer(std::vector<std::string> words, const AskOptions& options);

// Returns the value of a line like "SelectType              = select/cons_tres" in the output of `scontrol show
// config`; "" if there is none.
std::string config_value(std::string_view config, std::string_view name);

// Returns the error text of a failed command in one line: without its own name and "error:", lines joined by "; ".
std::string reason_of(const CommandOutput& output);

}  // namespace millrace::slurm
