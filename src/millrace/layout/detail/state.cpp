// SPDX-License-Identifier: Apache-2.0
#include "millrace/layout/detail/state.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <vector>

#include "millrace/base/text/units.h"

namespace millrace::layout {

namespace {

// A number, or the one that `look_up` gives for a name.
template <class LookUp>
Result<int64_t> find_id(const std::string& name, const char* what, const std::string& path, LookUp look_up) {
  if (name.empty()) return -1;
  if (const auto number = parse_whole(name)) return *number;
  std::vector<char> buffer(1 << 16);
  const int64_t number = look_up(buffer);
  if (number < 0) return fail(ErrorCode::kInvalidArgument, "{}: this machine knows no {} '{}'", path, what, name);
  return number;
}

std::string user_name(uid_t id) {
  std::vector<char> buffer(1 << 16);
  passwd entry = {}, *found = nullptr;
  getpwuid_r(id, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? std::to_string(id) : found->pw_name;
}

std::string group_name(gid_t id) {
  std::vector<char> buffer(1 << 16);
  group entry = {}, *found = nullptr;
  getgrgid_r(id, &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? std::to_string(id) : found->gr_name;
}

// "lustre", "nfs" or "local", by the magic numbers of statfs(2) and of Lustre.
std::string_view tier_of(int fd) {
  struct statfs found = {};
  if (fstatfs(fd, &found) != 0) return "local";
  constexpr int64_t kLustre = 0x0BD00BD0, kNfs = 0x6969;
  const auto magic = static_cast<int64_t>(found.f_type);
  return magic == kLustre ? "lustre" : magic == kNfs ? "nfs" : "local";
}

void add_stripe(const Directory& directory, const Policy& policy, DirectoryState& state) {
  const std::optional<FoundStripe> found = read_stripe(directory.path);
  if (!found) return;
  state.stripe = found->text;
  if (policy.stripe && differs(*found, *policy.stripe)) {
    state.differences.push_back(fmt::format("stripe {}, declared {}", found->text,
                                            stripe_text(policy.stripe->count, policy.stripe->size_bytes)));
  }
}

}  // namespace

std::string mode_text(uint32_t mode) {
  return fmt::format("{:o}", mode);
}

Result<Ids> find_ids(const Directory& directory) {
  Ids ids;
  ASSIGN_OR_RETURN(ids.user,
                   find_id(directory.owner, "user", directory.path, [&](std::vector<char>& buffer) -> int64_t {
                     passwd entry = {}, *found = nullptr;
                     getpwnam_r(directory.owner.c_str(), &entry, buffer.data(), buffer.size(), &found);
                     return found == nullptr ? -1 : static_cast<int64_t>(found->pw_uid);
                   }));
  ASSIGN_OR_RETURN(ids.group,
                   find_id(directory.group, "group", directory.path, [&](std::vector<char>& buffer) -> int64_t {
                     group entry = {}, *found = nullptr;
                     getgrnam_r(directory.group.c_str(), &entry, buffer.data(), buffer.size(), &found);
                     return found == nullptr ? -1 : static_cast<int64_t>(found->gr_gid);
                   }));
  return ids;
}

Result<DirectoryState> state_of(const OpenDirectory& open, const Layout& layout, const Directory& directory,
                                const Ids& ids) {
  struct stat found = {};
  if (fstat(open.fd(), &found) != 0) return tl::unexpected(errno_error(errno, "stat " + directory.path));
  DirectoryState state{.path = directory.path, .exists = true, .mode = found.st_mode & 07777};
  state.owner = user_name(found.st_uid);
  state.group = group_name(found.st_gid);
  if (ids.user >= 0 && static_cast<int64_t>(found.st_uid) != ids.user) {
    state.differences.push_back(fmt::format("owner {}, declared {}", state.owner, directory.owner));
  }
  if (ids.group >= 0 && static_cast<int64_t>(found.st_gid) != ids.group) {
    state.differences.push_back(fmt::format("group {}, declared {}", state.group, directory.group));
  }
  if (state.mode != directory.mode) {
    state.differences.push_back(fmt::format("mode {}, declared {}", mode_text(state.mode), mode_text(directory.mode)));
  }
  if (!directory.policy) return state;
  const Policy& policy = layout.policies[*directory.policy];
  if (const std::string_view tier = tier_of(open.fd()); !policy.tier.empty() && policy.tier != tier) {
    state.differences.push_back(fmt::format("tier {}, declared {}", tier, policy.tier));
  }
  if (policy.stripe) add_stripe(directory, policy, state);
  return state;
}

MountState state_of(const Mount& mount, const std::map<std::string, std::string>& table) {
  MountState state{.path = mount.path};
  const auto found = table.find(mount.path);
  struct statvfs space = {};
  state.ready = (found != table.end() || !mount.mountpoint) && statvfs(mount.path.c_str(), &space) == 0;
  if (found != table.end()) state.type = found->second;
  if (!state.ready) return state;
  state.size_bytes = static_cast<int64_t>(space.f_blocks * space.f_frsize);
  state.free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  return state;
}

}  // namespace millrace::layout
