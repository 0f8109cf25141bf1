// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes every open(2) of a stub, by any process, wait until its content is here, by fanotify(7). Linux only, as root.
//
// The guardian is a small separate process. It reads fanotify's events of the link's file system and lets opens of
// files that have content through at once. It passes stubs to the process that runs the link, which fills them
// (filler.h). Both processes hold fanotify's descriptor, because the kernel lets a waiting program through, to read
// zeros, only when the last copy is closed. So either process may die. Without a process that fills, programs wait for
// a while for the next one, then get EIO.
//
// The link's directory is below a directory that only root may enter. The guardian bind-mounts it at the path that
// users see, after the kernel has begun to report opens, so nobody finds stubs there earlier.

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/link/config.h"

namespace millrace::link {

// Checks that the link's directory can be guarded. Errors: permission_denied (not root, or others may enter the
// directory), invalid_argument (`show_at` is not an empty directory outside the link), unsupported (the kernel, the
// file system, or the directory is on the root file system).
[[nodiscard]] Status check_guard(const LinkConfig& config);

struct GuardianOptions {
  // How long programs wait for a process that fills after the last one died.
  std::chrono::milliseconds patience = std::chrono::seconds(30);
  // fanotify's descriptor of a guardian that has ended. Programs that still wait on it get EIO. -1: none.
  int group = -1;
  std::function<void(const std::string&)> on_note;
};
// Blocks until end_guardian() asks it to end or `stop` is set. It then unmounts the visible path, even while programs
// use it. Errors: unavailable (another guardian guards the link), those of check_guard(), of the system.
[[nodiscard]] Status run_guardian(const LinkConfig& config, const LinkHome& home, const GuardianOptions& options,
                                  const std::stop_token& stop);

struct GuardianState {
  int process = 0;
  int64_t waiting = 0;  // programs in open(2)
};
// Returns the state of the running guardian; nullopt: none runs.
std::optional<GuardianState> find_guardian(const LinkHome& home);
// Ends the guardian. Errors: not_found (none runs), unavailable (a program uses the visible path, or a process runs
// the link).
[[nodiscard]] Status end_guardian(const LinkConfig& config, const LinkHome& home);

}  // namespace millrace::link
