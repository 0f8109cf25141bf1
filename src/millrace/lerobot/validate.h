// SPDX-License-Identifier: Apache-2.0
#pragma once

// A robot dataset read and held against the rules LR001 to LR077. Only metadata, footers and columns of Parquet, and
// the index boxes of videos are read, by ranges; frames are decoded where a FrameProbe is given. Nothing is written.
// Functions are thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/episodes.h"
#include "millrace/lerobot/frame_probe.h"
#include "millrace/lerobot/report.h"

namespace millrace::lerobot {

enum class GrootVersion { kNone, kN15, kN16, kN17 };

struct ValidateOptions {
  GrootVersion groot = GrootVersion::kNone;  // also the rules LR060 and LR063 to LR070
  std::string language_key;                  // that the modality config asks for; empty: not known
  int64_t policy_horizon = 0;                // steps that the policy looks ahead; 0: not known
  bool rows = true;                          // false: no column is read
  FrameProbe* frames = nullptr;              // decodes some frames of each episode (LR053); null: none is decoded
  int64_t frames_an_episode = 5;             // first and last among them
  std::vector<std::string> ignore = {};      // "LR013 -- why": as a line of .millrace-ignore in the dataset
  int64_t most_per_rule = 20;                // findings; 0: all
  int threads = 0;                           // 0: one a processor, 16 for a service
  Progress* progress = nullptr;              // counts files; null: nobody looks
  std::stop_token stop;
};

struct Validation {
  std::string version;  // as info.json has it
  std::vector<Finding> findings;
  int64_t episodes = 0, frames = 0, files = 0;
  int64_t videos = 0;          // whose boxes were read
  int64_t videos_decoded = 0;  // of which frames were decoded
};

// Reads what meta/ holds. What is wrong with it goes to `report`: LR001 to LR003, LR006, LR007, LR010, LR015, LR019,
// LR028 to LR030, LR032, LR034, LR036, LR055. Statistics of episodes are most of the bytes; readers of frames
// skip them. Errors: not_found (nothing is there), unsupported (no library to read Parquet, or a set whose frames lie
// in Lance tables), cancelled, those of the storage.
[[nodiscard]] Result<Dataset> read_dataset(const Location& root, Report& report,
                                           StatsOfEpisodes stats = StatsOfEpisodes::kRead);
// The same of files that were listed before.
[[nodiscard]] Result<Dataset> read_dataset(Tree tree, Report& report, StatsOfEpisodes stats);

// Errors: as of read_dataset. What is wrong with the dataset is a finding, and no error.
[[nodiscard]] Result<Validation> validate_dataset(const Location& root, const ValidateOptions& options = {});

}  // namespace millrace::lerobot
