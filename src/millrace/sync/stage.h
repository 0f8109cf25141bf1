// SPDX-License-Identifier: Apache-2.0
#pragma once

// Training data brought to where it is used, as one step that proves itself: the bucket made if asked for, the data
// uploaded, what is there listed and held against the source, a sample downloaded, unpacked and checked. Thread-safe.

#include <functional>
#include <stop_token>
#include <string>

#include "millrace/sync/sync.h"

namespace millrace::sync {

// One thing that was done, or with dry_run would be.
struct StageStep {
  enum class Kind { kBucket, kUpload, kList, kSample, kUnpack };
  Kind kind = Kind::kUpload;
  std::string detail;  // text for people: "1,203 objects, 12.3 GB; all 1,203 files of the source are there"
};
std::string_view step_name(StageStep::Kind kind);  // "bucket", "upload", "list", "sample", "unpack"

struct StageOptions {
  bool create_bucket = false;  // s3://: make the bucket where there is none
  // The file of the source, by its path below it, that is downloaded as a sample; empty: the smallest archive (tar,
  // also in gzip or zstd), or where there is none the smallest file with content.
  std::string sample;
  std::string sample_dir;  // where it goes and stays; empty: a folder for temporary files, and it does not stay
  SyncOptions sync;        // options of the upload; dry_run holds for all steps
  std::function<void(const StageStep&)> on_step;
};

struct StageReport {
  bool bucket_made = false;  // the bucket was made, or would be
  SyncReport upload;
  int64_t objects = 0;  // at the target
  int64_t bytes = 0;
  std::string sample;        // its path; empty where none was taken
  int64_t sample_bytes = 0;  // downloaded
  int64_t members = 0;       // files in it
  int64_t unpacked_bytes = 0;
  double seconds = 0;
  Status end;  // status of the step that failed, and was the last
};

// Errors of the arguments; what goes wrong in a step is in the report: those of sync; not_found (no bucket, and none
// was to be made; no such sample); corruption: a file of the source is not at the target with its content, the sample
// came back with other bytes, or is damaged inside (an archive that does not unpack, a JSON or .npy member that is
// none).
[[nodiscard]] Result<StageReport> stage(const std::string& source, const std::string& target,
                                        const StageOptions& options = {}, std::stop_token stop = {},
                                        Progress* progress = nullptr);

}  // namespace millrace::sync
