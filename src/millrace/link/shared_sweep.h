// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sweeps of a link that several tasks carry at once (`link run --task`). Each sweep is a job whose ranges the tasks
// share (sync/share.h). One of them ends it, and only then is anything removed. Between sweeps each task carries the
// changes that it sees. For one thread.

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
  // All objects passed by reference must outlive this one. `board`: the folder of the link's tasks, in the bucket.
  // `owner`: a name that no other process ever has.
  SharedSweeps(const LinkConfig& config, const Location& here, const Location& there, Location board, std::string owner,
               LinkState& state, Carrier& carrier, std::stop_token stop);

  // Takes part in the next sweep until all of it is done; begins the sweep if nobody has. `adopt`: returns without a
  // new sweep if other tasks have finished one since the last call. In the report, the counts are this task's; the
  // other numbers are those of all tasks. Errors: as sweep(), those of the board.
  [[nodiscard]] Result<SweepReport> take_part(bool adopt);
  // Loads what other tasks learned of these paths into the state, so that the carrier may look at them. Errors: those
  // of the board, of the state.
  [[nodiscard]] Status prepare(const std::vector<std::string>& paths);
  // Tells the other tasks what this task learned since.
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
