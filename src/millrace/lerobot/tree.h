// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of a dataset, listed once; the checks then ask no server whether a path exists. Reading is thread-safe.

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
  // Those whose path begins with `prefix`, by path; also none. Errors: those of Storage::list.
  [[nodiscard]] static Result<std::vector<TreeFile>> files_below(const Location& root, std::string_view prefix);
  // A tree of files that were listed before, by path.
  static Tree of(Location root, std::vector<TreeFile> files);

  const Location& root() const { return root_; }
  bool is_local() const { return root_.storage->capabilities().is_local(); }
  std::span<const TreeFile> files() const { return files_; }  // by path
  const TreeFile* find(std::string_view path) const;
  // The files whose path begins with `prefix`.
  std::span<const TreeFile> below(std::string_view prefix) const;
  int64_t bytes() const;

  // Named by the path below the root. Errors: not_found, those of open_read.
  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open(std::string_view path) const;
  // Errors: as above; resource_exhausted above `limit_bytes`.
  [[nodiscard]] Result<std::string> read(std::string_view path, int64_t limit_bytes) const;

 private:
  Location root_;
  std::vector<TreeFile> files_;
};

// Threads to read the tree with: one a processor for files of this machine, many more for a service that is waited for.
int threads_for(const Tree& tree, int wanted);

// LR005, LR006, LR009, LR022, LR071 and LR072: what the names, sizes and links say. `pointers` gets the paths that are
// Git LFS pointers, by path. Errors: those of reading.
[[nodiscard]] Status check_tree(const Tree& tree, Report& report, std::vector<std::string>& pointers);

}  // namespace millrace::lerobot
