// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/files.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "millrace/base/log.h"

namespace millrace::local {
namespace {

// The errors of a file system or mount without flock (NFS refuses exclusive locks on directories with EBADF).
bool means_no_locks(int64_t result) {
  return result == -ENOSYS || result == -EOPNOTSUPP || result == -ENOLCK || result == -EINVAL || result == -EBADF;
}

Result<bool> lock_fd(Syscalls& sys, const Fd& fd, const std::string& path, int operation) {
  const int64_t result = retry([&] { return sys.flock(fd.get(), operation); });
  if (result == -EWOULDBLOCK) return false;
  if (means_no_locks(result)) {
    return fail(ErrorCode::kUnsupported, "lock {}: this file system has no flock", path);
  }
  if (result < 0) return sys_fail(result, "lock " + path);
  return true;
}

int flock_operation(LockMode mode) {
  return mode == LockMode::kShared ? LOCK_SH : LOCK_EX;
}

}  // namespace

Result<std::string> path_of(const Context& context, std::string_view key) {
  RETURN_IF_ERROR(check_key(key));
  if (key.starts_with(kTempPrefix) || key.find("/" + std::string(kTempPrefix)) != key.npos) {
    return fail(ErrorCode::kInvalidArgument, "key \"{}\": names beginning with {} are for unfinished writes", key,
                kTempPrefix);
  }
  return context.path(key);
}

std::optional<TempName> parse_temp_name(std::string_view name) {
  if (!name.starts_with(kTempPrefix)) return std::nullopt;
  size_t begin = kTempPrefix.size();  // of a field
  for (int field = 0; field < 3; ++field) {
    const size_t dot = name.find('.', begin);
    if (dot == name.npos) return std::nullopt;
    begin = dot + 1;
  }
  const size_t dot = name.find('.', begin);
  if (dot == name.npos || dot + 1 == name.size()) return std::nullopt;
  return TempName{.counter = name.substr(begin, dot - begin), .target = name.substr(dot + 1)};
}

std::string note_path(const std::string& temp_path, std::string_view mark) {
  const size_t name_begin = temp_path.rfind('/') + 1;
  const auto parsed = parse_temp_name(std::string_view(temp_path).substr(name_begin));
  std::string path = temp_path;
  return path.insert(temp_path.size() - parsed->target.size() - 1, mark);
}

std::string parent_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    close();
    sys_ = other.sys_;
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::close() {
  if (fd_ >= 0) sys_->close(std::exchange(fd_, -1));  // no retry after EINTR: Linux has closed it
}

Result<Fd> open_fd(Syscalls& sys, const std::string& path, int flags, mode_t mode) {
  const int64_t fd = retry([&] { return sys.open(path.c_str(), flags | O_CLOEXEC, mode); });
  if (fd < 0) return sys_fail(fd, "open " + path);
  return Fd(sys, static_cast<int>(fd));
}

void wait_in_calls(const Fd& fd, int flags) {
  static_cast<void>(::fcntl(fd.get(), F_SETFL, flags));
}

Result<struct stat> stat_path(Syscalls& sys, const std::string& path) {
  struct stat info{};
  const int64_t result = retry([&] { return sys.stat(path.c_str(), &info); });
  if (result < 0) return sys_fail(result, "stat " + path);
  return info;
}

Result<struct stat> stat_fd(Syscalls& sys, const Fd& fd, const std::string& path) {
  struct stat info{};
  const int64_t result = retry([&] { return sys.fstat(fd.get(), &info); });
  if (result < 0) return sys_fail(result, "stat " + path);
  return info;
}

Status pread_all(Syscalls& sys, const Fd& fd, const std::string& path, int64_t offset, std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const int64_t got = retry(
        [&] { return sys.pread(fd.get(), out.data() + done, out.size() - done, offset + static_cast<int64_t>(done)); });
    if (got < 0) return sys_fail(got, fmt::format("read {} [{}, {})", path, offset, offset + std::ssize(out)));
    if (got == 0) {
      return fail(ErrorCode::kCorruption, "read {} [{}, {}): changed while reading: it ends at {}", path, offset,
                  offset + std::ssize(out), offset + static_cast<int64_t>(done));
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

Status pwrite_all(Syscalls& sys, const Fd& fd, const std::string& path, int64_t offset,
                  std::span<const std::byte> data) {
  for (size_t done = 0; done < data.size();) {
    int64_t put = retry([&] {
      return sys.pwrite(fd.get(), data.data() + done, data.size() - done, offset + static_cast<int64_t>(done));
    });
    if (put == 0) put = -EIO;  // no file system does this; it bounds the loop
    if (put < 0) return sys_fail(put, fmt::format("write {} [{}, {})", path, offset, offset + std::ssize(data)));
    done += static_cast<size_t>(put);
  }
  return {};
}

Status check_is_file(const struct stat& info, const std::string& path) {
  if (S_ISREG(info.st_mode)) return {};
  const bool is_directory = S_ISDIR(info.st_mode);
  return tl::unexpected<Error>(
      Error(ErrorCode::kInvalidArgument,
            fmt::format("{} is {}, not a file", path, is_directory ? "a directory" : "a device, pipe or socket"),
            is_directory ? EISDIR : 0));
}

std::string version_of(const struct stat& info) {
  const FileTime modified(info.st_mtim);
  // Without fmt, which takes several times as long: a listing makes one for each file.
  std::string text;
  text.reserve(64);
  const auto add = [&](auto number, std::string_view separator) {
    std::array<char, 20> digits;
    text.append(digits.data(), std::to_chars(digits.begin(), digits.end(), number, 16).ptr).append(separator);
  };
  add(info.st_dev, "-");
  add(info.st_ino, "-");
  add(info.st_size, "-");
  if (modified.fits_64_bits()) {
    add(modified.wrapped_ns(), "");
  } else {
    add(modified.seconds(), "s");
    add(modified.nanoseconds(), "");
  }
  return text;
}

ObjectInfo object_info(std::string key, const struct stat& info) {
  return {.key = std::move(key),
          .size = info.st_size,
          .version = version_of(info),
          .modified = FileTime(info.st_mtim),
          .changed = FileTime(info.st_ctim),
          .mode = info.st_mode & 0777};
}

PosixAttributes posix_attributes(const struct stat& info) {
  return {.mode = info.st_mode,
          .owner = info.st_uid,
          .group = info.st_gid,
          .accessed = FileTime(info.st_atim),
          .modified = FileTime(info.st_mtim)};
}

Status set_posix_attributes(const Context& context, const Fd& fd, const std::string& path,
                            const PosixAttributes& attributes) {
  Syscalls& sys = *context.sys;
  if (attributes.mode != 0) {
    const int64_t given = retry([&] { return sys.fchown(fd.get(), attributes.owner, attributes.group); });
    if (given < 0 && given != -EPERM && given != -EINVAL) return sys_fail(given, "change the owner of " + path);
    if (given < 0 && !context.state->get().told_of_owners.exchange(true)) {
      log(LogLevel::kWarning,
          "{}: this user may not give files to others, so that this and further files keep the "
          "owner they have ({}:{} was asked for)",
          path, attributes.owner, attributes.group);
    }
    // The new owner must not lend rights that the former owner gave.
    const mode_t kept = given < 0 ? 01777 : 07777;
    const int64_t changed = retry([&] { return sys.fchmod(fd.get(), attributes.mode & kept); });
    if (changed < 0) return sys_fail(changed, "change the mode of " + path);
  }
  const timespec times[2] = {attributes.accessed.as_timespec(), attributes.modified.as_timespec()};
  const int64_t stamped = retry([&] { return sys.futimens(fd.get(), times); });
  if (stamped < 0) return sys_fail(stamped, "set the times of " + path);
  return {};
}

Result<bool> try_lock(Syscalls& sys, const Fd& fd, const std::string& path, LockMode mode) {
  return lock_fd(sys, fd, path, flock_operation(mode) | LOCK_NB);
}

Status wait_lock(Syscalls& sys, const Fd& fd, const std::string& path, LockMode mode) {
  return lock_fd(sys, fd, path, flock_operation(mode)).map([](bool) {});
}

void unlock(Syscalls& sys, const Fd& fd) {
  static_cast<void>(retry([&] { return sys.flock(fd.get(), LOCK_UN); }));
}

}  // namespace millrace::local
