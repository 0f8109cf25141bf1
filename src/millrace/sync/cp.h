// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies or moves one object or a tree, as asked, without weighing whether it is needed. Thread-safe.

#include <stop_token>
#include <string>

#include "millrace/sync/sync.h"

namespace millrace::sync {

// With `recursive`, copies the tree below `source` to `target` (a sync with CompareBy::kNone and without deletions).
// Otherwise copies one object to the key `target`. Where `target` ends in '/', is a bucket or is an existing folder,
// the copy keeps its name and goes below it. Errors: those of sync; not_found; invalid_argument for a folder without
// `recursive`.
[[nodiscard]] Result<SyncReport> cp(const std::string& source, const std::string& target, bool recursive,
                                    const SyncOptions& options = {}, std::stop_token stop = {},
                                    Progress* progress = nullptr);

// cp, then removes from the source what is at the target, unless it changed meanwhile. Links and what filters leave out
// stay where they are. Nothing is removed after an error that ended the run early; a file that failed stays. Errors:
// those of cp; invalid_argument for options.follow_links.
[[nodiscard]] Result<SyncReport> mv(const std::string& source, const std::string& target, bool recursive,
                                    const SyncOptions& options = {}, std::stop_token stop = {},
                                    Progress* progress = nullptr);

// The kind of thing that `url` names: an object, or a folder (also a bucket, a root, a prefix with something below it).
struct Found {
  Location location;
  bool is_folder = false;
  ObjectInfo object;  // the object, unless it is a folder
};
// An object store may have an object and a folder of one name; this chooses.
enum class FindAs {
  kObject,  // the object, also for "dir/"
  kNamed,   // for "dir/" the folder, else the object
  kFolder,  // the folder
};
// Errors: not_found, those of open_url, stat and list.
[[nodiscard]] Result<Found> find(const std::string& url, FindAs as = FindAs::kNamed);

}  // namespace millrace::sync
