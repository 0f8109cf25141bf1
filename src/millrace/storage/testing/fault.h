// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Storage around another that fails, delays or corrupts chosen operations, so that the code above can be tested
// against a bad disk or service. Thread-safe.

#include <chrono>
#include <cstdint>
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

// What happens to the operations that match. `call` and `key_part` choose; the first `skip` matches pass untouched, the
// next `count` are hit, later ones pass again.
struct FaultRule {
  static constexpr int64_t kForever = INT64_MAX;

  FaultCall call = FaultCall::kAny;
  std::string key_part;  // a part of the key (of the prefix, for kList); empty matches all
  int64_t skip = 0;
  int64_t count = 1;
  std::chrono::milliseconds delay{0};  // before anything else
  std::optional<Error> error;          // answered instead of doing it; a commit that fails leaves nothing
  bool flip_bit = false;               // reads: the lowest bit of the middle byte of what was read
};

// The rules, shared by the test and the storages it made. All rules that match an operation act on it; the first
// error wins.
class FaultPlan {
 public:
  void add(FaultRule rule);
  void clear();
  // Operations hit so far.
  int64_t hits() const;

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
};

std::shared_ptr<Storage> make_fault_storage(std::shared_ptr<Storage> inner, std::shared_ptr<FaultPlan> plan);

}  // namespace millrace
