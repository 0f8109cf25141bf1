// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opens directories as descriptors, and reads the table of mounts. Private to layout. Thread-safe.

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

// Opens `path`, a mount point of the declaration. Follows links on the way to it.
[[nodiscard]] Result<OpenDirectory> open_mount(const std::string& path);
// Opens `name` in `parent`, never through a link. Errors: not_found, already_exists (a file or a link of that name).
[[nodiscard]] Result<OpenDirectory> open_below(int parent, const std::string& name, std::string_view shown);

// Identifies a file system, and also each of its mounts if the kernel tells them apart.
struct MountId {
  uint64_t device = 0, mount = 0;
  bool operator==(const MountId&) const = default;
};
[[nodiscard]] Result<MountId> mount_id(int fd, std::string_view shown);

// Whether an open directory is a mount point. Also true if the kernel does not tell (before 5.8).
bool is_mount_root(int fd);

// Returns the mount points of this process with their file system types.
[[nodiscard]] Result<std::map<std::string, std::string>> mount_table();
// Parses /proc/self/mountinfo.
std::map<std::string, std::string> parse_mount_table(std::string_view text);

// Returns the components of `path` below `mount`.
std::vector<std::string> parts_below(std::string_view path, std::string_view mount);

}  // namespace millrace::layout
