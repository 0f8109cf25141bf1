// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: listings, and leftovers of dead writers. Thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

// One name in a directory.
struct DirectoryEntry {
  std::string name;  // a directory's ends in '/', so that byte order of names is byte order of keys
  ObjectKind kind = ObjectKind::kFile;
  bool is_directory() const { return name.ends_with('/'); }
};
struct Directory {
  uint64_t device = 0, inode = 0;
  std::vector<DirectoryEntry> entries;  // in byte order
};
// The same as in ListOptions.
struct DirectoryOptions {
  bool follow_links = true;
  bool others = false;
};
// Unfinished writes are listed too. A directory that does not exist is empty.
[[nodiscard]] Result<Directory> read_directory(Syscalls& sys, const std::string& path,
                                               const DirectoryOptions& options = {});

// The directories from the start of a walk to here. A link to one of them ends the walk there instead of looping.
class WalkPath {
 public:
  bool contains(const Directory& directory) const;
  // False when the directory is on the path already, or is empty.
  bool enter(const Directory& directory);
  // Call when leaving an entry that turned out to be no directory.
  void enter_nothing() { inodes_.emplace_back(0, 0); }
  void leave() { inodes_.pop_back(); }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> inodes_;
};

// "a/b/" of "a/b/c": the directory of keys with this prefix; "" for the root.
std::string_view directory_part(std::string_view prefix);

// A listing between two pages. Keeps the directories on its path, so that the next page need not read them again. For
// one thread at a time.
class ListWalk {
 public:
  // Starts behind `options.page_token`.
  ListWalk(std::string_view prefix, const ListOptions& options) : prefix_(prefix), options_(options) {}
  [[nodiscard]] Result<ListPage> page(const Context& context, int64_t max_keys);
  // Whether these ask for the page after the last one.
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

// As Storage::list, list_uploads, abort_uploads. REQUIRES: checked arguments.
[[nodiscard]] Result<ListPage> list_objects(const Context& context, std::string_view prefix,
                                            const ListOptions& options);
[[nodiscard]] Result<std::vector<ObjectInfo>> list_local_uploads(const Context& context, std::string_view prefix);
// The path of an upload that list_uploads found. Errors: invalid_argument for any other upload.
[[nodiscard]] Result<std::string> upload_path(const Context& context, const ObjectInfo& upload, std::string_view what);
[[nodiscard]] Status abort_local_uploads(const Context& context, std::span<const ObjectInfo> uploads);

}  // namespace millrace::local
