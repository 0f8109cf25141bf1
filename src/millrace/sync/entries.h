// SPDX-License-Identifier: Apache-2.0
#pragma once

// One side of a copy as a stream: everything below a location in byte order of its path, page by page, so that ten
// million keys need no more memory than ten thousand. What is no plain file comes too, and says what it is. What
// Millrace itself keeps (folders named ".millrace") is left out. For one thread; the next page is fetched ahead on
// another.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/storage/url.h"
#include "millrace/sync/filter.h"
#include "millrace/sync/key_range.h"

namespace millrace::sync {

// The folder for what Millrace keeps beside a user's objects: hashes, records.
inline constexpr std::string_view kHiddenFolder = ".millrace";

struct Entry {
  enum class Kind {
    kFile,
    kMarker,      // an empty object "folder/", which some tools make so that a folder shows
    kLink,        // a symbolic link that is not followed, or leads nowhere or in a circle
    kSpecial,     // a socket, pipe or device
    kUnreadable,  // ObjectKind::kUnreadable
    kFolder,      // an empty folder, where WalkOptions ask for them
    kIllegal,     // a key that no path can be: "a//b", "../a", "a/" with content
  };
  Kind kind = Kind::kFile;
  std::string path;  // below the location, without '/' at its ends unless it is kMarker, kFolder, kIllegal or a circle
  ObjectInfo info;   // as listed; `key` is the whole key
};

// "a symbolic link", "a folder marker", ...
std::string_view entry_kind_name(Entry::Kind kind);
// Of what is listed, whatever its key; kFile for a file.
Entry::Kind entry_kind(ObjectKind kind);

struct WalkOptions {
  bool follow_links = false;
  bool empty_folders = false;
  bool hidden = false;             // also what Millrace keeps
  const Filter* filter = nullptr;  // what does not pass is left out; must outlive the walk
  std::stop_token stop;
  const KeyRange* range = nullptr;  // only the paths in it; must outlive the walk
};

class EntryWalk {
 public:
  EntryWalk(const Location& root, const WalkOptions& options);
  ~EntryWalk();

  // The next entry; std::nullopt after the last. Errors: those of Storage::list, cancelled, unsupported (a storage that
  // lists out of order). After an error the walk is over.
  [[nodiscard]] Result<std::optional<Entry>> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "dir/" for the location of a folder, "" for a root: what keys below it begin with.
std::string prefix_of(const Location& folder);
// What is behind the last '/' of a key.
std::string_view name_of(std::string_view key);
// Whether a component of `path` is kHiddenFolder.
bool is_hidden(std::string_view path);

}  // namespace millrace::sync
