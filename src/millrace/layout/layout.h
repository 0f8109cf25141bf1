// SPDX-License-Identifier: Apache-2.0
#pragma once

// Creates and checks directory trees on the shared and local file systems of a cluster from one declaration: mounts to
// wait for, folders with owner and mode, stripes on Lustre, and how long files of a class stay. docs/layout.md lists
// the keys. All work below a mount goes through open directories and never follows a link. Thread-safe; two processes
// may apply the same declaration at once.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::layout {

struct Mount {
  std::string path;
  bool mountpoint = true;  // false: an existing plain directory
  std::chrono::seconds wait{300};
};

struct Stripe {
  int64_t count = 1;       // -1: all targets
  int64_t size_bytes = 0;  // 0: the file system's default
};

// The policy of a class of data.
struct Policy {
  std::string name;
  std::string tier;  // "lustre", "nfs", "local", or empty for any
  std::optional<Stripe> stripe;
  std::optional<std::chrono::seconds> max_age;  // clean() removes older files
};

struct Directory {
  std::string path;
  size_t mount = 0;  // index in Layout::mounts
  std::optional<size_t> policy;
  uint32_t mode = 0775;
  std::string owner, group;  // names or numbers; empty: no change
};

struct Layout {
  std::vector<Mount> mounts;
  std::vector<Policy> policies;
  std::vector<Directory> directories;  // sorted by path, each once
};

// Parses a declaration. Errors: invalid_argument with the place (no YAML, an unknown key, a value out of range, a
// mount at "/", a directory in no mount, a path with "..").
[[nodiscard]] Result<Layout> parse_layout(std::string_view text, std::string_view file);

struct MountState {
  std::string path, type;  // "lustre", "ext4"
  bool ready = false;
  int64_t size_bytes = 0, free_bytes = 0;
};

struct DirectoryState {
  std::string path;
  bool exists = false;
  uint32_t mode = 0;
  std::string owner, group;
  std::string stripe;                    // as lfs prints it; empty: no Lustre, or no lfs
  std::vector<std::string> differences;  // "mode 755, declared 775", "missing", "not mounted"
  std::vector<std::string> mended;       // differences that apply_layout() corrected
  bool created = false;                  // apply_layout() created it
};

struct Report {
  std::vector<MountState> mounts;
  std::vector<DirectoryState> directories;
};

// Compares the directories with the declaration and changes nothing. Errors: those of reading directories. A missing
// mount or directory is a state, not an error.
[[nodiscard]] Result<Report> show_layout(const Layout& layout);

// Waits for the mounts, then creates missing directories and corrects different ones. Leaves correct directories and
// the content of declared directories alone. Calls `waiting` for mounts that are not ready yet. Errors: timeout (a
// mount that did not become ready), invalid_argument (no such user or group), permission_denied, already_exists (a
// file or link is in the way), cancelled.
[[nodiscard]] Result<Report> apply_layout(const Layout& layout, std::stop_token stop = {},
                                          const std::function<void(const std::string& mount)>& waiting = {});

struct Removal {
  std::string path;
  int64_t bytes = 0;
  bool directory = false;
};
struct CleanOptions {
  bool dry_run = false;
  std::chrono::system_clock::time_point now = std::chrono::system_clock::now();
  std::function<void(const Removal&)> on_removed = {};
};
struct CleanReport {
  int64_t files = 0, directories = 0, bytes = 0;
  int64_t kept = 0;          // younger files
  int64_t other_mounts = 0;  // directories that were not entered because another file system is mounted there
  int64_t failed = 0;
  std::optional<Error> first_failure;
};

// Removes files that were neither written nor changed for longer than the max_age of their class, and directories that
// have been empty for as long. Declared directories stay. Links are removed as links; other mounts are not entered.
// Errors: invalid_argument (no class has a max_age), unavailable (a mount point is not mounted; no file is removed
// then), cancelled.
[[nodiscard]] Result<CleanReport> clean_layout(const Layout& layout, const CleanOptions& options,
                                               std::stop_token stop = {});

}  // namespace millrace::layout
