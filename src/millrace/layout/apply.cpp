// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/thread/stop_descriptor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/layout/detail/state.h"
#include "millrace/layout/detail/tree.h"
#include "millrace/layout/layout.h"

namespace millrace::layout {

namespace {

constexpr int kLookAgain_ms = 500;

Result<std::vector<MountState>> mount_states(const Layout& layout) {
  ASSIGN_OR_RETURN(const auto table, mount_table());
  std::vector<MountState> states;
  for (const Mount& mount : layout.mounts) states.push_back(state_of(mount, table));
  return states;
}

// The kernel tells of a new mount. Nothing tells of a directory that another node makes, so this looks for it again.
Status wait_for(const Layout& layout, const std::stop_token& stop,
                const std::function<void(const std::string&)>& waiting) {
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const auto stopped, StopDescriptor::open(stop));
  const Descriptor mounts(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC));
  std::vector<bool> reported(layout.mounts.size());
  for (;;) {
    ASSIGN_OR_RETURN(const std::vector<MountState> states, mount_states(layout));
    bool all = true;
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].ready) continue;
      all = false;
      const Mount& mount = layout.mounts[i];
      if (Clock::now() - start >= mount.wait) {
        return fail(ErrorCode::kTimeout,
                    "{} is {} after {} s; is it in the cluster's SharedStorage, and is the file system up?", mount.path,
                    mount.mountpoint ? "not mounted" : "not there", mount.wait.count());
      }
      if (!reported[i] && waiting) waiting(mount.path);
      reported[i] = true;
    }
    if (all) return {};
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped while waiting for mounts");
    std::array<pollfd, 2> events{pollfd{mounts.get(), POLLPRI, 0}, pollfd{stopped->get(), POLLIN, 0}};
    ::poll(events.data(), events.size(), kLookAgain_ms);
  }
}

// Opens the directory of a declaration. With `make`, missing directories on the way are made with its owner and mode.
// Without, a missing directory gives nullopt.
Result<std::optional<OpenDirectory>> reach(const Layout& layout, const Directory& directory, const Ids& ids, bool make,
                                           bool& created) {
  const std::string& mount = layout.mounts[directory.mount].path;
  Result<OpenDirectory> opened = open_mount(mount);
  if (!opened && !make && opened.error().code() == ErrorCode::kNotFound) return std::nullopt;
  if (!opened) return tl::unexpected(opened.error());
  OpenDirectory at = *std::move(opened);
  std::string shown = mount;
  for (const std::string& part : parts_below(directory.path, mount)) {
    shown += "/" + part;
    const bool is_new = make && mkdirat(at.fd(), part.c_str(), 0700) == 0;
    if (make && !is_new && errno != EEXIST) return tl::unexpected(errno_error(errno, "create " + shown));
    Result<OpenDirectory> below = open_below(at.fd(), part, shown);
    if (!below && !make && below.error().code() == ErrorCode::kNotFound) return std::nullopt;
    if (!below) return tl::unexpected(below.error());
    at = *std::move(below);
    created = is_new;
    if (!is_new) continue;
    // Owner first: chown clears the set-group-id bit.
    if (fchown(at.fd(), static_cast<uid_t>(ids.user), static_cast<gid_t>(ids.group)) != 0)
      return tl::unexpected(errno_error(errno, "change the owner of " + shown));
    if (fchmod(at.fd(), directory.mode) != 0) return tl::unexpected(errno_error(errno, "change the mode of " + shown));
  }
  return std::optional<OpenDirectory>(std::move(at));
}

Status mend(const OpenDirectory& open, const Layout& layout, const Directory& directory, const Ids& ids) {
  struct stat found = {};
  if (fstat(open.fd(), &found) != 0) return tl::unexpected(errno_error(errno, "stat " + directory.path));
  const bool owner = (ids.user >= 0 && static_cast<int64_t>(found.st_uid) != ids.user) ||
                     (ids.group >= 0 && static_cast<int64_t>(found.st_gid) != ids.group);
  if (owner && fchown(open.fd(), static_cast<uid_t>(ids.user), static_cast<gid_t>(ids.group)) != 0) {
    return tl::unexpected(errno_error(errno, "change the owner of " + directory.path));
  }
  if ((owner || (found.st_mode & 07777) != directory.mode) && fchmod(open.fd(), directory.mode) != 0) {
    return tl::unexpected(errno_error(errno, "change the mode of " + directory.path));
  }
  if (!directory.policy || !layout.policies[*directory.policy].stripe) return {};
  const Stripe& wanted = *layout.policies[*directory.policy].stripe;
  const std::optional<FoundStripe> stripe = read_stripe(directory.path);
  if (!stripe || !differs(*stripe, wanted)) return {};
  return write_stripe(directory.path, wanted);
}

Result<DirectoryState> apply_one(const Layout& layout, const Directory& directory) {
  ASSIGN_OR_RETURN(const Ids ids, find_ids(directory));
  bool created = false;
  ASSIGN_OR_RETURN(const std::optional<OpenDirectory> open, reach(layout, directory, ids, true, created));
  ASSIGN_OR_RETURN(const DirectoryState before, state_of(*open, layout, directory, ids));
  if (!before.differences.empty()) RETURN_IF_ERROR(mend(*open, layout, directory, ids));
  ASSIGN_OR_RETURN(DirectoryState after, state_of(*open, layout, directory, ids));
  after.created = created;
  // Remaining differences (the tier) cannot be corrected here.
  if (created) return after;
  for (const std::string& difference : before.differences) {
    const auto& left = after.differences;
    if (std::find(left.begin(), left.end(), difference) == left.end()) after.mended.push_back(difference);
  }
  return after;
}

Result<DirectoryState> show_one(const Layout& layout, const Directory& directory) {
  ASSIGN_OR_RETURN(const Ids ids, find_ids(directory));
  bool created = false;
  ASSIGN_OR_RETURN(const std::optional<OpenDirectory> open, reach(layout, directory, ids, false, created));
  if (open) return state_of(*open, layout, directory, ids);
  return DirectoryState{.path = directory.path, .differences = {"missing"}};
}

}  // namespace

Result<Report> show_layout(const Layout& layout) {
  Report report;
  ASSIGN_OR_RETURN(report.mounts, mount_states(layout));
  for (const Directory& directory : layout.directories) {
    // Below a missing mount lie other data.
    if (!report.mounts[directory.mount].ready) {
      report.directories.push_back({.path = directory.path, .differences = {"not mounted"}});
      continue;
    }
    ASSIGN_OR_RETURN(DirectoryState state, show_one(layout, directory));
    report.directories.push_back(std::move(state));
  }
  return report;
}

Result<Report> apply_layout(const Layout& layout, std::stop_token stop,
                            const std::function<void(const std::string&)>& waiting) {
  // Names are looked up before any directory is made.
  for (const Directory& directory : layout.directories) {
    const Result<Ids> ids = find_ids(directory);
    if (!ids) return tl::unexpected(ids.error());
  }
  RETURN_IF_ERROR(wait_for(layout, stop, waiting));
  Report report;
  for (const Directory& directory : layout.directories) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    ASSIGN_OR_RETURN(DirectoryState state, apply_one(layout, directory));
    report.directories.push_back(std::move(state));
  }
  ASSIGN_OR_RETURN(report.mounts, mount_states(layout));
  return report;
}

}  // namespace millrace::layout
