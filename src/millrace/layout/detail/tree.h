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

// Links on the way to `path` itself are followed: it is a mount point that the declaration names.
[[nodiscard]] Result<OpenDirectory> open_mount(const std::string& path);
// `name` in `parent`, never through a link. Errors: not_found; already_exists for a file or a link of that name.
[[nodiscard]] Result<OpenDirectory> open_below(int parent, const std::string& name, std::string_view shown);

// Tells file systems apart, and two mounts of the same one too where the kernel says so.
struct MountId {
  uint64_t device = 0, mount = 0;
  bool operator==(const MountId&) const = default;
};
[[nodiscard]] Result<MountId> mount_id(int fd, std::string_view shown);

// Whether an open directory is where something is mounted; true too where the kernel (before 5.8) does not say.
bool is_mount_root(int fd);

// Mount points of this process with the type of what is mounted there.
[[nodiscard]] Result<std::map<std::string, std::string>> mount_table();
// Parses /proc/self/mountinfo.
std::map<std::string, std::string> parse_mount_table(std::string_view text);

// The parts of `path` below `mount`.
std::vector<std::string> parts_below(std::string_view path, std::string_view mount);

}  // namespace millrace::layout
