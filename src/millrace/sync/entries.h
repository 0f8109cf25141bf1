// SPDX-License-Identifier: Apache-2.0
#pragma once

// Walks one side of a copy: returns all entries below a location in byte order of the paths. Lists page by page, so
// ten million keys need no more memory than ten thousand. Also returns entries that are no plain files, with their
// kind. Leaves out folders named ".millrace", which belong to Millrace itself. For one thread; another thread fetches
// the next page ahead.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/storage/url.h"
#include "millrace/sync/filter.h"
#include "millrace/sync/key_range.h"

namespace millrace::sync {

// The folder in which Millrace keeps hashes and records next to a user's objects.
inline constexpr std::string_view kHiddenFolder = ".millrace";

struct Entry {
  enum class Kind {
    kFile,
    kMarker,      // an empty object "folder/", which some tools create to show a folder
    kLink,        // a symbolic link that is not followed, is broken or leads in a circle
    kSpecial,     // a socket, pipe or device
    kUnreadable,  // ObjectKind::kUnreadable
    kFolder,      // an empty folder, with WalkOptions::empty_folders
    kIllegal,     // a key that no path can be: "a//b", "../a", "a/" with content
  };
  Kind kind = Kind::kFile;
  std::string path;  // below the location, without '/' at its ends unless it is kMarker, kFolder, kIllegal or a circle
  ObjectInfo info;   // from the listing; `key` is the whole key
};

// Returns "a symbolic link", "a folder marker", ...
std::string_view entry_kind_name(Entry::Kind kind);
// Returns the kind that a listing gives, for any key; kFile for a file.
Entry::Kind entry_kind(ObjectKind kind);

struct WalkOptions {
  bool follow_links = false;
  bool empty_folders = false;
  bool hidden = false;             // also the folders that Millrace keeps
  bool own_marker = false;         // also the marker of the location itself, with an empty path
  const Filter* filter = nullptr;  // leaves out entries that do not pass; must outlive the walk
  std::stop_token stop;
  const KeyRange* range = nullptr;  // only paths in this range; must outlive the walk
};

class EntryWalk {
 public:
  EntryWalk(const Location& root, const WalkOptions& options);
  ~EntryWalk();

  // Returns the next entry; std::nullopt after the last. Errors: those of Storage::list, cancelled, unsupported (a
  // storage that lists out of order). After an error the walk is over.
  [[nodiscard]] Result<std::optional<Entry>> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the prefix of the keys below a folder: "dir/", or "" for a root.
std::string prefix_of(const Location& folder);
// Whether a component of `path` is kHiddenFolder.
bool is_hidden(std::string_view path);

}  // namespace millrace::sync
