// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/status.h"

#include <algorithm>

#include "millrace/base/published.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"
#include "millrace/link/wall_clock.h"

namespace millrace::link {

namespace {

// How long the link has been silent; 0 while an answer may only be slow because the bucket is busy.
int64_t silent_since(const std::string& asked) {
  constexpr int64_t kPatience_s = 5;
  const int64_t since = parse_whole(asked).value_or(0);
  return since > 0 && static_cast<int64_t>(wall_now_s()) - since >= kPatience_s ? since : 0;
}

struct ShownLinks {
  Mutex mutex;
  std::map<std::string, int64_t> since_s GUARDED_BY(mutex);  // of each link that runs; 0: nothing waits
};
// Lives as long as the process.
ShownLinks& shown_links() {
  static auto& links = *new ShownLinks;
  return links;
}

}  // namespace

Result<int64_t> waits_since(LinkState& state, bool running) {
  const auto now = static_cast<int64_t>(wall_now_s());
  int64_t since = now;
  const auto take = [&](int64_t time) {
    if (time > 0) since = std::min(since, time);
  };
  ASSIGN_OR_RETURN(const std::string waiting_since, state.fact("waiting_since"));
  ASSIGN_OR_RETURN(const std::string error, state.fact("error"));
  ASSIGN_OR_RETURN(const std::string last_sweep, state.fact("last_sweep"));
  ASSIGN_OR_RETURN(const std::string asked, state.fact("silent_since"));
  ASSIGN_OR_RETURN(const std::vector<Problem> problems, state.problems(1));
  if (running) take(parse_whole(waiting_since).value_or(0));
  if (!running || !error.empty()) take(parse_whole(last_sweep).value_or(0));
  const int64_t silent = running ? silent_since(asked) : 0;
  if (silent > 0) take(parse_whole(last_sweep).value_or(silent));
  if (!problems.empty()) take(problems.front().since);
  return since == now ? 0 : since;
}

void show_link(const std::string& name, std::optional<int64_t> since_s) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  ShownLinks& links = shown_links();
  const MutexLock lock(links.mutex);
  if (since_s) {
    links.since_s[name] = *since_s;
  } else {
    links.since_s.erase(name);
  }
  int64_t oldest = 0;
  for (const auto& [link, since] : links.since_s) {
    if (since > 0 && (oldest == 0 || since < oldest)) oldest = since;
  }
  publish_set(Published::kLinks, std::ssize(links.since_s));
  publish_set(Published::kLinkSinceNs, oldest * kNsPerSecond);
}

Result<LinkStatus> read_status(const LinkHome& home, size_t shown) {
  LinkStatus status;
  status.running = LinkLock::is_taken(home);
  for (const char* name : {"doing", "last_sweep", "sweep_s", "postponed", "passed", "waiting", "waiting_since", "error",
                           "not_deleted", "silent_since"}) {
    status.facts[name];
  }
  const auto state = LinkState::open_to_read(home.state_path());
  if (!state && state.error().code() == ErrorCode::kNotFound) return status;
  if (!state) return tl::unexpected<Error>(state.error());
  ASSIGN_OR_RETURN(status.counts, (*state)->counts());
  ASSIGN_OR_RETURN(status.conflicts, (*state)->conflicts(shown));
  ASSIGN_OR_RETURN(status.problems, (*state)->problems(std::max<size_t>(shown, 1)));
  for (auto& [name, value] : status.facts) {
    ASSIGN_OR_RETURN(value, (*state)->fact(name));
  }
  status.silent_since = status.running ? silent_since(status.facts["silent_since"]) : 0;
  ASSIGN_OR_RETURN(const int64_t since, waits_since(**state, status.running));
  status.behind_s = since == 0 ? 0 : static_cast<int64_t>(wall_now_s()) - since;
  return status;
}

}  // namespace millrace::link
