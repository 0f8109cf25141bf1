// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a robot dataset and checks it against the rules LR001 to LR077. Reads only metadata, footers and columns of
// Parquet files, and the index boxes of videos, by ranges. Decodes frames if a FrameProbe is given. Writes nothing.
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
  GrootVersion groot = GrootVersion::kNone;  // not kNone: also checks LR060 and LR063 to LR070
  std::string language_key;                  // requested by the modality config; empty: unknown
  int64_t policy_horizon = 0;                // steps that the policy looks ahead; 0: unknown
  bool rows = true;                          // false: reads no column
  FrameProbe* frames = nullptr;              // decodes some frames of each episode (LR053); null: none is decoded
  int64_t frames_an_episode = 5;             // includes the first and the last
  std::vector<std::string> ignore = {};      // "LR013 -- why": as a line of .millrace-ignore in the dataset
  int64_t most_per_rule = 20;                // most findings per rule; 0: all
  int threads = 0;                           // 0: one per processor, or 16 for a service
  Progress* progress = nullptr;              // counts files; null: not reported
  std::stop_token stop;
};

struct Validation {
  std::string version;  // as in info.json
  std::vector<Finding> findings;
  int64_t episodes = 0, frames = 0, files = 0;
  int64_t videos = 0;          // videos whose boxes were read
  int64_t videos_decoded = 0;  // videos of which frames were decoded
};

// Reads the files of meta/. Reports LR001 to LR003, LR006, LR007, LR010, LR015, LR019, LR028 to LR030, LR032, LR034,
// LR036, LR055. Statistics of episodes are most of the bytes; readers of frames skip them with `stats`. Errors:
// not_found (the dataset does not exist), unsupported (no library to read Parquet, or a set whose frames are stored in
// Lance tables), cancelled, those of the storage.
[[nodiscard]] Result<Dataset> read_dataset(const Location& root, Report& report,
                                           StatsOfEpisodes stats = StatsOfEpisodes::kRead);
// Reads a dataset whose files were listed before.
[[nodiscard]] Result<Dataset> read_dataset(Tree tree, Report& report, StatsOfEpisodes stats);

// Errors: those of read_dataset. Faults of the dataset are findings, not errors.
[[nodiscard]] Result<Validation> validate_dataset(const Location& root, const ValidateOptions& options = {});

}  // namespace millrace::lerobot
