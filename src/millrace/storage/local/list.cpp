// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/list.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace millrace::local {
namespace {

constexpr size_t kDirectoryBufferBytes = 64 << 10;

bool is_gone(const Error& error) {
  return error.sys_errno() == ENOENT || error.sys_errno() == ENOTDIR;
}

enum class Kind { kFile, kDirectory, kOther };

// A link is what it points to; one that points nowhere or to itself is nothing.
Result<Kind> kind_of(Syscalls& sys, const std::string& path, unsigned char type) {
  if (type == DT_REG) return Kind::kFile;
  if (type == DT_DIR) return Kind::kDirectory;
  if (type != DT_LNK && type != DT_UNKNOWN) return Kind::kOther;
  const auto info = stat_path(sys, path);
  if (!info && (is_gone(info.error()) || info.error().sys_errno() == ELOOP)) return Kind::kOther;
  if (!info) return tl::unexpected<Error>(info.error());
  return S_ISREG(info->st_mode) ? Kind::kFile : S_ISDIR(info->st_mode) ? Kind::kDirectory : Kind::kOther;
}

// The records of one getdents call. The kernel made them, so their lengths are right.
Status add_entries(Syscalls& sys, const std::string& path, std::span<const char> records,
                   std::vector<DirectoryEntry>& entries) {
  for (size_t at = 0; at < records.size();) {
    uint16_t length = 0;
    std::memcpy(&length, records.data() + at + offsetof(dirent64, d_reclen), sizeof length);
    const auto type = static_cast<unsigned char>(records[at + offsetof(dirent64, d_type)]);
    std::string name(records.data() + at + offsetof(dirent64, d_name));
    at += length;
    if (name == "." || name == "..") continue;
    ASSIGN_OR_RETURN(const Kind kind, kind_of(sys, path + "/" + name, type));
    if (kind == Kind::kOther) continue;
    if (kind == Kind::kDirectory) name += '/';
    entries.push_back({std::move(name)});
  }
  return {};
}

class Lister {
 public:
  Lister(const Context& context, std::string_view prefix, const ListOptions& options)
      : context_(context), prefix_(prefix), options_(options) {}

  Result<ListPage> run() {
    RETURN_IF_ERROR(walk(std::string(directory_part(prefix_))));
    return std::move(page_);
  }

 private:
  bool is_full() const {
    return static_cast<int64_t>(page_.objects.size() + page_.prefixes.size()) == options_.max_keys;
  }

  // `dir` is "" or ends in '/'. Stops once next_page_token is set.
  Status walk(const std::string& dir) {
    ASSIGN_OR_RETURN(const Directory directory,
                     read_directory(*context_.sys, context_.path(dir.substr(0, dir.rfind('/')))));
    if (!path_.enter(directory)) return {};
    for (const auto& entry : directory.entries) {
      const std::string key = dir + entry.name;
      if (entry.name.starts_with(kTempPrefix) || !key.starts_with(prefix_)) continue;
      const bool descends = entry.is_directory() && options_.recursive;
      const std::string& token = options_.page_token;
      if (key <= token && !(descends && token.starts_with(key))) continue;  // was on an earlier page
      if (descends) {
        RETURN_IF_ERROR(walk(key));
      } else {
        RETURN_IF_ERROR(add(key));
      }
      if (!page_.next_page_token.empty()) break;
    }
    path_.leave();
    return {};
  }

  Status add(const std::string& key) {
    if (is_full()) {
      page_.next_page_token = last_;
      return {};
    }
    if (key.ends_with('/')) {
      page_.prefixes.push_back(key);
    } else {
      const auto info = stat_path(*context_.sys, context_.path(key));
      if (!info && is_gone(info.error())) return {};  // removed since the directory was read
      if (!info) return tl::unexpected<Error>(info.error());
      page_.objects.push_back(object_info(key, *info));
    }
    last_ = key;
    return {};
  }

  const Context& context_;
  const std::string_view prefix_;
  const ListOptions& options_;
  WalkPath path_;
  ListPage page_;
  std::string last_;
};

}  // namespace

Result<Directory> read_directory(Syscalls& sys, const std::string& path) {
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
    RETURN_IF_ERROR(add_entries(sys, path, std::span(buffer).first(static_cast<size_t>(got)), directory.entries));
  }
  std::sort(directory.entries.begin(), directory.entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return directory;
}

bool WalkPath::enter(const Directory& directory) {
  const std::pair inode{directory.device, directory.inode};
  if (directory.entries.empty() || std::find(inodes_.begin(), inodes_.end(), inode) != inodes_.end()) return false;
  inodes_.push_back(inode);
  return true;
}

std::string_view directory_part(std::string_view prefix) {
  const size_t slash = prefix.rfind('/');
  return slash == prefix.npos ? std::string_view() : prefix.substr(0, slash + 1);
}

Result<ListPage> list_objects(const Context& context, std::string_view prefix, const ListOptions& options) {
  return Lister(context, prefix, options).run();
}

}  // namespace millrace::local
