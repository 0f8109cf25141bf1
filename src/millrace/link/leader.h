// SPDX-License-Identifier: Apache-2.0
#pragma once

// Elects the node that runs a link when several may: the leader renews a small object in the bucket,
// .millrace/link-leader.json. The others stand by. One takes over when the object has not changed for a while by its
// own clock, so the clocks of nodes need not agree. For a moment two nodes may believe that they lead (a process was
// stopped and continued, or a server ignores conditions). Then the condition of each copy keeps versions from being
// lost.

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "millrace/link/config.h"
#include "millrace/storage/url.h"

namespace millrace::link {

// The owner name that all tasks of a shared link have in common.
inline constexpr const char* kTasks = "tasks";

class Leader {
 public:
  // `root`: the link's side of the bucket. `owner`: unique to this process, or kTasks. `shown`: the owner's name for
  // people. `now`: another clock in a test.
  Leader(
      const Location& root, std::string owner, std::string shown, std::chrono::duration<double> dead_after,
      std::function<Clock::time_point()> now = [] { return Clock::now(); });

  // Takes the lead when nobody has it or its holder is dead. Returns whether this node leads now. Errors: those of the
  // storage.
  [[nodiscard]] Result<bool> take();
  // Renews the lead. Returns false when another node has it. REQUIRES: take() returned true. Errors: those of the
  // storage.
  [[nodiscard]] Result<bool> renew();
  // Gives up the lead, so that the next node need not wait. Does nothing when another node leads. Errors: those of the
  // storage.
  [[nodiscard]] Status give_up();

  // Returns whether some process leads and is not known to be dead. Errors: those of the storage.
  [[nodiscard]] Result<bool> is_held();
  // Returns the leader that the last call found; "" if there was none.
  const std::string& holder() const { return holder_; }
  // Returns whether the leader is a group of tasks that share the link.
  bool is_shared() const { return is_shared_; }
  std::chrono::duration<double> dead_after() const { return dead_after_; }

 private:
  struct Record {
    std::string owner, shown, version;
    int64_t beats = 0;
  };
  [[nodiscard]] Result<std::optional<Record>> read();
  // Returns false when another node was faster.
  [[nodiscard]] Result<bool> write(const std::string& owner, const std::string& version);
  // Returns whether the record has not changed for `dead_after`. REQUIRES: it has an owner.
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

// Makes the Leader of a link that several nodes may run. Errors: those of opening its URL.
[[nodiscard]] Result<Leader> leader_of(const LinkConfig& config, std::string owner);

}  // namespace millrace::link
