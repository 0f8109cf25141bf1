// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Storage around another that fails, delays or corrupts chosen operations, so that the code above can be tested
// against a bad disk or service. Thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/storage/storage.h"

namespace millrace {

enum class FaultCall {
  kAny,
  kOpenRead,
  kRead,
  kOpenWrite,  // resume_write too
  kWrite,
  kCopyRange,
  kCommit,
  kNote,      // set_note, suspend
  kReadBack,  // of a write that was resumed
  kStat,
  kList,
  kListUploads,
  kRemove,
  kMakeDurable,
};

// A fault for matching operations. `call` and `key_part` select them. The first `skip` matches pass, the next `count`
// are hit, later ones pass again.
struct FaultRule {
  static constexpr int64_t kForever = INT64_MAX;

  FaultCall call = FaultCall::kAny;
  std::string key_part;  // a part of the key (of the prefix, for kList); empty matches all
  int64_t skip = 0;
  int64_t count = 1;
  std::chrono::milliseconds delay{0};  // before anything else
  std::function<void()> before;        // called after the delay, on the operation's thread, which it may hold up
  std::optional<Error> error;          // the answer, without the operation; a failed commit leaves no object
  bool flip_bit = false;               // reads: the lowest bit of the middle byte of what was read
};

// The rules, shared by the test and the storages it made. All rules that match an operation act on it; the first
// error wins.
class FaultPlan {
 public:
  void add(FaultRule rule);
  void clear();
  // Operations hit so far, and the most that were delayed at the same time.
  int64_t hits() const;
  int64_t most_at_once() const;
  // The longest chain of operations hit of which each began after the one before had been delayed: round trips that
  // nobody overlapped.
  int64_t round_trips() const;

  // For the wrapper: counts the operation, waits, and says what to do with it.
  struct Verdict {
    Status status;
    bool flip_bit = false;
  };
  Verdict judge(FaultCall call, std::string_view key);

 private:
  struct Armed {
    FaultRule rule;
    int64_t matches = 0;
  };
  mutable Mutex mutex_;
  std::vector<Armed> rules_ GUARDED_BY(mutex_);
  int64_t hits_ GUARDED_BY(mutex_) = 0;
  int64_t delayed_ GUARDED_BY(mutex_) = 0, most_delayed_ GUARDED_BY(mutex_) = 0;
  int64_t round_trips_ GUARDED_BY(mutex_) = 0;  // of the longest chain that has ended
};

// `operations_at_once`: what submit() has under way. With 1, each operation ends before the next one begins, in the
// order in which they were submitted, so that a rule's `skip` counts them in that order.
std::shared_ptr<Storage> make_fault_storage(std::shared_ptr<Storage> inner, std::shared_ptr<FaultPlan> plan,
                                            int operations_at_once = 16);

}  // namespace millrace
