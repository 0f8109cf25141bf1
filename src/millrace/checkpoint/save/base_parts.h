// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps the earlier parts of this rank that a save may refer to, so that a save does not write unchanged tensors
// again.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/checkpoint/save/save.h"

namespace millrace::checkpoint {

// The parts that this process has saved, and the tiers that have them. A save may refer to the newest part that all
// tiers of the save have. Thread-safe; calls none of a Save's methods under a lock that a Save calls for.
class BaseParts {
 public:
  using Tiers = std::vector<bool>;  // by tier, nearest first: whether it is in the set

  // Adds the part of `save`, which is written. Called once for each tier that writes the part.
  void add(std::shared_ptr<Save> save, std::shared_ptr<const PartRecord> part);
  // Adds a part that an earlier process wrote and that all of `tiers` have.
  void adopt(Tiers tiers, std::shared_ptr<const PartRecord> part);
  // Forgets all parts after the save of `step` has failed in a tier, because it is no longer certain which tiers have
  // them.
  void forget(int64_t step);
  // Forgets all parts and saves when the Saver ends. This breaks a cycle: the saves hold the owner of this object.
  void close();
  // Returns the part that a save to the tiers `needed` may refer to; nullptr: the save must write all tensors.
  std::shared_ptr<const PartRecord> find(const Tiers& needed);
  // Does the same as find(), and marks the part as needed by the save of `step` until the save's part is added.
  std::shared_ptr<const PartRecord> choose(int64_t step, const Tiers& needed);
  // Returns the steps in `tier` that current and later saves may refer to, now that `ended` is committed there.
  std::vector<int64_t> needed_in(size_t tier, const Save& ended);

 private:
  struct Base {
    Tiers tiers;
    std::shared_ptr<const PartRecord> part;
  };
  struct UnderWay {
    std::shared_ptr<Save> save;
    std::shared_ptr<const PartRecord> part;
  };
  // Moves the parts of saves that have ended from `under_way_` to `bases_`.
  void settle() REQUIRES_LOCK(mutex_);
  void take(Base base) REQUIRES_LOCK(mutex_);
  std::shared_ptr<const PartRecord> newest(const Tiers& needed) REQUIRES_LOCK(mutex_);

  Mutex mutex_;
  std::vector<Base> bases_ GUARDED_BY(mutex_);                                      // the newest of each set of tiers
  std::map<int64_t, std::shared_ptr<const PartRecord>> chosen_ GUARDED_BY(mutex_);  // by the step that refers to it
  std::deque<UnderWay> under_way_ GUARDED_BY(mutex_);
};

}  // namespace millrace::checkpoint
