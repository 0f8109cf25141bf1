// SPDX-License-Identifier: Apache-2.0
#pragma once

// Directories as open descriptors, and the table of mounts. Private to layout. Thread-safe.

#include <sys/stat.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::layout {

// An open directory; -1 when there is none.
class OpenDirectory {
 public:
  OpenDirectory() = default;
  explicit OpenDirectory(int fd) : fd_(fd) {}
  ~OpenDirectory();
  OpenDirectory(OpenDirectory&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenDirectory& operator=(OpenDirectory&& other) noexcept;
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Follows links on the way to `path`, which is a mount point of the declaration.
[[nodiscard]] Result<OpenDirectory> open_mount(const std::string& path);
// `name` in `parent`, never through a link. Errors: not_found; already_exists for a file or a link of that name.
[[nodiscard]] Result<OpenDirectory> open_below(int parent, const std::string& name, std::string_view shown);

// Distinguishes file systems, and two mounts of one file system where the kernel tells.
struct MountId {
  uint64_t device = 0, mount = 0;
  bool operator==(const MountId&) const = default;
};
[[nodiscard]] Result<MountId> mount_id(int fd, std::string_view shown);

// Whether an open directory is a mount point; also true when the kernel (before 5.8) does not tell.
bool is_mount_root(int fd);

// Mount points of this process with their file system types.
[[nodiscard]] Result<std::map<std::string, std::string>> mount_table();
// Parses /proc/self/mountinfo.
std::map<std::string, std::string> parse_mount_table(std::string_view text);

// The parts of `path` below `mount`.
std::vector<std::string> parts_below(std::string_view path, std::string_view mount);

}  // namespace millrace::layout
