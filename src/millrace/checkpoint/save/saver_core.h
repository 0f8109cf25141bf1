// SPDX-License-Identifier: Apache-2.0
#pragma once

// State that the calling thread of a Saver and its background threads share. Thread-safe where a comment says so.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/commit/commit.h"
#include "millrace/checkpoint/commit/retention.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/save/base_parts.h"
#include "millrace/checkpoint/save/save.h"
#include "millrace/checkpoint/save/stuck_saves.h"
#include "millrace/checkpoint/snapshot/rank_file.h"
#include "millrace/checkpoint/snapshot/staging.h"
#include "millrace/checkpoint/snapshot/workspace.h"

namespace millrace::checkpoint {

// Time that a storage call gets to end after its save was abandoned.
inline constexpr std::chrono::seconds kStopGrace{5};

// One folder of checkpoints. Its saves end one after the other, so only the save that is ending uses `sweep`.
struct Tier {
  explicit Tier(TierOptions chosen) : options(std::move(chosen)) {}
  const TierOptions options;
  std::atomic<bool> sweep{true};  // files of earlier attempts or of a failed save may need removal
  Mutex cleaning;                 // saves that were given up may end at the same time
  KnownSteps known GUARDED_BY(cleaning);
};

// Memory of one tier that larger saves go through in pieces. A job of the tier uses it while `busy`.
struct ThroughMemory {
  StagedBuffer buffer;
  std::atomic<bool> busy{false};
};

// State that the calling thread and the background threads share.
struct Core {
  Core(Location root, const SaverOptions& chosen)
      : options(chosen),
        memory(share_of_node(chosen.memory_bytes), std::ssize(chosen.tiers)),
        through(chosen.tiers.size() + 1),
        stuck(chosen.tiers.size() + 1) {
    for (const TierOptions& tier : options.tiers) tiers.emplace_back(tier);
    tiers.emplace_back(TierOptions{.root = std::move(root), .keep = options.keep, .save_every = options.save_every});
  }

  // Returns the nearest tier that all ranks see.
  size_t shared_tier() const {
    size_t at = 0;
    while (tiers[at].options.node_local) ++at;
    return at;
  }
  std::vector<Save::TierTarget> targets_of(int64_t step) const {
    std::vector<Save::TierTarget> targets;
    for (const Tier& tier : tiers) targets.push_back({tier.options.root.url, goes_to(targets.size(), step)});
    return targets;
  }
  bool goes_to(size_t tier, int64_t step) const {
    const int64_t every = tiers[tier].options.save_every;
    return every <= 1 || step % every == 0;
  }
  void set_busy(int64_t step, bool is_busy) {
    MutexLock lock(mutex);
    if (is_busy)
      busy.insert(step);
    else
      busy.erase(step);
  }
  std::vector<int64_t> busy_steps() {
    MutexLock lock(mutex);
    return {busy.begin(), busy.end()};
  }
  // Returns how long a save() waits for the previous save, and for storage that does not answer.
  std::chrono::milliseconds patience() const { return std::max(options.commit_timeout, options.tier_timeout); }
  // Returns the memory that a save may use for its snapshot in `next`: all but the images of saves that hang in
  // storage.
  int64_t image_room(const Workspace& next) const {
    int64_t room = memory.image_room();
    if (room == INT64_MAX) return room;
    room += next.image.bytes();
    for (const ThroughMemory& each : through) room += each.busy ? 0 : each.buffer.bytes();
    return room;
  }
  // Returns the space that the part of a save needs: as much as the last part took, when that left out unchanged
  // tensors.
  int64_t space_for(const RankFile& file) {
    const auto before = options.refer_unchanged ? bases.find(std::vector<bool>(tiers.size(), false)) : nullptr;
    return before ? std::min(before->file_bytes, file.bytes()) : file.bytes();
  }
  // Checks that this attempt may save the step in `tier` and has the space.
  [[nodiscard]] Status check_storage(size_t tier, int64_t step, int64_t bytes) const {
    const Location& root = tiers[tier].options.root;
    RETURN_IF_ERROR(check_step_open(root, step, options.attempt));
    return check_space(*root.storage, prefix_below(root), bytes, fmt::format("step {} in {}", step, root.url));
  }

  // Returns one rank's share of a cap for the whole node, in bytes; 0: no cap.
  static int64_t share_of_node(int64_t bytes) { return bytes == 0 ? 0 : std::max<int64_t>(bytes / local_ranks(), 1); }

  const SaverOptions options;
  StagingMemory memory;
  std::vector<ThroughMemory> through;  // by tier
  std::deque<Tier> tiers;              // nearest first; the last is the root
  Metrics metrics;
  std::stop_source stop;
  StuckSaves stuck;
  std::optional<WrittenRecord> part;      // from save_part() until commit()
  BaseParts bases;                        // parts that saves may refer to; with `refer_unchanged`
  std::atomic<bool> said_through{false};  // the log has said that saves are larger than their memory
  std::atomic<bool> looked_for_base{false};
  std::atomic<int64_t> referred_bytes{0};
  Mutex mutex;
  std::set<int64_t> busy GUARDED_BY(mutex);  // with tiers: steps that have not ended in all tiers
};

// The documents that a save stores beside the tensors. Without `state` the part waits for commit().
struct Documents {
  std::optional<std::string> state;
  std::string rank_state;
  StepMetrics metrics{};
  std::optional<Lineage> line{};  // the line that the step continues
};

}  // namespace millrace::checkpoint
