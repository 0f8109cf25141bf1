// SPDX-License-Identifier: Apache-2.0
#include "millrace/layout/detail/tree.h"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "millrace/base/io/file_text.h"

namespace millrace::layout {

OpenDirectory::~OpenDirectory() {
  if (fd_ >= 0) close(fd_);
}

OpenDirectory& OpenDirectory::operator=(OpenDirectory&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Result<OpenDirectory> open_mount(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return tl::unexpected(errno_error(errno, "open " + path));
  return OpenDirectory(fd);
}

Result<OpenDirectory> open_below(int parent, const std::string& name, std::string_view shown) {
  const int fd = openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0) return OpenDirectory(fd);
  if (errno == ELOOP || errno == ENOTDIR) {
    return fail(ErrorCode::kAlreadyExists,
                "{} is a link or a file, where a directory is declared; links are not followed", shown);
  }
  return tl::unexpected(errno_error(errno, fmt::format("open {}", shown)));
}

Result<MountId> mount_id(int fd, std::string_view shown) {
  struct statx found = {};
  // STATX_MNT_ID came with Linux 5.8. Without it two mounts of one file system look like one.
  if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &found) != 0) {
    return tl::unexpected(errno_error(errno, fmt::format("stat {}", shown)));
  }
  return MountId{makedev(found.stx_dev_major, found.stx_dev_minor),
                 (found.stx_mask & STATX_MNT_ID) != 0 ? found.stx_mnt_id : 0};
}

bool is_mount_root(int fd) {
  struct statx found = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) != 0) return false;
  return (found.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) == 0 ||
         (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

std::map<std::string, std::string> parse_mount_table(std::string_view text) {
  std::map<std::string, std::string> mounts;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, path;
    for (int i = 0; i < 5; ++i) words >> (i == 4 ? path : word);
    while (words >> word && word != "-") continue;
    std::string type;
    if (!(words >> type)) continue;
    // Blanks and the like are written as \040.
    for (size_t at = 0; (at = path.find('\\', at)) != std::string::npos && at + 3 < path.size(); ++at) {
      path.replace(at, 4, 1, static_cast<char>(std::strtol(path.substr(at + 1, 3).c_str(), nullptr, 8)));
    }
    mounts[path] = type;
  }
  return mounts;
}

Result<std::map<std::string, std::string>> mount_table() {
  const auto text = read_text("/proc/self/mountinfo");
  if (!text) return fail(ErrorCode::kUnsupported, "/proc/self/mountinfo cannot be read; is /proc mounted?");
  return parse_mount_table(*text);
}

std::vector<std::string> parts_below(std::string_view path, std::string_view mount) {
  std::vector<std::string> parts;
  std::string_view rest = path.substr(mount.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    parts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
  return parts;
}

}  // namespace millrace::layout
