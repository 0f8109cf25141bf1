// SPDX-License-Identifier: Apache-2.0
#pragma once

// The list of a dataset's files, kept in a folder of this node between starts. A service lists 1000 files a request, so
// a set of 50,000 episodes takes hundreds of requests before its first frame. A kept list takes one, while the files
// below meta/ are those of the list. Whether the others are, too, is looked up while frames are read already.
// KeptFiles is thread-safe but for list(); FilesCheck is thread-safe.

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/lerobot/tree.h"

namespace millrace::lerobot {

class KeptFiles {
 public:
  // `folder` is one of this node, which is there and may hold other files.
  KeptFiles(const std::string& folder, Location root);

  // The kept list if each file below meta/ has the size and version that it says, else a new one, which is then kept.
  // What cannot be kept is a warning. Errors: those of Tree::list.
  [[nodiscard]] Result<Tree> list();
  bool was_kept() const { return was_kept_; }  // list() took the kept one

  // Lists all files and says which one of `tree` is another now, or gone, as the end of a sentence; empty: none.
  [[nodiscard]] Result<std::string> change_since(const Tree& tree, const std::stop_token& stop) const;
  // Whether a process of this node wrote the list, or found it true, within a minute.
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

// Looks in a thread of its own whether the files are still those of a kept list. If one is not, the list is forgotten.
class FilesCheck {
 public:
  // Both must outlive it.
  FilesCheck(const KeptFiles& kept, const Tree& tree);
  ~FilesCheck();

  // Unavailable, naming the file, from when one was found to be another.
  [[nodiscard]] Status state() const;

 private:
  void run();

  const KeptFiles& kept_;
  const Tree& tree_;
  std::stop_source stop_;
  mutable Mutex mutex_;
  std::string change_ GUARDED_BY(mutex_);
  Thread thread_;  // uses all others
};

}  // namespace millrace::lerobot
