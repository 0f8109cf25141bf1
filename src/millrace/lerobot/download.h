// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gets a dataset from the Hugging Face Hub (storage/hub/hub.h) by a sync from one commit. The target's
// .millrace/hub.json says which commit it holds, and whether all of it arrived. A run that was killed continues with
// that commit, wherever the branch or tag is by then. Thread-safe.

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
  std::string name;      // "pusht" (of the organisation lerobot), "org/name", or hf://datasets/org/name[@revision]
  std::string revision;  // empty: what `name` says; else the newest version tag; else main
  std::string target;    // a path or URL; empty: the last part of the name, in the current folder
  // Patterns of sync/filter.h. With `include`, only what matches one; in any case nothing that matches an `exclude`.
  std::vector<std::string> include, exclude;
  bool replace = false;    // a target that holds another commit gets this one, and loses the files that this one lacks
  sync::SyncOptions sync;  // its filter and delete_extra are set here
};

struct DownloadReport {
  std::string repo;      // "lerobot/pusht"
  std::string revision;  // as chosen: "v3.0"
  std::string commit;
  std::string target;
  std::vector<std::string> warnings;  // what a user should know of the dataset or the choice
  sync::SyncReport sync;
};

// "v3.0" of these tags: the newest version of the format that Millrace reads; nullopt when none is a version.
std::optional<HubRef> newest_version(const std::vector<HubRef>& refs);

// The rules of a Filter for the patterns: DownloadOptions::include and ::exclude.
std::vector<std::string> filter_rules(const std::vector<std::string>& include, const std::vector<std::string>& exclude);

// Errors: invalid_argument (a name, a pattern), not_found (naming what is there instead), already_exists (the target
// holds another commit, or another dataset), those of sync::sync. What goes wrong with single files is in the report.
[[nodiscard]] Result<DownloadReport> download_dataset(const DownloadOptions& options, const std::stop_token& stop = {},
                                                      Progress* progress = nullptr);

}  // namespace millrace::lerobot
