// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: listings and the leftovers of dead writers. Thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/local/files.h"

namespace millrace::local {

// One name in a directory; what is neither a file nor a directory (or a link to one) is left out.
struct DirectoryEntry {
  std::string name;  // of a directory: with '/' at the end, so that byte order of names is byte order of keys
  bool is_directory() const { return name.ends_with('/'); }
};
struct Directory {
  uint64_t device = 0, inode = 0;
  std::vector<DirectoryEntry> entries;  // in byte order
};
// Unfinished writes are listed too. A directory that does not exist is empty.
[[nodiscard]] Result<Directory> read_directory(Syscalls& sys, const std::string& path);

// The directories on the way from the start of a walk, so that a link to one of them ends the way instead of looping.
class WalkPath {
 public:
  // False when the directory is on the path already, or empty.
  bool enter(const Directory& directory);
  void leave() { inodes_.pop_back(); }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> inodes_;
};

// "a/b/" of "a/b/c", the directory in which keys with this prefix lie; "" for the root.
std::string_view directory_part(std::string_view prefix);

// As Storage::list, list_uploads, abort_uploads; arguments are checked.
[[nodiscard]] Result<ListPage> list_objects(const Context& context, std::string_view prefix,
                                            const ListOptions& options);
[[nodiscard]] Result<std::vector<ObjectInfo>> list_local_uploads(const Context& context, std::string_view prefix);
// The path of an upload that list_uploads found. Errors: invalid_argument when it cannot have been.
[[nodiscard]] Result<std::string> upload_path(const Context& context, const ObjectInfo& upload, std::string_view what);
[[nodiscard]] Status abort_local_uploads(const Context& context, std::span<const ObjectInfo> uploads);

}  // namespace millrace::local
