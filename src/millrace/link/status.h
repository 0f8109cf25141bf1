// SPDX-License-Identifier: Apache-2.0
#pragma once

// The status of a link: pending work, failures, and how far one side is behind the other. Read from the link's state,
// while another process may run the link. A value.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

struct LinkStatus {
  bool running = false;
  StateCounts counts;
  std::vector<Conflict> conflicts;           // the newest
  std::vector<Problem> problems;             // the oldest
  std::map<std::string, std::string> facts;  // every fact that run.cpp keeps; "" where it is unknown
  // Seconds that the oldest known change has waited: since a file was seen to change, or a path began to fail. If no
  // process runs the link, its last sweep failed, or the bucket does not answer, this counts from the last sweep that
  // succeeded. 0: no change is known to wait.
  int64_t behind_s = 0;
  // When the bucket stopped answering the process that runs the link, in UTC seconds since 1970; 0: it answers.
  int64_t silent_since = 0;
};

// When the oldest known change began to wait, in UTC seconds since 1970; 0: none waits. `running`: whether a process
// runs the link. Errors: those of the state.
[[nodiscard]] Result<int64_t> waits_since(LinkState& state, bool running);
// Publishes `since_s` to other processes (base/published.h). nullopt: this process no longer runs the link.
// Thread-safe.
void show_link(const std::string& name, std::optional<int64_t> since_s);

// Returns at most `shown` conflicts and problems. A link that never ran has a status too. Errors: those of the state.
[[nodiscard]] Result<LinkStatus> read_status(const LinkHome& home, size_t shown);

}  // namespace millrace::link
