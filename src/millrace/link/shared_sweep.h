// SPDX-License-Identifier: Apache-2.0
#pragma once

// A link that several tasks carry at once (`link run --task`): each sweep is a job whose ranges they share
// (sync/share.h). One of them ends it: only then is anything removed. Between sweeps each task carries what it sees to
// change. For one thread.

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/link/shared_state.h"
#include "millrace/link/sweep.h"

namespace millrace::link {

class SharedSweeps {
 public:
  // All of these outlive it. `board`: the folder of the link's tasks, in the bucket; `owner`: of no other process,
  // ever.
  SharedSweeps(const LinkConfig& config, const Location& here, const Location& there, Location board, std::string owner,
               LinkState& state, Carrier& carrier, std::stop_token stop);

  // Takes part in the next sweep, which it begins where nobody has, until all of it is done. `adopt`: one that others
  // have finished since the last call will do. The counts are this task's, the rest is of all. Errors: as sweep(),
  // those of the board.
  [[nodiscard]] Result<SweepReport> take_part(bool adopt);
  // Brings what other tasks learned of these paths into the state, so that the carrier may look at them; and tells the
  // others what came of it. Errors: those of the board, of the state.
  [[nodiscard]] Status prepare(const std::vector<std::string>& paths);
  [[nodiscard]] Status publish() { return shared_.publish(); }

 private:
  [[nodiscard]] Result<std::optional<std::string>> next_path(const std::string& after) const;
  [[nodiscard]] Status work(sync::Share& share, sync::KeyRange& range, int64_t sweep);
  [[nodiscard]] Status close(SweepReport& report);
  std::chrono::duration<double> dead_after() const { return std::chrono::duration<double>(config_.take_over_s); }

  const LinkConfig& config_;
  const Location& here_;
  const Location& there_;
  const std::string owner_;
  LinkState& state_;
  Carrier& carrier_;
  const std::stop_token stop_;
  SharedState shared_;
  int64_t taken_ = -1;  // the newest finished sweep at the end of the last call
};

}  // namespace millrace::link
