// SPDX-License-Identifier: Apache-2.0
#pragma once

// Brings training data to its place of use and proves the result. Creates the bucket if requested, uploads the data,
// lists the target and compares it with the source, and downloads, unpacks and checks a sample. Thread-safe.

#include <functional>
#include <stop_token>
#include <string>

#include "millrace/sync/sync.h"

namespace millrace::sync {

// One step that was done, or would be done without dry_run.
struct StageStep {
  enum class Kind { kBucket, kUpload, kList, kSample, kUnpack };
  Kind kind = Kind::kUpload;
  std::string detail;  // text for people: "1,203 objects, 12.3 GB; all 1,203 files of the source are there"
};
std::string_view step_name(StageStep::Kind kind);  // "bucket", "upload", "list", "sample", "unpack"

struct StageOptions {
  bool create_bucket = false;  // s3://: create the bucket if it is missing
  // The path, below the source, of the file to download as a sample; empty: the smallest archive (tar, also in gzip or
  // zstd), or if there is none, the smallest file with content.
  std::string sample;
  std::string sample_dir;  // folder that keeps the sample; empty: a temporary folder, removed afterwards
  SyncOptions sync;        // options of the upload; dry_run holds for all steps
  std::function<void(const StageStep&)> on_step;
};

struct StageReport {
  bool bucket_made = false;  // the bucket was made, or would be
  SyncReport upload;
  int64_t objects = 0;  // objects at the target
  int64_t bytes = 0;
  std::string sample;        // path of the sample; empty: none was taken
  int64_t sample_bytes = 0;  // downloaded
  int64_t members = 0;       // files in the sample
  int64_t unpacked_bytes = 0;
  double seconds = 0;
  Status end;  // status of the step that failed, which was the last
};

// Returns errors of the arguments only. Errors of a step are in the report: those of sync; not_found (the bucket is
// missing and create_bucket is not set; no such sample); corruption (a file of the source is not at the target with
// its content, the sample came back with other bytes, or is damaged inside: an archive that does not unpack, or an
// invalid JSON or .npy member).
[[nodiscard]] Result<StageReport> stage(const std::string& source, const std::string& target,
                                        const StageOptions& options = {}, std::stop_token stop = {},
                                        Progress* progress = nullptr);

}  // namespace millrace::sync
