// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files of a Lustre with HSM (hierarchical storage, which FSx has): their content may lie in the HSM, and Lustre brings
// it back when any program on any node reads it. Calls `lfs hsm_*` of PATH. Functions are thread-safe.

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

// What `lfs hsm_state` tells of a file.
struct HsmState {
  bool exists = false;    // in the HSM, in some version
  bool dirty = false;     // changed since it was archived
  bool released = false;  // the content is in the HSM only
  bool archived = false;
  bool never_release = false, never_archive = false;  // as an administrator said
  bool lost = false;                                  // the HSM has no content of it any more
  bool operator==(const HsmState&) const = default;
};
// "(0x0000000d) released exists archived, archive_id:1"; nullopt for what is none.
std::optional<HsmState> parse_hsm_state(std::string_view text);

// What `lfs hsm_action` tells of a file.
struct HsmAction {
  std::string name;         // "RESTORE"; "" where nothing is asked for or under way
  std::string progress;     // "WAITING", "RUNNING"
  int64_t moved_bytes = 0;  // so far, where the copytool tells
  bool operator==(const HsmAction&) const = default;
};
// "NOOP", "RESTORE RUNNING (4096 bytes moved)"; nullopt for what is none.
std::optional<HsmAction> parse_hsm_action(std::string_view text);

// Whether the file may be released: it has a size and no blocks. Asks no command.
bool has_no_blocks(const std::string& path);
// Errors: not_found (no lfs), unsupported (no Lustre with HSM), cancelled, unavailable (whatever else lfs says).
[[nodiscard]] Result<HsmState> hsm_state(const std::string& path, const std::stop_token& stop);
// Whether the content of the file is in the HSM only. Asks lfs where it has no blocks. Errors: as above.
[[nodiscard]] Result<bool> is_hsm_released(const std::string& path, const std::stop_token& stop);
// The error of a file whose content is in the HSM only, where nothing tells that the bucket has it.
[[nodiscard]] Status refuse_to_read(const std::string& path, std::string_view reason);
// Gives the blocks back. Lustre refuses it for a file that is dirty, not archived, or open on any node. Errors: also
// unavailable: its reason.
[[nodiscard]] Status hsm_release(const std::string& path, const std::stop_token& stop);

struct HsmLimits {
  double stall_s = 300;  // an action that makes no progress for so long is given up, and said
  size_t at_once = 32;   // actions that are asked for and not done
};

// Actions of the HSM's copytool, begun in the order of add(), a bounded number under way. Lustre only queues them, so
// their files are looked at until they have ended. For one thread.
class HsmActions {
 public:
  enum class Kind { kArchive, kRestore };
  // Called by add() and finish() with each path once.
  using OnEnd = std::function<void(const std::string& path, const Status& status)>;
  HsmActions(Kind kind, HsmLimits limits, OnEnd on_end, std::stop_token stop)
      : kind_(kind), limits_(limits), on_end_(std::move(on_end)), stop_(std::move(stop)) {}

  // Asks for the action; waits before that while as many as the limit are under way. Errors: cancelled; timeout:
  // everything that was under way has stalled, so this one was not asked for.
  [[nodiscard]] Status add(const std::string& path);
  // Waits for the rest. Errors: cancelled.
  [[nodiscard]] Status finish();

 private:
  struct Pending {
    std::string path;
    HsmAction action;            // as last seen
    Clock::time_point moved_at;  // when it or one before it in the queue last moved
    bool was_active = false;     // it was seen under way
    bool was_idle = false;       // and then not, at the last look
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
  Clock::time_point moved_at_;  // when anything under way last moved
  bool gave_up_ = false;
};

}  // namespace millrace::link
