// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/space.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "millrace/base/units.h"
#include "millrace/storage/local/lustre.h"

namespace millrace::local {
namespace {

constexpr int64_t kQuotaBlockBytes = 1024;  // of limits, in the kernel's answer and in that of lfs

struct Owner {
  int type;            // of quotactl
  const char* option;  // of lfs quota
  const char* word;
  uint32_t id;
};

std::optional<Quota> kernel_quota(Syscalls& sys, const std::string& dir, const Owner& owner) {
  struct dqblk block{};
  if (retry([&] { return sys.get_quota(dir.c_str(), owner.type, owner.id, &block); }) < 0) return std::nullopt;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return Quota{.used_bytes = static_cast<int64_t>(block.dqb_curspace),
               .hard_bytes = static_cast<int64_t>(block.dqb_bhardlimit) * kQuotaBlockBytes,
               .soft_bytes = static_cast<int64_t>(block.dqb_bsoftlimit) * kQuotaBlockBytes,
               .grace_is_over = block.dqb_btime != 0 && static_cast<int64_t>(block.dqb_btime) <= seconds};
}

std::optional<Quota> quota_of(const Context& context, const std::string& dir, const Owner& owner, bool lustre) {
  if (!lustre) return kernel_quota(*context.sys, dir, owner);
  const auto text = run_lfs({"quota", "-q", owner.option, std::to_string(owner.id), dir});
  return text ? parse_lfs_quota(*text) : std::nullopt;
}

// The bytes of a limit, behind which nothing can be written; 0 when there is none.
int64_t limit_of(const Quota& quota) {
  const bool soft_holds = quota.soft_bytes > 0 && quota.grace_is_over && quota.used_bytes > quota.soft_bytes;
  return soft_holds ? quota.soft_bytes : quota.hard_bytes;
}

// "40*" -> 40. False for what is no number.
bool parse_kib(std::string_view word, int64_t& bytes) {
  if (word.ends_with('*')) word.remove_suffix(1);
  int64_t count = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
  if (error != std::errc() || end != word.data() + word.size() || count < 0) return false;
  bytes = count * kQuotaBlockBytes;
  return true;
}

}  // namespace

std::optional<Quota> parse_lfs_quota(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = std::min(text.find_first_not_of(" \t\n", at), text.size());
    at = std::min(text.find_first_of(" \t\n", begin), text.size());
    if (at > begin) words.push_back(text.substr(begin, at - begin));
  }
  // Path, used, soft, hard, grace, and the same of files.
  constexpr size_t kUsed = 1, kSoft = 2, kHard = 3, kGrace = 4;
  if (words.size() <= kGrace) return std::nullopt;
  Quota quota;
  const bool good = parse_kib(words[kUsed], quota.used_bytes) && parse_kib(words[kSoft], quota.soft_bytes) &&
                    parse_kib(words[kHard], quota.hard_bytes);
  if (!good) return std::nullopt;
  quota.grace_is_over = words[kGrace] == "none" || words[kGrace] == "expired";
  return quota;
}

Result<FreeSpace> free_space_at(const Context& context, std::string path) {
  struct statvfs info{};
  const auto or_root = [](const std::string& dir) { return dir.empty() ? std::string("/") : dir; };
  for (;;) {
    const int64_t result = retry([&] { return context.sys->statvfs(or_root(path).c_str(), &info); });
    if (result >= 0) break;
    if ((result != -ENOENT && result != -ENOTDIR) || path == context.root) {
      return sys_fail(result, "find the free space of " + or_root(path));
    }
    path = parent_of(path);
  }
  FreeSpace free{.bytes = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize)};
  const uid_t user = context.sys->geteuid();
  if (user == 0) return free;
  const bool lustre = is_lustre(*context.sys, or_root(path));
  for (const Owner& owner : {Owner{USRQUOTA, "-u", "user", user}, Owner{GRPQUOTA, "-g", "group", ::getegid()}}) {
    const auto quota = quota_of(context, or_root(path), owner, lustre);
    if (!quota || limit_of(*quota) == 0) continue;
    const int64_t left = std::max<int64_t>(0, limit_of(*quota) - quota->used_bytes);
    if (left >= free.bytes) continue;
    free = {.bytes = left,
            .limit = fmt::format("the quota of {} {} ({}, of which {} are used)", owner.word, owner.id,
                                 format_bytes(limit_of(*quota)), format_bytes(quota->used_bytes))};
  }
  return free;
}

}  // namespace millrace::local
