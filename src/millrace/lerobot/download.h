// SPDX-License-Identifier: Apache-2.0
#pragma once

// Downloads a dataset from the Hugging Face Hub (storage/hub/hub.h) by a sync from one commit. The target's
// .millrace/hub.json records which commit it holds and whether the download is complete. A killed run continues with
// that commit, even if the branch or tag has moved since. Thread-safe.

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/hub/hub.h"
#include "millrace/sync/sync.h"

namespace millrace::lerobot {

inline constexpr std::string_view kHubNote = ".millrace/hub.json";

struct DownloadOptions {
  std::string name;      // "pusht" (organisation lerobot), "org/name", or hf://datasets/org/name[@revision]
  std::string revision;  // empty: the revision in `name`, else the newest version tag, else main
  std::string target;    // a path or URL; empty: the last part of the name, in the current folder
  // Patterns of sync/filter.h. With `include`, only files that match one of its patterns are downloaded. A file that
  // matches an `exclude` is never downloaded.
  std::vector<std::string> include, exclude;
  bool replace = false;    // replaces another commit in the target, and removes the files this commit lacks
  sync::SyncOptions sync;  // its filter and delete_extra are set here
};

struct DownloadReport {
  std::string repo;      // "lerobot/pusht"
  std::string revision;  // the chosen revision: "v3.0"
  std::string commit;
  std::string target;
  std::vector<std::string> warnings;  // about the dataset or the chosen revision
  sync::SyncReport sync;
};

// Returns the tag of the newest dataset version that Millrace reads, such as "v3.0"; nullopt when no tag is a version.
std::optional<HubRef> newest_version(const std::vector<HubRef>& refs);

// Returns the Filter rules for the patterns of DownloadOptions::include and ::exclude.
std::vector<std::string> filter_rules(const std::vector<std::string>& include, const std::vector<std::string>& exclude);

// Errors: invalid_argument (a name, a pattern), not_found (naming what is there instead), already_exists (the target
// holds another commit, or another dataset), those of sync::sync. Failures of single files are in the report.
[[nodiscard]] Result<DownloadReport> download_dataset(const DownloadOptions& options, const std::stop_token& stop = {},
                                                      Progress* progress = nullptr);

}  // namespace millrace::lerobot
