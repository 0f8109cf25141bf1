// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes one save into one tier, from the image or from the nearest tier's file, and commits it there.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/commit/references.h"
#include "millrace/checkpoint/save/save.h"
#include "millrace/checkpoint/save/saver_core.h"
#include "millrace/checkpoint/snapshot/live_tensors.h"
#include "millrace/checkpoint/snapshot/rank_file.h"
#include "millrace/checkpoint/snapshot/workspace.h"

namespace millrace::checkpoint {

// The tensors that a save writes, and the tensors for which it refers to files of earlier steps.
struct PartChoice {
  std::shared_ptr<const RankFile> file;
  std::optional<RankFile::Hashes> hashes{};  // hashes of `file`; nullopt: not known yet
  Referred referred{};
};

// State that all tiers of one save share. The first tier that writes the image makes the choice for all tiers, because
// it turns the image into that of the chosen file. Thread-safe.
struct SaveSource {
  std::shared_ptr<const RankFile> file;  // plan with all tensors
  std::shared_ptr<const Documents> documents;
  std::shared_ptr<LiveTensors> live;  // tensors to write instead of the image; nullptr: the image
  // By tier: the memory that `live` goes through. Empty: an older save that hangs in the tier still uses the memory.
  std::vector<std::span<std::byte>> through{};
  Mutex choosing;
  std::optional<Result<PartChoice>> choice GUARDED_BY(choosing);
};

// Makes the job that writes a save into `tier`, from the image or from the nearest tier's file, and commits it there.
// This call reserves the image until the job has read it. `before`: the previous save that goes to this tier; nullptr:
// none.
std::function<void()> make_tier_job(std::shared_ptr<Core> core, std::shared_ptr<Workspace> work,
                                    std::shared_ptr<Save> save, std::shared_ptr<Save> before, size_t tier,
                                    std::shared_ptr<SaveSource> source);

}  // namespace millrace::checkpoint
