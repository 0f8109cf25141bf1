// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/durable.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "millrace/storage/local/detail/directories.h"

namespace millrace::local {
namespace {

constexpr size_t kMostOpen = 256;  // files that are made durable at once: a quarter of the usual limit of open files

// Since Linux 5.17 syncfs() reports all earlier write errors. Since 5.8 it reports those of file content.
bool syncfs_tells_errors() {
  struct utsname system{};
  if (uname(&system) != 0) return false;
  const std::string_view release = system.release;
  int major = 0, minor = 0;
  const auto [dot, error] = std::from_chars(release.data(), release.data() + release.size(), major);
  if (error != std::errc() || dot == release.data() + release.size() || *dot != '.') return false;
  std::from_chars(dot + 1, release.data() + release.size(), minor);
  return major > 5 || (major == 5 && minor >= 17);
}

bool is_read_only(const Context& context) {
  struct statvfs info{};
  const std::string path = context.root + "/.";
  return retry([&] { return context.sys->statvfs(path.c_str(), &info); }) < 0 || (info.f_flag & ST_RDONLY) != 0;
}

// Each open descriptor of the file system gets an error once. It may belong to a file of another thread. So threads
// call syncfs one after another, and none does after an error.
bool write_out(const Context& context) {
  Syscalls& sys = *context.sys;
  ProcessState& state = context.state->get();
  MutexLock lock(state.file_system_mutex);
  if (state.file_system_failed) return false;
  const int fd = state.file_system.fd.get();
  // Without a journal ext4 flushes the disk before it writes its last directories. fsync() flushes again, and fails
  // when the file system has shut down. A file system that became read-only reports success.
  const bool done =
      retry([&] { return sys.syncfs(fd); }) == 0 && retry([&] { return sys.fsync(fd); }) == 0 && !is_read_only(context);
  state.file_system_failed = !done;
  return done;
}

// True when one call wrote out all of them. After false, the caller syncs each.
Result<bool> sync_file_system(const Context& context, std::span<const std::string> paths) {
  Syscalls& sys = *context.sys;
  const FileSystem& all = context.state->get().file_system;
  if (!all.fd || paths.size() < kFewestForAll || sys.dirty_bytes() > kMostDirtyBytes) return false;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const auto info, stat_path(sys, path));
    if (info.st_dev != all.device) return false;
  }
  return write_out(context);
}

// First starts the writing of all files, which also places their blocks. Then one commit of the journal and few flushes
// of the disk serve all waiting threads.
Status sync_each(const Context& context, std::span<const std::string> paths) {
  Syscalls& sys = *context.sys;
  Executor& executor = context.state->get().syncers;
  std::vector<Result<Fd>> files(paths.size());
  parallel_for(executor, std::ssize(paths), [&](int64_t i) {
    auto& file = files[static_cast<size_t>(i)];
    file = open_fd(sys, paths[static_cast<size_t>(i)], O_RDONLY | O_NONBLOCK);
    if (file) static_cast<void>(sys.sync_file_range(file->get(), 0, 0, SYNC_FILE_RANGE_WRITE));
  });
  return parallel_try(executor, std::ssize(paths), [&](int64_t i) -> Status {
    ASSIGN_OR_RETURN(Fd file, std::move(files[static_cast<size_t>(i)]));
    const int64_t result = retry([&] { return sys.fdatasync(file.get()); });
    if (result < 0) return sys_fail(result, "sync " + paths[static_cast<size_t>(i)]);
    return {};
  });
}

}  // namespace

FileSystem open_file_system(Syscalls& sys, const std::string& root) {
  struct statfs kind{};
  const std::string path = root + "/.";
  if (!syncfs_tells_errors() || retry([&] { return sys.statfs(path.c_str(), &kind); }) < 0) return {};
  // Other file systems may ignore syncfs, as FUSE does, or do much more.
  if (kind.f_type != EXT4_SUPER_MAGIC && kind.f_type != XFS_SUPER_MAGIC && kind.f_type != BTRFS_SUPER_MAGIC) return {};
  auto fd = open_fd(sys, path, O_RDONLY | O_DIRECTORY);
  if (!fd) return {};
  const auto info = stat_fd(sys, *fd, path);
  if (!info) return {};
  return {std::move(*fd), info->st_dev};
}

Status make_files_durable(const Context& context, std::span<const std::string> paths) {
  ASSIGN_OR_RETURN(const bool all, sync_file_system(context, paths));
  if (all) return {};
  std::set<std::string> directories;
  for (const std::string& path : paths) directories.insert(parent_of(path));
  for (size_t at = 0; at < paths.size(); at += kMostOpen) {
    RETURN_IF_ERROR(sync_each(context, paths.subspan(at, std::min(kMostOpen, paths.size() - at))));
  }
  for (const std::string& dir : directories) RETURN_IF_ERROR(sync_directory(context, dir));
  return {};
}

}  // namespace millrace::local
