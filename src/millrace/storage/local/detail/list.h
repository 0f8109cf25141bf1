// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: lists objects, and unfinished writes of dead writers. Thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

// One name in a directory.
struct DirectoryEntry {
  std::string name;  // a directory name ends in '/', so that names sort like keys
  ObjectKind kind = ObjectKind::kFile;
  bool is_directory() const { return name.ends_with('/'); }
};
struct Directory {
  uint64_t device = 0, inode = 0;
  std::vector<DirectoryEntry> entries;  // in byte order
};
// The options of the same names in ListOptions.
struct DirectoryOptions {
  bool follow_links = true;
  bool others = false;
};
// Reads a directory, including unfinished writes. A missing directory is empty.
[[nodiscard]] Result<Directory> read_directory(Syscalls& sys, const std::string& path,
                                               const DirectoryOptions& options = {});

// The directories from the start of a walk to the current one. A link to one of them is not entered, so that the walk
// does not loop.
class WalkPath {
 public:
  bool contains(const Directory& directory) const;
  // Adds the directory to the path. Returns false when it is already on the path, or is empty.
  bool enter(const Directory& directory);
  // Call instead of enter() for an entry that turned out to be no directory.
  void enter_nothing() { inodes_.emplace_back(0, 0); }
  void leave() { inodes_.pop_back(); }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> inodes_;
};

// Returns "a/b/" for "a/b/c": the directory of keys with this prefix; "" for the root.
std::string_view directory_part(std::string_view prefix);

// The state of a listing between two pages. Keeps the directories on its path, so that the next page need not read
// them again. For one thread at a time.
class ListWalk {
 public:
  // Starts after `options.page_token`.
  ListWalk(std::string_view prefix, const ListOptions& options) : prefix_(prefix), options_(options) {}
  [[nodiscard]] Result<ListPage> page(const Context& context, int64_t max_keys);
  // Whether these arguments request the page after the last one.
  bool continues(std::string_view prefix, const ListOptions& options) const;

 private:
  struct Level {
    std::string dir;  // "" or ends in '/'
    Directory directory;
    size_t at = 0;
  };
  [[nodiscard]] Status enter(const Context& context, const std::string& dir);
  // Lists `dir` itself, not its content.
  void show(const std::string& dir, ObjectKind kind);
  bool was_before(const std::string& key, bool descends) const;

  const std::string prefix_;
  const ListOptions options_;
  bool started_ = false;
  std::vector<Level> levels_;
  WalkPath path_;
  std::string last_;  // the last key or prefix of the last page
};

// Implement Storage::list, list_uploads and abort_uploads. REQUIRES: checked arguments.
[[nodiscard]] Result<ListPage> list_objects(const Context& context, std::string_view prefix,
                                            const ListOptions& options);
[[nodiscard]] Result<std::vector<ObjectInfo>> list_local_uploads(const Context& context, std::string_view prefix);
// Returns the path of an upload that list_uploads found. Errors: invalid_argument for any other upload.
[[nodiscard]] Result<std::string> upload_path(const Context& context, const ObjectInfo& upload, std::string_view what);
[[nodiscard]] Status abort_local_uploads(const Context& context, std::span<const ObjectInfo> uploads);

}  // namespace millrace::local
