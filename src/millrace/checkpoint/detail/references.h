// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which tensors of a save are not written again, because a file of an earlier step has them, and which earlier steps
// this process may refer to.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/detail/records.h"
#include "millrace/checkpoint/detail/save.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

// A step holds all of an earlier one's file for what it refers to in it, so that must be an eighth of the file at
// least.
inline constexpr int64_t kLeastShareOfFile = 8;
// Files that one part refers to, at most: each is opened by a load.
inline constexpr size_t kMostSources = 16;

struct Referred {
  std::vector<PartSource> sources;
  std::vector<PartTensor> tensors;  // with their `source`
};

// The tensors of `now` that `before` has with the same bytes, by their hashes, and the files that have them. No source
// is itself a reference: `before` says where the bytes are. Pure.
Referred find_unchanged(const PartRecord& now, const PartRecord& before);

// The record of a part that was written without `referred`. Pure.
void add_referred(PartRecord& part, const Referred& referred);

// Whether the files that the part refers to lie below `root` as they were written, by their sizes. Errors: not_found
// naming the first that does not, those of storage.
[[nodiscard]] Status check_sources(const Location& root, const PartRecord& part);

// This rank's part of a commit, when all of `roots` have it and what it refers to, by hash of the record and sizes of
// the files, and later steps may refer to it; else nullptr. Errors: those of reading.
[[nodiscard]] Result<std::shared_ptr<const PartRecord>> find_part(std::span<const Location> roots,
                                                                  const Ancestor& commit, int64_t rank,
                                                                  int64_t world_size);

// The steps that the parts refer to, each once, ascending.
std::vector<Ancestor> bases_of(std::span<const PartSource> sources);

// This rank's parts of the saves of a process. The next save may refer to the newest that every tier has which the next
// one goes to. Thread-safe; calls none of a Save's methods under a lock that a Save calls for.
class BaseParts {
 public:
  using Tiers = std::vector<bool>;  // which of them, nearest first

  // A save's part is written. Called once for each tier that writes it.
  void add(std::shared_ptr<Save> save, std::shared_ptr<const PartRecord> part);
  // A part of an earlier process, which all of `tiers` have.
  void adopt(Tiers tiers, std::shared_ptr<const PartRecord> part);
  // A save of `step` has failed in a tier: what all of them have is not certain any more.
  void forget(int64_t step);
  // The Saver ends. Saves refer to what owns this object.
  void close();
  // What a save may refer to; nullptr: all must be written.
  std::shared_ptr<const PartRecord> find(const Tiers& needed);
  // The same for the save of `step`, until its part is added.
  std::shared_ptr<const PartRecord> choose(int64_t step, const Tiers& needed);
  // The steps that saves to come, or under way, may refer to in `tier`, where `ended` is committed now.
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
