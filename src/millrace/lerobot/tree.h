// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of a dataset, listed once. The checks then look paths up without asking the server. Reading is
// thread-safe.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/file_time.h"
#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/lerobot/report.h"
#include "millrace/storage/url.h"

namespace millrace::lerobot {

struct TreeFile {
  std::string path;  // below the root, '/' between folders
  int64_t size = 0;
  std::string version;
  FileTime modified;
};

class Tree {
 public:
  Tree() = default;
  // Errors: not_found (nothing is below `root`), those of Storage::list.
  [[nodiscard]] static Result<Tree> list(const Location& root);
  // Lists the files whose path begins with `prefix`, sorted by path; may be none. Errors: those of Storage::list.
  [[nodiscard]] static Result<std::vector<TreeFile>> files_below(const Location& root, std::string_view prefix);
  // Makes a tree of files that were listed before, sorted by path.
  static Tree of(Location root, std::vector<TreeFile> files);

  const Location& root() const { return root_; }
  bool is_local() const { return root_.storage->capabilities().is_local(); }
  std::span<const TreeFile> files() const { return files_; }  // by path
  const TreeFile* find(std::string_view path) const;
  // Returns the files whose path begins with `prefix`.
  std::span<const TreeFile> below(std::string_view prefix) const;
  int64_t bytes() const;

  // Opens a file by its path below the root. Errors: not_found, those of open_read.
  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open(std::string_view path) const;
  // Errors: those of open(); resource_exhausted above `limit_bytes`.
  [[nodiscard]] Result<std::string> read(std::string_view path, int64_t limit_bytes) const;

 private:
  Location root_;
  std::vector<TreeFile> files_;
};

// Returns the number of threads to read the tree with: one per processor for local files, many more for a service with
// its latency.
int threads_for(const Tree& tree, int wanted);

// Checks LR005, LR006, LR009, LR022, LR071 and LR072, which concern names, sizes and links. `pointers` gets the paths
// of Git LFS pointers, sorted. Errors: those of reading.
[[nodiscard]] Status check_tree(const Tree& tree, Report& report, std::vector<std::string>& pointers);

}  // namespace millrace::lerobot
