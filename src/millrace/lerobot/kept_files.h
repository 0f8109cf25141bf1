// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps the list of a dataset's files in a folder of this node between starts. A service lists 1000 files per request,
// so a set of 50,000 episodes takes hundreds of requests before its first frame. Checking a kept list takes one
// request: the list is used if the files below meta/ are unchanged. Whether the other files are unchanged is checked
// while frames are already being read. KeptFiles is thread-safe except for list(); FilesCheck is thread-safe.

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/lerobot/tree.h"

namespace millrace::lerobot {

class KeptFiles {
 public:
  // `folder` must exist on this node. It may hold other files.
  KeptFiles(const std::string& folder, Location root);

  // Returns the kept list if each file below meta/ has the size and version in the list. Otherwise makes and keeps a
  // new list. Logs a warning if the list cannot be kept. Errors: those of Tree::list.
  [[nodiscard]] Result<Tree> list();
  bool was_kept() const { return was_kept_; }  // whether list() returned the kept list

  // Lists all files and tells which file of `tree` was replaced or removed, as the end of a sentence; empty: none.
  [[nodiscard]] Result<std::string> change_since(const Tree& tree, const std::stop_token& stop) const;
  // Whether a process of this node wrote the list, or found it correct, less than a minute ago.
  bool is_fresh() const;
  void note_true() const;
  void forget() const;

  const std::string& path() const { return path_; }
  const Location& root() const { return root_; }

 private:
  std::optional<std::vector<TreeFile>> read() const;
  void keep(const Tree& tree) const;

  const Location root_;
  const std::string path_;
  bool was_kept_ = false;
};

// Checks in its own thread whether the files are still those of a kept list. If one is not, deletes the list.
class FilesCheck {
 public:
  // REQUIRES: `kept` and `tree` outlive it.
  FilesCheck(const KeptFiles& kept, const Tree& tree);
  ~FilesCheck();

  // Returns unavailable, naming the file, once a file was found to be replaced.
  [[nodiscard]] Status state() const;

 private:
  void run();

  const KeptFiles& kept_;
  const Tree& tree_;
  std::stop_source stop_;
  mutable Mutex mutex_;
  std::string change_ GUARDED_BY(mutex_);
  Thread thread_;  // last member: uses all others
};

}  // namespace millrace::lerobot
