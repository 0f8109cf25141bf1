// SPDX-License-Identifier: Apache-2.0
#pragma once

// The states that a power cut may leave of a directory tree, as weak as POSIX allows:
//
//  - of a file, the content of the last fdatasync or fsync, and of what was written since any part: blocks kept,
//    zeroed or missing, the length anything between;
//  - of a directory, the names of the last fsync of that directory, and of each name changed since any of its states.
//
// The model follows a tree from its creation, because it sees every call. crash() then changes the real tree to one of
// these states. For tests; files and directories only, and directories are never renamed. Not thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

class CrashModel {
 public:
  // The content of `root` at this time counts as on the disk.
  explicit CrashModel(std::string root);

  void opened(int fd, const std::string& path, bool may_create);
  void made_unnamed(int fd);  // O_TMPFILE
  void named(int fd, const std::string& path);
  void closed(int fd);
  void wrote(int fd, int64_t offset, std::string_view bytes);
  void truncated(int fd, int64_t size);
  void file_synced(int fd);
  void directory_synced(int fd);
  void all_synced();
  void renamed(const std::string& from, const std::string& to);
  void linked(const std::string& from, const std::string& to);
  void unlinked(const std::string& path);
  void made_directory(const std::string& path);

  // Rolls the real tree back to a state that `random` chooses, and continues from it.
  void crash(std::mt19937_64& random);

 private:
  struct File {
    std::string synced, current;
  };
  enum class Kind { kNothing, kFile, kDirectory };
  struct Entry {
    Kind kind = Kind::kNothing;
    size_t file = 0;  // index in files_
  };
  // The states of a name since the last sync of its directory, that one first.
  using History = std::vector<Entry>;
  using Names = std::map<std::string, History>;

  void load();
  bool follows(const std::string& path) const { return path.starts_with(root_ + "/"); }
  History& history_of(const std::string& path);
  void set(const std::string& path, Entry entry);
  File* file_of(int fd);
  void restore(const std::string& directory, const std::map<std::string, Names>& before,
               std::map<size_t, std::string>& contents, std::mt19937_64& random);

  const std::string root_;
  std::vector<File> files_;
  std::map<std::string, Names> directories_;  // by path
  std::map<int, size_t> open_files_;
  std::map<int, std::string> open_directories_;
};

}  // namespace millrace
