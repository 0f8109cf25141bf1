// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/directories.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace millrace::local {
namespace {

// Removals by other processes that make_directories outlasts.
constexpr int kMakeTries = 100;

std::string or_root(const std::string& dir) {
  return dir.empty() ? "/" : dir;
}

Result<Fd> open_directory(Syscalls& sys, const std::string& dir) {
  return open_fd(sys, or_root(dir), O_RDONLY | O_DIRECTORY);
}

Status fsync_directory(Syscalls& sys, const std::string& dir) {
  ASSIGN_OR_RETURN(const Fd fd, open_directory(sys, dir));
  const int64_t result = retry([&] { return sys.fsync(fd.get()); });
  // EINVAL: the file system does not sync directories.
  if (result < 0 && result != -EINVAL) return sys_fail(result, "sync directory " + or_root(dir));
  return {};
}

bool is_known_durable(const Context& context, const std::string& dir) {
  auto& state = context.state->get();
  MutexLock lock(state.mutex);
  return state.durable_directories.contains(dir);
}

}  // namespace

Status make_directories(const Context& context, const std::string& dir) {
  const auto in_the_way = [&] { return fail(ErrorCode::kInvalidArgument, "{} is not the directory it must be", dir); };
  for (int i = 0; i < kMakeTries; ++i) {
    const auto exists = stat_path(*context.sys, or_root(dir));
    if (exists && S_ISDIR(exists->st_mode)) return {};
    if (exists) return in_the_way();
    const int reason = exists.error().sys_errno();
    if (reason != ENOENT && reason != ENOTDIR) return tl::unexpected<Error>(exists.error());
    RETURN_IF_ERROR(make_directories(context, parent_of(dir)));
    const int64_t made = retry([&] { return context.sys->mkdir(dir.c_str(), 0777); });
    if (made == 0) {
      auto& state = context.state->get();
      MutexLock lock(state.mutex);
      state.durable_directories.erase(dir);
      return {};
    }
    if (made != -EEXIST && made != -ENOENT) return sys_fail(made, "make directory " + dir);
    struct stat link{};
    const bool leads_nowhere = made == -EEXIST && context.sys->lstat(dir.c_str(), &link) == 0 && S_ISLNK(link.st_mode);
    if (leads_nowhere) return in_the_way();
    // Another process made `dir` first, or removed `dir` or its empty parent.
  }
  return fail(ErrorCode::kUnavailable, "make directory {}: other processes keep removing it", dir);
}

Status set_directory_attributes(const Context& context, const std::string& dir, const PosixAttributes& attributes) {
  Syscalls& sys = *context.sys;
  struct stat link{};
  if (sys.lstat(dir.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) return {};
  RETURN_IF_ERROR(make_directories(context, dir));
  ASSIGN_OR_RETURN(const Fd fd, open_fd(sys, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  ASSIGN_OR_RETURN(const auto info, stat_fd(sys, fd, dir));
  const uid_t user = sys.geteuid();
  if (user != 0 && user != info.st_uid) {
    return fail(ErrorCode::kPermissionDenied, "{} belongs to user {}", dir, info.st_uid);
  }
  return set_posix_attributes(context, fd, dir, attributes);
}

Status remove_empty_directory(const std::string& dir) {
  Status in_the_way;
  const auto note = [&](Status status) {
    if (in_the_way && !status) in_the_way = std::move(status);
  };
  std::error_code error;
  for (std::filesystem::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const std::string path = at->path().string();
    std::error_code unknown;
    const bool is_directory = at->symlink_status(unknown).type() == std::filesystem::file_type::directory;
    note(is_directory ? remove_empty_directory(path)
                      : fail(ErrorCode::kInvalidArgument, "{} is a directory that holds {}", dir, path));
  }
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return {};
  RETURN_IF_ERROR(std::move(in_the_way));
  if (!error && ::rmdir(dir.c_str()) < 0 && errno != ENOENT) error = {errno, std::generic_category()};
  return error ? tl::unexpected<Error>(errno_error(error.value(), "remove directory " + dir)) : Status();
}

Status sync_directory(const Context& context, const std::string& dir) {
  Syscalls& sys = *context.sys;
  RETURN_IF_ERROR(fsync_directory(sys, dir));
  // This object depends on the directories above, even if another process made them and has not synced them.
  std::vector<std::string> synced;
  for (std::string child = dir; child != context.root && !is_known_durable(context, child);) {
    const std::string parent = parent_of(child);
    ASSIGN_OR_RETURN(const auto child_info, stat_path(sys, child));
    ASSIGN_OR_RETURN(const auto parent_info, stat_path(sys, or_root(parent)));
    if (child_info.st_dev == parent_info.st_dev) {
      if (auto status = fsync_directory(sys, parent); !status && status.error().sys_errno() != EACCES) return status;
      synced.push_back(std::move(child));
      child = parent;
    } else {
      synced.push_back(std::move(child));
      break;
    }
  }
  auto& state = context.state->get();
  MutexLock lock(state.mutex);
  state.durable_directories.insert(synced.begin(), synced.end());
  return {};
}

Result<DirectoryLock> DirectoryLock::take(Syscalls& sys, const std::string& dir, LockMode mode) {
  auto fd = open_directory(sys, dir);
  Status locked = fd ? wait_lock(sys, *fd, dir, mode) : Status(tl::unexpected<Error>(fd.error()));
  if (locked) return DirectoryLock(sys, std::move(*fd));
  if (mode == LockMode::kShared) return DirectoryLock(sys, Fd());
  return tl::unexpected<Error>(std::move(locked).error());
}

DirectoryLock::~DirectoryLock() {
  if (fd_) unlock(sys_, fd_);
}

}  // namespace millrace::local
