// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/guarded_stub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <limits>

#include "millrace/storage/local/local.h"

namespace millrace::link {

namespace {

constexpr size_t kLongestStub = 256;

std::optional<GuardedStub> parse(std::string_view text, uint64_t inode) {
  std::array<std::string_view, 4> words;
  for (std::string_view& word : words) {
    word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  GuardedStub stub;
  const auto number = [](std::string_view word, auto& value) {
    return std::from_chars(word.data(), word.data() + word.size(), value).ec == std::errc();
  };
  if (!number(words[0], stub.inode) || !number(words[1], stub.size) || stub.inode != inode) return std::nullopt;
  stub.modified = FileTime::of_ns_text(words[2]);
  stub.is_filling = words[3] == "filling";
  return stub;
}

}  // namespace

std::optional<GuardedStub> read_guarded_stub(int fd) {
  std::array<char, kLongestStub> text;
  const ssize_t got = ::fgetxattr(fd, kGuardedStubAttribute, text.data(), text.size());
  struct stat info{};
  if (got < 0 || ::fstat(fd, &info) != 0) return std::nullopt;
  return parse({text.data(), static_cast<size_t>(got)}, info.st_ino);
}

std::optional<GuardedStub> read_guarded_stub(const std::string& path) {
  std::array<char, kLongestStub> text;
  const ssize_t got = ::lgetxattr(path.c_str(), kGuardedStubAttribute, text.data(), text.size());
  struct stat info{};
  if (got < 0 || ::lstat(path.c_str(), &info) != 0) return std::nullopt;
  return parse({text.data(), static_cast<size_t>(got)}, info.st_ino);
}

Status mark_guarded_stub(int fd, const GuardedStub& stub) {
  const std::string text =
      fmt::format("{} {} {} {}", stub.inode, stub.size, stub.modified.ns_text(), stub.is_filling ? "filling" : "whole");
  if (::fsetxattr(fd, kGuardedStubAttribute, text.data(), text.size(), 0) == 0) return {};
  if (errno == EPERM) return fail(ErrorCode::kPermissionDenied, "only root may make such stubs");
  return fail(ErrorCode::kUnsupported, "its file system keeps no trusted attributes ({})",
              errno_error(errno, "fsetxattr").message());
}

Status mark_guarded_stub(int fd, const struct stat& info) {
  return mark_guarded_stub(fd, {.inode = info.st_ino, .size = info.st_size, .modified = FileTime(info.st_mtim)});
}

std::string version_of(const GuardedStub& stub, const struct stat& info) {
  struct stat whole = info;
  whole.st_size = stub.size;
  whole.st_mtim = stub.modified.as_timespec();
  return local_version(whole);
}

Result<InodeLock> InodeLock::take(const LinkHome& home, uint64_t inode) {
  const std::string path = home.folder + "/inodes.lock";
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.get() < 0) return tl::unexpected<Error>(errno_error(errno, "open " + path));
  struct flock range{};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(inode & static_cast<uint64_t>(std::numeric_limits<off_t>::max() - 1));
  range.l_len = 1;
  while (::fcntl(file.get(), F_OFD_SETLKW, &range) != 0) {
    if (errno != EINTR) return tl::unexpected<Error>(errno_error(errno, "lock " + path));
  }
  return InodeLock(std::move(file));
}

}  // namespace millrace::link
