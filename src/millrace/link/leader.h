// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which of several nodes runs a link: the one that renews a small object in the bucket, .millrace/link-leader.json. The
// others stand by, and one of them takes its place when the object did not change for a time of their own clock, so
// that clocks of nodes need not agree. Two nodes may believe to run the link for a moment (a process that was stopped
// and goes on, a server that ignores conditions): then each copy's own condition keeps versions from being lost.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "millrace/link/config.h"
#include "millrace/storage/url.h"

namespace millrace::link {

// The owner that all tasks of a shared link are together.
inline constexpr const char* kTasks = "tasks";

class Leader {
 public:
  // `root`: the link's side of the bucket. `owner`: of no other process, or kTasks; `shown`:
  // who that is, for people. `now`: another clock in a test.
  Leader(
      const Location& root, std::string owner, std::string shown, std::chrono::duration<double> dead_after,
      std::function<Clock::time_point()> now = [] { return Clock::now(); });

  // Takes the place where nobody has it, or its holder is dead. Returns whether this one has it now. Errors: those of
  // the storage.
  [[nodiscard]] Result<bool> take();
  // Says that this one is there. False: another has the place. REQUIRES: take() returned true. Errors: those of the
  // storage.
  [[nodiscard]] Result<bool> renew();
  // Leaves the place to the next one at once. Does nothing where another has it. Errors: those of the storage.
  [[nodiscard]] Status give_up();

  // Whether some process has the place and is not known to be dead. Errors: those of the storage.
  [[nodiscard]] Result<bool> is_held();
  // As the last call found it: "" where nobody had the place.
  const std::string& holder() const { return holder_; }
  // Whether it were tasks that share the link, of which the holder is one.
  bool is_shared() const { return is_shared_; }
  std::chrono::duration<double> dead_after() const { return dead_after_; }

 private:
  struct Record {
    std::string owner, shown, version;
    int64_t beats = 0;
  };
  [[nodiscard]] Result<std::optional<Record>> read();
  // False when another was faster.
  [[nodiscard]] Result<bool> write(const std::string& owner, const std::string& version);
  // Whether the record did not change for `dead_after`; REQUIRES: it has an owner.
  bool is_dead(const Record& record);

  const Location object_;
  const std::string owner_, shown_;
  const std::chrono::duration<double> dead_after_;
  const std::function<Clock::time_point()> now_;
  int64_t beats_ = 0;
  std::string seen_, holder_;
  bool is_shared_ = false;
  Clock::time_point seen_since_;
};

// Of a link that several nodes may run. Errors: those of opening its URL.
[[nodiscard]] Result<Leader> leader_of(const LinkConfig& config, std::string owner);

}  // namespace millrace::link
