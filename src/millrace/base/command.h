// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs a program for its output, without a shell. Functions are thread-safe.

#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace {

// Splits `text` into words as Python's shlex.split does: quotes and backslashes, no variables, no globs, no comments.
// Error: invalid_argument (an unfinished quote or escape).
[[nodiscard]] Result<std::vector<std::string>> split_command(std::string_view text);

inline constexpr size_t kMaxCommandOutput = 1 << 20;  // bytes, unless the caller expects more

struct CommandOutput {
  bool ok = false;     // exit status 0
  std::string status;  // "exit status 1", "signal 9"
  std::string out;
  std::string err;
};

// Runs words[0], found on PATH, in a new process group with empty standard input. The program gets this process's
// environment; `variables` ("NAME=VALUE" each) add to it and replace equal names. Blocks. Kills the group on an error.
// Errors: those of starting the program (not_found), timeout, cancelled, resource_exhausted (more than
// max_output_bytes of output). REQUIRES: words is not empty.
[[nodiscard]] Result<CommandOutput> run_command(const std::vector<std::string>& words,
                                                std::chrono::milliseconds time_limit, const std::stop_token& stop,
                                                size_t max_output_bytes = kMaxCommandOutput,
                                                const std::vector<std::string>& variables = {});

}  // namespace millrace
