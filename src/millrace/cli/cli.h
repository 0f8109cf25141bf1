// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the `millrace` command: parses the arguments, runs one verb, and returns the exit status. Called once at a
// time, from the main thread.

namespace millrace::cli {

// The exit statuses of the process (docs/cli.md).
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitFindings = 3;

// Runs the command line and returns the exit status: one of the values above, or 128 + signal after a stop by SIGINT
// or SIGTERM.
int run_cli(int argc, const char* const* argv);

}  // namespace millrace::cli
