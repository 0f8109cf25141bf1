// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/space.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <span>

#include "millrace/base/text/units.h"
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
  const auto is_over = [&](uint64_t end) {
    return end != 0 && static_cast<int64_t>(end) <= std::chrono::duration_cast<std::chrono::seconds>(now).count();
  };
  const auto bytes_of = [](uint64_t blocks) { return static_cast<int64_t>(blocks) * kQuotaBlockBytes; };
  return Quota{.bytes = {.used = static_cast<int64_t>(block.dqb_curspace),
                         .hard = bytes_of(block.dqb_bhardlimit),
                         .soft = bytes_of(block.dqb_bsoftlimit),
                         .grace_is_over = is_over(block.dqb_btime)},
               .files = {.used = static_cast<int64_t>(block.dqb_curinodes),
                         .hard = static_cast<int64_t>(block.dqb_ihardlimit),
                         .soft = static_cast<int64_t>(block.dqb_isoftlimit),
                         .grace_is_over = is_over(block.dqb_itime)}};
}

std::optional<Quota> quota_of(const Context& context, const std::string& dir, const Owner& owner, bool lustre) {
  if (!lustre) return kernel_quota(*context.sys, dir, owner);
  const auto text = run_lfs({"quota", "-q", owner.option, std::to_string(owner.id), dir});
  return text ? parse_lfs_quota(*text) : std::nullopt;
}

// "40*" -> 40; nullopt for text that is no number.
std::optional<int64_t> parse_count(std::string_view word) {
  if (word.ends_with('*')) word.remove_suffix(1);
  int64_t count = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
  if (error != std::errc() || end != word.data() + word.size() || count < 0) return std::nullopt;
  return count;
}

// Used, soft, hard and grace, as lfs prints them.
std::optional<QuotaLimit> parse_limit(std::span<const std::string_view> words, int64_t unit) {
  constexpr size_t kUsed = 0, kSoft = 1, kHard = 2, kGrace = 3;
  if (words.size() <= kGrace) return std::nullopt;
  const auto used = parse_count(words[kUsed]), soft = parse_count(words[kSoft]), hard = parse_count(words[kHard]);
  if (!used || !soft || !hard) return std::nullopt;
  return QuotaLimit{.used = *used * unit,
                    .hard = *hard * unit,
                    .soft = *soft * unit,
                    .grace_is_over = words[kGrace] == "none" || words[kGrace] == "expired"};
}

void lower_bytes(const Owner& owner, const QuotaLimit& quota, FreeSpace& free) {
  if (quota.limit() == 0 || quota.left() >= free.bytes) return;
  free.bytes = quota.left();
  free.limit = fmt::format("the quota of {} {} ({}, of which {} are used)", owner.word, owner.id,
                           format_bytes(quota.limit()), format_bytes(quota.used));
}

void lower_files(const Owner& owner, const QuotaLimit& quota, FreeSpace& free) {
  if (quota.limit() == 0 || (free.files && quota.left() >= *free.files)) return;
  free.files = quota.left();
  free.files_limit = fmt::format("the quota of {} {} ({} files, of which {} are used)", owner.word, owner.id,
                                 format_count(quota.limit()), format_count(quota.used));
}

}  // namespace

std::optional<Quota> parse_lfs_quota(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = std::min(text.find_first_not_of(" \t\n", at), text.size());
    at = std::min(text.find_first_of(" \t\n", begin), text.size());
    if (at > begin) words.push_back(text.substr(begin, at - begin));
  }
  // Path, four of bytes, four of files.
  constexpr size_t kLimitWords = 4;
  if (words.size() <= kLimitWords) return std::nullopt;
  const std::span<const std::string_view> limits = std::span(words).subspan(1);
  const auto bytes = parse_limit(limits, kQuotaBlockBytes);
  if (!bytes) return std::nullopt;
  return Quota{.bytes = *bytes, .files = parse_limit(limits.subspan(kLimitWords), 1).value_or(QuotaLimit{})};
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
  // Some file systems make inodes as they need them, and report none.
  if (info.f_files > 0) free.files = static_cast<int64_t>(info.f_favail), free.files_limit = "the file system";
  const uid_t user = context.sys->geteuid();
  if (user == 0) return free;
  const bool lustre = is_lustre(*context.sys, or_root(path));
  for (const Owner& owner : {Owner{USRQUOTA, "-u", "user", user}, Owner{GRPQUOTA, "-g", "group", ::getegid()}}) {
    const auto quota = quota_of(context, or_root(path), owner, lustre);
    if (!quota) continue;
    lower_bytes(owner, quota->bytes, free);
    lower_files(owner, quota->files, free);
  }
  return free;
}

}  // namespace millrace::local
