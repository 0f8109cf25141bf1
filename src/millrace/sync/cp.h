// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies or moves one object or a tree without checking whether the target is already equal. Thread-safe.

#include <stop_token>
#include <string>

#include "millrace/sync/sync.h"

namespace millrace::sync {

// With `recursive`, copies the tree below `source` to `target` (a sync with CompareBy::kNone and without deletions).
// Otherwise copies one object to the key `target`. If `target` ends in '/', is a bucket or is an existing folder, the
// copy keeps its name and goes below `target`. Errors: those of sync; not_found; invalid_argument for a folder without
// `recursive`.
[[nodiscard]] Result<SyncReport> cp(const std::string& source, const std::string& target, bool recursive,
                                    const SyncOptions& options = {}, std::stop_token stop = {},
                                    Progress* progress = nullptr);

// Copies as cp() does, then removes the copied objects from the source, unless they changed meanwhile. Links and
// filtered entries stay in the source. After an error that ends the run early, removes nothing. A file that failed
// stays. Errors: those of cp; invalid_argument for options.follow_links.
[[nodiscard]] Result<SyncReport> mv(const std::string& source, const std::string& target, bool recursive,
                                    const SyncOptions& options = {}, std::stop_token stop = {},
                                    Progress* progress = nullptr);

// The thing that a URL names: an object, or a folder (also a bucket, a root, or a prefix with an object below it).
struct Found {
  Location location;
  bool is_folder = false;
  ObjectInfo object;  // the object, unless it is a folder
};
// Chooses between an object and a folder of one name, which an object store may have.
enum class FindAs {
  kObject,  // the object, also for "dir/"
  kNamed,   // for "dir/" the folder, else the object
  kFolder,  // the folder
};
// Finds the thing that `url` names. Errors: not_found, those of open_url, stat and list.
[[nodiscard]] Result<Found> find(const std::string& url, FindAs as = FindAs::kNamed);

}  // namespace millrace::sync
