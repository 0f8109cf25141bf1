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

// How convert_dataset and the functions of edit.h make datasets.
struct MakeOptions {
  double data_file_mb = 100;  // a file of v3.0 takes episodes up to this size; LeRobot's defaults
  double video_file_mb = 200;
  bool dry_run = false;          // counts what would be made, and writes nothing
  int threads = 0;               // 0: one a processor, 16 for a service
  Progress* progress = nullptr;  // counts the episode's rows and each of its videos as an item; null: nobody looks
  std::stop_token stop;
};

struct MadeDataset {
  std::string name;     // of a part; empty: the target itself
  std::string version;  // "v3.0"
  int64_t episodes = 0, frames = 0;
  int64_t files = 0;           // of the result; of a dry run at least these
  int64_t reused = 0;          // of these, left by an earlier run
  int64_t cut_episodes = 0;    // of a camera, that begin or end within a video of the source
  int64_t copied_videos = 0;   // written with copied packets only
  int64_t encoded_videos = 0;  // written with encoded frames among them, because a copy would not have been exact
  double min_psnr_db = 0;      // of the worst encoded frame; 0 if no frame was encoded
  std::vector<std::string> inherited;  // rules of error level that a source breaks, and so the result
  std::vector<std::string> proposed;   // entries of modality.json that were proposed from names, as lines of a spec
};

struct ConvertTarget {
  Version version = Version::kV30;  // kV30, kV21 or kV20
  bool groot = false;               // GR00T's flavour of kV21: with meta/modality.json and its meta/stats.json
  // The text of a spec for modality.json (modality.h). What it leaves out is proposed from names; where it is empty,
  // the source's own modality.json is kept.
  std::string modality_spec;
};

// Makes a dataset in `target`, a new folder on this machine. All files are written to `target`.partial; a later run
// with the same source continues there. Then the dataset is validated and the folder renamed. Statistics of each
// episode that the source lacks (v2.0) are computed. v2.0 keeps none of episodes: its meta/stats.json has mean, std,
// max and min over all rows, and of cameras those of the episodes together; where the source has modality.json, also
// q01 and q99 of float features, which GR00T wants. Errors: already_exists, invalid_argument (the source has that
// version already; the spec), corruption (the source's lists cannot be read; the result breaks a rule of error level
// that the source does not break), unsupported (a library is missing), cancelled, those of reading and writing.
[[nodiscard]] Result<MadeDataset> convert_dataset(const Location& source, const std::string& target,
                                                  const ConvertTarget& to, const MakeOptions& options);

}  // namespace millrace::lerobot
