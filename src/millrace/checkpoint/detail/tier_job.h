// SPDX-License-Identifier: Apache-2.0
#pragma once

// One save in one tier, and what a rank does to commit it. Free functions that block; thread-safe.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/detail/live_tensors.h"
#include "millrace/checkpoint/detail/part_copy.h"
#include "millrace/checkpoint/detail/rank_file.h"
#include "millrace/checkpoint/detail/references.h"
#include "millrace/checkpoint/detail/saver_core.h"
#include "millrace/checkpoint/detail/workspace.h"

namespace millrace::checkpoint {

// `save` is committed in the tier `at`. What follows may fail without harm; a later save tries it again.
void follow_up(Core& core, size_t at, Save& save, const std::optional<Lineage>& line);

StepCommit commit_in(Core& core, size_t at, int64_t step, std::stop_token stop, std::function<void()> alive = {});

// Rank 0: creates the manifest once all parts are there. Other ranks: waits for it.
[[nodiscard]] Status commit_part(const Core& core, const StepCommit& commit, WrittenRecord record,
                                 const Documents& documents);

// Leaves word in the tier why this rank fails there. Where that fails too, the others wait for `commit_timeout`.
void tell_of_failure(const Core& core, size_t tier, int64_t step, const Error& cause);

// What a save writes, and what it leaves to files of earlier steps.
struct PartChoice {
  std::shared_ptr<const RankFile> file;
  std::optional<RankFile::Hashes> hashes{};  // of `file`; nullopt: not known yet
  Referred referred{};
};

// What all tiers of one save have in common. The choice is made once, by the first tier that writes the image, since
// the image then becomes that of the chosen file. Thread-safe.
struct SaveSource {
  std::shared_ptr<const RankFile> file;  // with all tensors
  std::shared_ptr<const Documents> documents;
  std::shared_ptr<LiveTensors> live;  // what to write instead of the image; nullptr: the image
  // By tier: what it goes through then. Empty: an older save hangs there and has it.
  std::vector<std::span<std::byte>> through{};
  Mutex choosing;
  std::optional<Result<PartChoice>> choice GUARDED_BY(choosing);
};

// The job that brings a save into `tier`, from the image or from the nearest tier's file to the commit. The image is
// held from now on. `before`: the last save that goes to this tier; nullptr: none.
std::function<void()> make_tier_job(std::shared_ptr<Core> core, std::shared_ptr<Workspace> work,
                                    std::shared_ptr<Save> save, std::shared_ptr<Save> before, size_t tier,
                                    std::shared_ptr<SaveSource> source);

}  // namespace millrace::checkpoint
