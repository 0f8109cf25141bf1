// SPDX-License-Identifier: Apache-2.0
// Removes old files below declared directories. Every step goes from an open directory to a name in it. Links are never
// followed and other mounts never entered, so a link or mount that appears during the walk is harmless.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "millrace/base/io/file_time.h"
#include "millrace/layout/detail/state.h"
#include "millrace/layout/detail/tree.h"
#include "millrace/layout/layout.h"

namespace millrace::layout {

namespace {

// Each level of the walk holds a descriptor, so deeper trees are left alone.
constexpr int kMaxDepth = 200;

tl::unexpected<Error> not_mounted(const std::string& mount) {
  return fail(ErrorCode::kUnavailable, "{} is not mounted, so other data lie below it; no file was removed", mount);
}

struct CloseStream {
  void operator()(DIR* stream) const { closedir(stream); }
};

class Cleaner {
 public:
  Cleaner(const Layout& layout, const CleanOptions& options, std::stop_token stop)
      : layout_(layout), options_(options), stop_(std::move(stop)) {}

  Status clean(const Directory& directory, std::chrono::seconds max_age) {
    const std::string& mount = layout_.mounts[directory.mount].path;
    ASSIGN_OR_RETURN(OpenDirectory at, open_mount(mount));
    // The table of mounts was read earlier; this checks the opened directory.
    if (layout_.mounts[directory.mount].mountpoint && !is_mount_root(at.fd())) return not_mounted(mount);
    std::string shown = mount;
    for (const std::string& part : parts_below(directory.path, mount)) {
      shown += "/" + part;
      Result<OpenDirectory> below = open_below(at.fd(), part, shown);
      if (!below && below.error().code() == ErrorCode::kNotFound) return {};  // no file was ever written
      if (!below) return tl::unexpected(below.error());
      at = *std::move(below);
    }
    ASSIGN_OR_RETURN(home_, mount_id(at.fd(), shown));
    oldest_ = options_.now - max_age;
    bool empty = false;
    return clean_below(std::move(at), shown, 0, empty);
  }

  CleanReport report;

 private:
  // The later of both: a file unpacked today with an old date is young.
  bool is_old(const struct stat& found) const {
    return std::max(FileTime(found.st_mtim), FileTime(found.st_ctim)) < FileTime(oldest_);
  }

  void failed(const std::string& shown, int error, const char* what) {
    // Another process has removed it.
    if (error == ENOENT) return;
    ++report.failed;
    if (!report.first_failure) report.first_failure = errno_error(error, fmt::format("{} {}", what, shown));
  }

  void removed(const std::string& shown, int64_t bytes, bool directory) {
    (directory ? report.directories : report.files) += 1;
    report.bytes += bytes;
    if (options_.on_removed) options_.on_removed({shown, bytes, directory});
  }

  // `empty`: the directory is empty, or would be after a real run.
  Status clean_below(OpenDirectory at, const std::string& shown, int depth, bool& empty) {
    const int fd = at.fd();
    const std::unique_ptr<DIR, CloseStream> stream(fdopendir(fd));
    if (!stream) {
      failed(shown, errno, "read");
      return {};
    }
    at.release();  // the stream closes it
    empty = true;
    for (;;) {
      if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      errno = 0;
      const dirent* entry = readdir(stream.get());
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      bool gone = false;
      RETURN_IF_ERROR(clean_entry(fd, name, shown + "/" + name, depth, gone));
      empty = empty && gone;
    }
    if (errno != 0) failed(shown, errno, "read");
    return {};
  }

  Status clean_entry(int parent, const std::string& name, const std::string& shown, int depth, bool& gone) {
    struct stat found = {};
    if (fstatat(parent, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
      gone = errno == ENOENT;
      failed(shown, errno, "stat");
      return {};
    }
    if (S_ISDIR(found.st_mode)) return clean_directory(parent, name, shown, depth, found, gone);
    if (!is_old(found)) {
      ++report.kept;
      return {};
    }
    if (!options_.dry_run && unlinkat(parent, name.c_str(), 0) != 0) {
      failed(shown, errno, "remove");
      return {};
    }
    gone = true;
    // A file with several names frees its bytes with the last one.
    removed(shown, S_ISREG(found.st_mode) && found.st_nlink == 1 ? found.st_blocks * 512 : 0, false);
    return {};
  }

  // A declared directory has its own class, or none.
  bool is_declared(const std::string& path) const {
    return std::binary_search(layout_.directories.begin(), layout_.directories.end(), Directory{.path = path},
                              [](const Directory& a, const Directory& b) { return a.path < b.path; });
  }

  Status clean_directory(int parent, const std::string& name, const std::string& shown, int depth,
                         const struct stat& found, bool& gone) {
    if (is_declared(shown)) return {};
    Result<OpenDirectory> below = open_below(parent, name, shown);
    if (!below) {
      // It became a link or a file meanwhile, or this user may not read it.
      if (below.error().code() == ErrorCode::kAlreadyExists)
        ++report.kept;
      else
        failed(shown, below.error().sys_errno(), "open");
      return {};
    }
    ASSIGN_OR_RETURN(const MountId here, mount_id(below->fd(), shown));
    if (!(here == home_) || depth >= kMaxDepth) {
      ++report.other_mounts;
      return {};
    }
    bool empty = false;
    RETURN_IF_ERROR(clean_below(*std::move(below), shown, depth + 1, empty));
    // Uses the age from before the walk: removing entries made the directory new.
    if (!empty || !is_old(found)) return {};
    if (!options_.dry_run && unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0) {
      if (errno != ENOTEMPTY && errno != EEXIST) failed(shown, errno, "remove");
      return {};
    }
    gone = true;
    removed(shown, 0, true);
    return {};
  }

  const Layout& layout_;
  const CleanOptions& options_;
  const std::stop_token stop_;
  MountId home_;
  std::chrono::system_clock::time_point oldest_;
};

const Policy* policy_with_age(const Layout& layout, const Directory& directory) {
  if (!directory.policy) return nullptr;
  const Policy& policy = layout.policies[*directory.policy];
  return policy.max_age ? &policy : nullptr;
}

}  // namespace

Result<CleanReport> clean_layout(const Layout& layout, const CleanOptions& options, std::stop_token stop) {
  std::vector<const Directory*> chosen;
  for (const Directory& directory : layout.directories) {
    if (policy_with_age(layout, directory) != nullptr) chosen.push_back(&directory);
  }
  if (chosen.empty())
    return fail(ErrorCode::kInvalidArgument, "no class of the declaration has a max_age, so no file is ever old");
  ASSIGN_OR_RETURN(const auto table, mount_table());
  for (const Directory* directory : chosen) {
    const Mount& mount = layout.mounts[directory->mount];
    if (!state_of(mount, table).ready) return not_mounted(mount.path);
  }
  Cleaner cleaner(layout, options, std::move(stop));
  for (const Directory* directory : chosen) {
    RETURN_IF_ERROR(cleaner.clean(*directory, *policy_with_age(layout, *directory)->max_age));
  }
  return std::move(cleaner.report);
}

}  // namespace millrace::layout
