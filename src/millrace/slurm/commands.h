// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs Slurm's commands. Functions are thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/command.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// Runs words[0] without the caller's settings that change the output of Slurm's commands. The returned output may be
// that of a failed command. Errors: not_found (it is not installed), timeout (no answer within the limit), cancelled,
// resource_exhausted (an answer of more than 256 MiB).
[[nodiscard]] Result<CommandOutput> run_slurm(const std::vector<std::string>& words, const AskOptions& options);

// The output of a command that succeeded. Errors: as above; unavailable (it failed; the message holds its words).
[[nodiscard]] Result<std::string> slurm_answer(const std::vector<std::string>& words, const AskOptions& options);

// The output of `sacct -n -P` and these words. Errors: as above; unsupported (the cluster keeps no accounting).
[[nodiscard]] Result<std::string> accounting_answer(std::vector<std::string> words, const AskOptions& options);

// The value of "SelectType              = select/cons_tres" in the output of `scontrol show config`; "" without it.
std::string config_value(std::string_view config, std::string_view name);

// The error text of a failed command in one line: without its own name and "error:", lines joined by "; ".
std::string reason_of(const CommandOutput& output);

}  // namespace millrace::slurm
