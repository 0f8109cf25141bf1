// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/changelog.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/command.h"
#include "millrace/base/text/units.h"

namespace millrace::link {

namespace {

constexpr std::chrono::seconds kLfsLimit(60);

constexpr size_t kMostOutput = 64 << 20;  // some 500,000 records

Result<std::string> lfs(std::vector<std::string> words) {
  const std::string what = fmt::format("lfs {}", words.front());
  words.insert(words.begin(), "lfs");
  ASSIGN_OR_RETURN(CommandOutput done, run_command(words, kLfsLimit, {}, kMostOutput));
  if (done.ok) return std::move(done.out);
  const std::string line = done.err.substr(0, done.err.find('\n'));
  return fail(ErrorCode::kUnavailable, "{}: {}: {}", what, done.status, line);
}

// The highest folder on the directory's file system.
std::string mount_of(const std::string& directory) {
  std::filesystem::path mount = directory;
  struct stat here{}, above{};
  while (mount.has_relative_path() && ::stat(mount.c_str(), &here) == 0 &&
         ::stat(mount.parent_path().c_str(), &above) == 0 && here.st_dev == above.st_dev) {
    mount = mount.parent_path();
  }
  return mount.string();
}

// "t=[0x1:0x2:0x3]" among the words: what follows the '='; "" where there is none.
std::string_view field_of(std::string_view word, std::string_view name) {
  if (!word.starts_with(name) || word.size() <= name.size() || word[name.size()] != '=') return {};
  return word.substr(name.size() + 1);
}

// What may leave other content or another name behind.
bool is_of_interest(std::string_view type) {
  constexpr std::string_view kTypes[] = {"CREAT", "HLINK", "UNLNK", "RMDIR", "RENME",
                                         "RNMTO", "CLOSE", "TRUNC", "SATTR", "MTIME"};
  return std::ranges::find(kTypes, type.substr(std::min<size_t>(2, type.size()))) != std::end(kTypes);
}

bool ends_with_type(const ChangeRecord& record, std::string_view type) {
  return record.type.size() > 2 && std::string_view(record.type).substr(2) == type;
}

}  // namespace

// IDX TYPE TIME DATE FLAGS t=[FID] then some of j=JOB ef=.. u=.. nid=.. m=.. x=.. p=[FID] NAME s=[FID] sp=[FID]
// OLDNAME. Names may hold blanks, so the end of one is only known by what follows it.
std::optional<ChangeRecord> parse_change(std::string_view line) {
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  const auto word = [&] {
    const size_t end = std::min(line.find(' '), line.size());
    const std::string_view found = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
    return found;
  };
  ChangeRecord record;
  const auto index = parse_whole(word());
  if (!index) return std::nullopt;
  record.index = *index;
  record.type = word();
  if (record.type.size() < 3) return std::nullopt;
  for (int i = 0; i < 3; ++i) word();  // time, date, flags
  while (!line.empty()) {
    const std::string_view next = line.substr(0, std::min(line.find(' '), line.size()));
    if (const auto fid = field_of(next, "t"); !fid.empty()) {
      record.target = fid;
      word();
      continue;
    }
    if (const auto fid = field_of(next, "p"); !fid.empty()) {
      record.parent = fid;
      word();
      break;  // the name
    }
    word();
  }
  if (record.target.empty()) return std::nullopt;
  if (record.parent.empty()) return record;
  const size_t source = line.rfind(" s=[");
  record.name = line.substr(0, std::min(source, line.size()));
  if (source == line.npos) return record;
  line.remove_prefix(source + 1);
  word();  // s=[FID]
  record.old_parent = field_of(word(), "sp");
  record.old_name = line;
  return record;
}

Result<Changelog> Changelog::open(const std::string& source, const std::string& directory) {
  const size_t colon = source.rfind(':');
  if (colon == source.npos || colon == 0 || colon + 1 == source.size()) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" names no changelog: lustre-MDT0000:cl1 is one", source);
  }
  Changelog log(source.substr(0, colon), source.substr(colon + 1), directory, mount_of(directory));
  // What is there already is older than the first sweep.
  ASSIGN_OR_RETURN(const Changes before, log.read());
  (void)before;
  return log;
}

Result<std::string> Changelog::path_of(const std::string& fid) {
  ASSIGN_OR_RETURN(std::string path, lfs({"fid2path", directory_, fid}));
  path = path.substr(0, path.find('\n'));
  // Older versions give a path below the mount.
  if (!path.starts_with('/')) path = fmt::format("{}/{}", mount_ == "/" ? "" : mount_, path);
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<Changelog::Changes> Changelog::read() {
  std::vector<std::string> words = {"changelog", mdt_};
  if (next_ > 0) words.push_back(std::to_string(next_));
  auto told = lfs(words);
  if (!told && told.error().code() == ErrorCode::kResourceExhausted) {
    // More than anyone can look at one by one.
    ASSIGN_OR_RETURN(const std::string all_cleared, lfs({"changelog_clear", mdt_, user_, "0"}));
    (void)all_cleared;
    return Changes{.removed = true, .lost = true};
  }
  ASSIGN_OR_RETURN(const std::string text, std::move(told));
  Changes seen;
  std::set<std::string> paths;
  std::map<std::string, std::string> folders;  // FID -> path
  int64_t last = 0;
  const auto add = [&](const std::string& fid, const std::string& name, bool renamed) {
    auto folder = folders.find(fid);
    if (folder == folders.end()) {
      const auto path = path_of(fid);
      folder = folders.emplace(fid, path ? *path : "").first;
    }
    if (folder->second.empty()) return;  // removed since
    std::string path = folder->second;
    if (!name.empty()) path += (path.ends_with('/') ? "" : "/") + name;
    if (path.starts_with(directory_ + "/")) paths.insert(path.substr(directory_.size() + 1));
    // A renamed directory moves what lies in it, of which there is no record.
    std::error_code gone;
    if (renamed && std::filesystem::is_directory(path, gone)) seen.lost = true;
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto record = parse_change(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (!record) continue;
    last = std::max(last, record->index);
    if (record->index < next_ || !is_of_interest(record->type)) continue;
    if (ends_with_type(*record, "UNLNK") || ends_with_type(*record, "RMDIR") || !record->old_parent.empty()) {
      seen.removed = true;
    }
    if (ends_with_type(*record, "UNLNK") || ends_with_type(*record, "RMDIR")) continue;
    const bool renamed = ends_with_type(*record, "RENME");
    if (record->parent.empty()) {
      add(record->target, "", renamed);
    } else {
      add(record->parent, record->name, renamed);
    }
  }
  if (last > 0) {
    next_ = last + 1;
    ASSIGN_OR_RETURN(const std::string cleared, lfs({"changelog_clear", mdt_, user_, std::to_string(last)}));
    (void)cleared;
  }
  seen.paths.assign(paths.begin(), paths.end());
  return seen;
}

}  // namespace millrace::link
