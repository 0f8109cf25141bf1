// SPDX-License-Identifier: Apache-2.0
#pragma once

// The earlier parts of this rank that a save may refer to, so that it does not write again what did not change.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/checkpoint/save/save.h"

namespace millrace::checkpoint {

// The parts that this process has saved, and which tiers have them. A save may refer to the newest part that all of its
// own tiers have. Thread-safe; calls none of a Save's methods under a lock that a Save calls for.
class BaseParts {
 public:
  using Tiers = std::vector<bool>;  // by tier, nearest first: whether it is one of them

  // The part of `save` is written. Called once for each tier that writes it.
  void add(std::shared_ptr<Save> save, std::shared_ptr<const PartRecord> part);
  // Adds a part that an earlier process wrote and all of `tiers` have.
  void adopt(Tiers tiers, std::shared_ptr<const PartRecord> part);
  // The save of `step` has failed in a tier. Forgets all parts, because it is no longer certain which tiers have them.
  void forget(int64_t step);
  // Forgets all parts and saves: the Saver ends, and the saves hold what owns this object.
  void close();
  // The part that a save to the tiers `needed` may refer to; nullptr: it must write all.
  std::shared_ptr<const PartRecord> find(const Tiers& needed);
  // The same, and keeps that part needed for the save of `step` until its own part is added.
  std::shared_ptr<const PartRecord> choose(int64_t step, const Tiers& needed);
  // The steps in `tier` that saves under way or to come may refer to, now that `ended` is committed there.
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
  // Sorts out the saves that have ended.
  void settle() REQUIRES_LOCK(mutex_);
  void take(Base base) REQUIRES_LOCK(mutex_);
  std::shared_ptr<const PartRecord> newest(const Tiers& needed) REQUIRES_LOCK(mutex_);

  Mutex mutex_;
  std::vector<Base> bases_ GUARDED_BY(mutex_);                                      // the newest of each set of tiers
  std::map<int64_t, std::shared_ptr<const PartRecord>> chosen_ GUARDED_BY(mutex_);  // by the step that refers to it
  std::deque<UnderWay> under_way_ GUARDED_BY(mutex_);
};

}  // namespace millrace::checkpoint
