// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a link says of itself: what waits, what went wrong, how far one side is behind the other. Read from its state,
// beside the process that runs it. A value.

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
  std::vector<Conflict> conflicts;           // the latest
  std::vector<Problem> problems;             // the oldest
  std::map<std::string, std::string> facts;  // of run.cpp, all of them; "" where nothing is known
  // For how long the oldest change that is known waits: a file that was seen to change, a path that fails. While no
  // process runs the link, its last sweep failed, or the bucket does not answer: since the last sweep that ended well.
  // 0: nothing is known to wait.
  int64_t behind_s = 0;
  // Since when the bucket has not answered the process that runs the link, in UTC seconds since 1970; 0: it answers.
  int64_t silent_since = 0;
};

// Since when the oldest change that is known waits, in UTC seconds since 1970; 0: none is known to. `running`: a
// process runs the link. Errors: those of the state.
[[nodiscard]] Result<int64_t> waits_since(LinkState& state, bool running);
// Shows it to others, as long as this process runs the link (base/published.h); nullopt: it does no more. Thread-safe.
void show_link(const std::string& name, std::optional<int64_t> since_s);

// With up to `shown` conflicts and problems. A link that never ran has a status, too. Errors: those of the state.
[[nodiscard]] Result<LinkStatus> read_status(const LinkHome& home, size_t shown);

}  // namespace millrace::link
