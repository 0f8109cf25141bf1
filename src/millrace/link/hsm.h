// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files of a Lustre with HSM (hierarchical storage management, which FSx has). Their content may be in the HSM, and
// Lustre restores it when any program on any node reads it. Runs `lfs hsm_*` with the lfs of PATH. Functions are
// thread-safe.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::link {

// The output of `lfs hsm_state` for a file.
struct HsmState {
  bool exists = false;    // the HSM has some version of it
  bool dirty = false;     // changed since it was archived
  bool released = false;  // the content is in the HSM only
  bool archived = false;
  bool never_release = false, never_archive = false;  // set by an administrator
  bool lost = false;                                  // the HSM no longer has its content
  bool operator==(const HsmState&) const = default;
};
// Parses "(0x0000000d) released exists archived, archive_id:1"; nullopt if it is something else.
std::optional<HsmState> parse_hsm_state(std::string_view text);

// The output of `lfs hsm_action` for a file.
struct HsmAction {
  std::string name;         // "RESTORE"; "": no action is requested or under way
  std::string progress;     // "WAITING", "RUNNING"
  int64_t moved_bytes = 0;  // so far, if the copytool reports it
  bool operator==(const HsmAction&) const = default;
};
// Parses "NOOP" or "RESTORE RUNNING (4096 bytes moved)"; nullopt if it is something else.
std::optional<HsmAction> parse_hsm_action(std::string_view text);

// Returns whether the file may be a released one: it has a size and no blocks. Runs no command.
bool has_no_blocks(const std::string& path);
// Returns the HSM state of a file. Errors: not_found (no lfs), unsupported (no Lustre with HSM), cancelled,
// unavailable (any other failure of lfs).
[[nodiscard]] Result<HsmState> hsm_state(const std::string& path, const std::stop_token& stop);
// Returns whether the content of the file is in the HSM only. Asks lfs only if the file has no blocks. Errors: as for
// hsm_state().
[[nodiscard]] Result<bool> is_hsm_released(const std::string& path, const std::stop_token& stop);
// Returns the error for a file whose content is in the HSM only and is not known to be in the bucket.
[[nodiscard]] Status refuse_to_read(const std::string& path, std::string_view reason);
// Frees the file's blocks. Lustre refuses this for a file that is dirty, not archived, or open on any node. Errors: as
// for hsm_state(), also unavailable with Lustre's reason.
[[nodiscard]] Status hsm_release(const std::string& path, const std::stop_token& stop);

struct HsmLimits {
  double stall_s = 300;  // an action without progress for this long is given up and reported
  size_t at_once = 32;   // actions that are requested and not finished
};

// Runs actions of the HSM's copytool in the order of add(), with a bounded number under way. Lustre only queues an
// action, so this polls the files until their actions have ended. For one thread.
class HsmActions {
 public:
  enum class Kind { kArchive, kRestore };
  // Called by add() and finish(), once for each path.
  using OnEnd = std::function<void(const std::string& path, const Status& status)>;
  HsmActions(Kind kind, HsmLimits limits, OnEnd on_end, std::stop_token stop)
      : kind_(kind), limits_(limits), on_end_(std::move(on_end)), stop_(std::move(stop)) {}

  // Requests the action; first waits while the maximum number is under way. Errors: cancelled; timeout (all actions
  // under way have stalled, so this one was not requested).
  [[nodiscard]] Status add(const std::string& path);
  // Waits for the remaining actions. Errors: cancelled.
  [[nodiscard]] Status finish();

 private:
  struct Pending {
    std::string path;
    HsmAction action;            // as last seen
    Clock::time_point moved_at;  // when this file, or one before it in the queue, last made progress
    bool was_active = false;     // an action was seen under way
    bool was_idle = false;       // and none was seen at the last look
  };
  [[nodiscard]] Status look();
  [[nodiscard]] Status wait_and_look();
  [[nodiscard]] std::optional<Status> ended(Pending& file, const Result<HsmState>& state, Clock::time_point now);
  [[nodiscard]] Status stalled(const Pending& file, double for_s) const;
  std::string_view verb() const;

  const Kind kind_;
  const HsmLimits limits_;
  const OnEnd on_end_;
  const std::stop_token stop_;
  std::vector<Pending> pending_;
  std::chrono::milliseconds pause_{0};
  Clock::time_point moved_at_;  // when any action under way last made progress
  bool gave_up_ = false;
};

}  // namespace millrace::link
