// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/list.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

#include "millrace/storage/page_token.h"

namespace millrace::local {
namespace {

constexpr size_t kDirectoryBufferBytes = 64 << 10;  // some 2,000 names a call

bool is_gone(const Error& error) {
  return error.sys_errno() == ENOENT || error.sys_errno() == ENOTDIR;
}

bool is_forbidden(const Error& error) {
  return error.sys_errno() == EACCES || error.sys_errno() == EPERM;
}

enum class Kind { kFile, kDirectory, kLink, kSpecial, kUnreadable };

ObjectKind object_kind(Kind kind) {
  switch (kind) {
    case Kind::kLink:
      return ObjectKind::kLink;
    case Kind::kSpecial:
      return ObjectKind::kSpecial;
    case Kind::kUnreadable:
      return ObjectKind::kUnreadable;
    case Kind::kFile:
    case Kind::kDirectory:
      break;
  }
  return ObjectKind::kFile;
}

Kind kind_of_mode(mode_t mode) {
  return S_ISREG(mode) ? Kind::kFile : S_ISDIR(mode) ? Kind::kDirectory : Kind::kSpecial;
}

// A link counts as its target, if it is followed and has one.
Result<Kind> kind_of(Syscalls& sys, const std::string& path, unsigned char type, bool follow_links) {
  if (type == DT_REG) return Kind::kFile;
  if (type == DT_DIR) return Kind::kDirectory;
  if (type == DT_UNKNOWN) {  // some file systems do not say
    struct stat info{};
    const int64_t got = retry([&] { return sys.lstat(path.c_str(), &info); });
    if (got == -ENOENT || got == -ENOTDIR) return Kind::kSpecial;
    if (got == -EACCES || got == -EPERM) return Kind::kUnreadable;
    if (got < 0) return sys_fail(got, "stat " + path);
    if (!S_ISLNK(info.st_mode)) return kind_of_mode(info.st_mode);
    type = DT_LNK;
  }
  if (type != DT_LNK) return Kind::kSpecial;
  if (!follow_links) return Kind::kLink;
  const auto info = stat_path(sys, path);
  if (!info && (is_gone(info.error()) || info.error().sys_errno() == ELOOP)) return Kind::kLink;
  if (!info && is_forbidden(info.error())) return Kind::kUnreadable;
  if (!info) return tl::unexpected<Error>(info.error());
  return kind_of_mode(info->st_mode);
}

// The records of one getdents call. The kernel made them, so their lengths are right.
Status add_entries(Syscalls& sys, const std::string& path, std::span<const char> records,
                   const DirectoryOptions& options, std::vector<DirectoryEntry>& entries) {
  for (size_t at = 0; at < records.size();) {
    uint16_t length = 0;
    std::memcpy(&length, records.data() + at + offsetof(dirent64, d_reclen), sizeof length);
    const auto type = static_cast<unsigned char>(records[at + offsetof(dirent64, d_type)]);
    std::string name(records.data() + at + offsetof(dirent64, d_name));
    at += length;
    if (name == "." || name == "..") continue;
    ASSIGN_OR_RETURN(const Kind kind, kind_of(sys, path + "/" + name, type, options.follow_links));
    if (kind == Kind::kUnreadable && !options.others) return sys_fail(-EACCES, "stat " + path + "/" + name);
    if (object_kind(kind) != ObjectKind::kFile && !options.others) continue;
    if (kind == Kind::kDirectory) name += '/';
    entries.push_back({std::move(name), object_kind(kind)});
  }
  return {};
}

// The entry, if it is wanted and still there; nullopt when it was removed since its directory was read.
Result<std::optional<ObjectInfo>> describe(const Context& context, const std::string& key, ObjectKind kind,
                                           bool others) {
  if (kind != ObjectKind::kFile) return ObjectInfo{.key = key, .kind = kind};
  const auto info = stat_path(*context.sys, context.path(key));
  if (!info && is_gone(info.error())) return std::nullopt;
  if (!info && others && is_forbidden(info.error())) return ObjectInfo{.key = key, .kind = ObjectKind::kUnreadable};
  if (!info) return tl::unexpected<Error>(info.error());
  return object_info(key, *info);
}

// Listings that are kept for their next page: one each for the few threads that list at once. Others read directories
// again.
constexpr size_t kWalksKept = 4;

// The walk to which a page token belongs, if it is still kept.
std::shared_ptr<ListWalk> take_walk(ProcessState& state, std::string_view prefix, const ListOptions& options) {
  if (options.page_token.empty()) return nullptr;
  MutexLock lock(state.mutex);
  const auto found = std::find_if(state.walks.begin(), state.walks.end(),
                                  [&](const auto& walk) { return walk->continues(prefix, options); });
  if (found == state.walks.end()) return nullptr;
  std::shared_ptr<ListWalk> walk = std::move(*found);
  state.walks.erase(found);
  return walk;
}

void keep_walk(ProcessState& state, std::shared_ptr<ListWalk> walk) {
  std::shared_ptr<ListWalk> oldest;  // destroyed outside the lock
  MutexLock lock(state.mutex);
  state.walks.push_back(std::move(walk));
  if (state.walks.size() <= kWalksKept) return;
  oldest = std::move(state.walks.front());
  state.walks.erase(state.walks.begin());
}

}  // namespace

Result<Directory> read_directory(Syscalls& sys, const std::string& path, const DirectoryOptions& options) {
  Directory directory;
  auto fd = open_fd(sys, path, O_RDONLY | O_DIRECTORY);
  if (!fd && is_gone(fd.error())) return directory;
  if (!fd) return tl::unexpected<Error>(std::move(fd).error());
  ASSIGN_OR_RETURN(const auto info, stat_fd(sys, *fd, path));
  directory.device = info.st_dev;
  directory.inode = info.st_ino;
  std::vector<char> buffer(kDirectoryBufferBytes);
  for (;;) {
    const int64_t got = retry([&] { return sys.getdents(fd->get(), buffer.data(), buffer.size()); });
    if (got == 0) break;
    if (got == -ENOENT) break;  // the directory was removed meanwhile
    if (got < 0) return sys_fail(got, "list " + path);
    RETURN_IF_ERROR(
        add_entries(sys, path, std::span(buffer).first(static_cast<size_t>(got)), options, directory.entries));
  }
  std::sort(directory.entries.begin(), directory.entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return directory;
}

bool WalkPath::contains(const Directory& directory) const {
  return std::find(inodes_.begin(), inodes_.end(), std::pair{directory.device, directory.inode}) != inodes_.end();
}

bool WalkPath::enter(const Directory& directory) {
  if (directory.entries.empty() || contains(directory)) return false;
  inodes_.emplace_back(directory.device, directory.inode);
  return true;
}

std::string_view directory_part(std::string_view prefix) {
  const size_t slash = prefix.rfind('/');
  return slash == prefix.npos ? std::string_view() : prefix.substr(0, slash + 1);
}

bool ListWalk::continues(std::string_view prefix, const ListOptions& options) const {
  return prefix == prefix_ && key_of_token(options.page_token) == last_ && options.recursive == options_.recursive &&
         options.follow_links == options_.follow_links && options.others == options_.others &&
         options.empty_folders == options_.empty_folders;
}

bool ListWalk::was_before(const std::string& key, bool descends) const {
  const std::string_view token = key_of_token(options_.page_token);
  return key <= token && !(descends && token.starts_with(key));
}

void ListWalk::show(const std::string& dir, ObjectKind kind) {
  levels_.push_back({dir.substr(0, dir.find_last_of('/', dir.size() - 2) + 1), {}, 0});
  levels_.back().directory.entries.push_back({dir.substr(levels_.back().dir.size()), kind});
  path_.enter_nothing();
}

// Adds no level when `dir` has no entries to walk.
Status ListWalk::enter(const Context& context, const std::string& dir) {
  auto directory = read_directory(*context.sys, context.path(dir.substr(0, dir.rfind('/'))),
                                  {.follow_links = options_.follow_links, .others = options_.others});
  if (!directory) {
    if (!options_.others || levels_.empty() || !is_forbidden(directory.error())) {
      return tl::unexpected<Error>(std::move(directory).error());
    }
    show(dir, ObjectKind::kUnreadable);
  } else if (options_.others && path_.contains(*directory)) {
    show(dir, ObjectKind::kLink);
  } else if (directory->entries.empty() && directory->inode != 0 && options_.empty_folders && !levels_.empty()) {
    show(dir, ObjectKind::kFolder);
  } else if (path_.enter(*directory)) {
    levels_.push_back({dir, std::move(*directory), 0});
  }
  return {};
}

Result<ListPage> ListWalk::page(const Context& context, int64_t max_keys) {
  ListPage page;
  if (!started_) RETURN_IF_ERROR(enter(context, std::string(directory_part(prefix_))));
  started_ = true;
  while (!levels_.empty()) {
    Level& level = levels_.back();
    if (level.at == level.directory.entries.size()) {
      levels_.pop_back();
      path_.leave();
      continue;
    }
    const DirectoryEntry& entry = level.directory.entries[level.at];
    const std::string key = level.dir + entry.name;
    const bool descends = options_.recursive && entry.is_directory() && entry.kind == ObjectKind::kFile;
    if (entry.name.starts_with(kTempPrefix) || !key.starts_with(prefix_) || was_before(key, descends)) {
      ++level.at;
      continue;
    }
    if (descends) {
      ++level.at;
      RETURN_IF_ERROR(enter(context, key));
      continue;
    }
    const bool is_prefix = entry.is_directory() && entry.kind == ObjectKind::kFile;
    std::optional<ObjectInfo> object;
    if (!is_prefix) {
      ASSIGN_OR_RETURN(object, describe(context, key, entry.kind, options_.others));
    }
    if ((is_prefix || object) && static_cast<int64_t>(page.objects.size() + page.prefixes.size()) == max_keys) {
      page.next_page_token = page_token_behind(last_);
      return page;
    }
    ++level.at;
    if (!is_prefix && !object) continue;
    if (is_prefix) {
      page.prefixes.push_back(key);
    } else {
      page.objects.push_back(*std::move(object));
    }
    last_ = key;
  }
  return page;
}

Result<ListPage> list_objects(const Context& context, std::string_view prefix, const ListOptions& options) {
  ProcessState& state = context.state->get();
  auto walk = take_walk(state, prefix, options);
  if (!walk) walk = std::make_shared<ListWalk>(prefix, options);
  ASSIGN_OR_RETURN(ListPage page, walk->page(context, options.max_keys));
  if (!page.next_page_token.empty()) keep_walk(state, std::move(walk));
  return page;
}

}  // namespace millrace::local
