// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes every open(2) of a stub, by any process, wait until its content is here, by fanotify(7). Linux only, as root.
//
// The guardian is a small process of its own. It reads fanotify's events of the link's file system, lets files that
// have content through at once, and hands stubs to the process that runs the link, which fills them (filler.h). Both
// hold fanotify's descriptor: the kernel lets a waiting program through, to zeros, only when the last copy is closed.
// So either may die. Without a process that fills, programs wait for a while for the next one, and then get EIO.
//
// The link's directory lies below one that only root may enter. The guardian binds it to the path that users see after
// the kernel tells it of opens, so nobody finds stubs there before.

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/link/config.h"

namespace millrace::link {

// Whether the link's directory can be guarded. Errors: permission_denied (not root, or others may enter the directory),
// invalid_argument (`show_at` is no empty directory of its own), unsupported (the kernel, the file system, or the file
// system of the system itself).
[[nodiscard]] Status check_guard(const LinkConfig& config);

struct GuardianOptions {
  // How long programs wait for a process that fills after the last one died.
  std::chrono::milliseconds patience = std::chrono::seconds(30);
  // fanotify's descriptor that a guardian has left, with programs that wait: they get EIO. -1: none.
  int group = -1;
  std::function<void(const std::string&)> on_note;
};
// Blocks until it is asked to end (end_guardian) or `stop` is set: then the visible path is unmounted, also from under
// programs that use it. Errors: unavailable (another guardian guards the link), those of check_guard(), of the system.
[[nodiscard]] Status run_guardian(const LinkConfig& config, const LinkHome& home, const GuardianOptions& options,
                                  const std::stop_token& stop);

struct GuardianState {
  int process = 0;
  int64_t waiting = 0;  // programs in open(2)
};
// nullopt: there is none.
std::optional<GuardianState> find_guardian(const LinkHome& home);
// Errors: not_found (there is none), unavailable (a program uses the visible path, or a process runs the link).
[[nodiscard]] Status end_guardian(const LinkConfig& config, const LinkHome& home);

}  // namespace millrace::link
