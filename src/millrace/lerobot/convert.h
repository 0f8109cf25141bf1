// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts datasets of LeRobot between versions. Tables keep their types and values. Videos are joined by copying
// packets, and cut by copying where that is exact (video/edit.h). The source is only read. Thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

// Options of convert_dataset and of the functions in edit.h.
struct MakeOptions {
  double data_file_mb = 100;  // largest size of a v3.0 file; LeRobot's defaults
  double video_file_mb = 200;
  bool dry_run = false;          // only counts the files and episodes to be made
  int threads = 0;               // 0: one per processor, or 16 for a service
  Progress* progress = nullptr;  // an episode's rows are one item, each of its videos another; null: not reported
  std::stop_token stop;
};

struct MadeDataset {
  std::string name;     // the part's name; empty: the target itself
  std::string version;  // "v3.0"
  int64_t episodes = 0, frames = 0;
  int64_t files = 0;                   // files of the result; a dry run gives the least possible number
  int64_t reused = 0;                  // files of the result that an earlier run had left
  int64_t cut_episodes = 0;            // episodes that begin or end within a source video, counted per camera
  int64_t copied_videos = 0;           // videos of copied packets only
  int64_t encoded_videos = 0;          // videos with encoded frames, because a copy would not be exact
  double min_psnr_db = 0;              // PSNR of the worst encoded frame; 0 if no frame was encoded
  std::vector<std::string> inherited;  // rules of error level that source and result break
  std::vector<std::string> proposed;   // modality.json entries proposed from names, as spec lines
};

struct ConvertTarget {
  Version version = Version::kV30;  // kV30, kV21 or kV20
  bool groot = false;               // GR00T's flavour of kV21: with meta/modality.json and its meta/stats.json
  // The text of a spec for modality.json (modality.h). Missing entries are proposed from names. If it is empty, the
  // source's own modality.json is kept.
  std::string modality_spec;
};

// Makes a dataset in `target`, a new folder on this machine. All files are written to `target`.partial; a later run
// with the same source continues there. Then the dataset is validated and the folder renamed. If the source lacks
// statistics of each episode (v2.0), they are computed. A v2.0 target keeps no statistics of episodes. Its
// meta/stats.json has mean, std, max and min over all rows; those of a camera are merged from its episodes. If the
// source has modality.json, it also has q01 and q99 of float features, which GR00T wants. Errors: already_exists,
// invalid_argument (the source has that version already; the spec), corruption (the source's lists cannot be read; the
// result breaks a rule of error level that the source does not break), unsupported (a library is missing), cancelled,
// those of reading and writing.
[[nodiscard]] Result<MadeDataset> convert_dataset(const Location& source, const std::string& target,
                                                  const ConvertTarget& to, const MakeOptions& options);

}  // namespace millrace::lerobot
