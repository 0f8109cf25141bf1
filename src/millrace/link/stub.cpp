// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/stub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>

#include "millrace/base/io/descriptor.h"
#include "millrace/link/detail/linked_files.h"
#include "millrace/link/guarded_stub.h"
#include "millrace/storage/local/local.h"

namespace millrace::link {

namespace {

constexpr mode_t kPermissions = 07777;

}  // namespace

Status make_stub(const std::string& path, int64_t size, const FileTime& modified, bool replaces,
                 const PosixAttributes* guarded) {
  if (::geteuid() == 0 && guarded == nullptr)
    return fail(ErrorCode::kPermissionDenied, "root would read zeros in {}", path);
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return tl::unexpected<Error>(errno_error(error.value(), "make the folder of " + path));
  // A name that no listing shows, should a kill leave it.
  const std::string name =
      fmt::format("{}/.millrace-tmp.stub-{:016x}", fs::path(path).parent_path().string(), std::random_device()());
  // An attribute may be set only by who may write: the mode comes behind it.
  const Descriptor fd(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0) return tl::unexpected<Error>(file_error("make", name));
  const auto made = [&]() -> Status {
    if (::ftruncate(fd.get(), size) != 0) return tl::unexpected<Error>(file_error("make", name));
    if (guarded == nullptr && ::fsetxattr(fd.get(), kStubAttribute, "1", 1, 0) != 0) {
      return fail(ErrorCode::kUnsupported, "the file system of {} keeps no attributes ({})", path,
                  errno_error(errno, "fsetxattr").message());
    }
    if (guarded != nullptr && ::fchown(fd.get(), guarded->owner, guarded->group) != 0) {
      return tl::unexpected<Error>(file_error("chown", name));
    }
    const mode_t mode = guarded != nullptr ? guarded->mode & kPermissions : 0;
    if (::fchmod(fd.get(), mode) != 0) return tl::unexpected<Error>(file_error("chmod", name));
    const timespec times[2] = {modified.as_timespec(), modified.as_timespec()};
    if (::futimens(fd.get(), times) != 0) return tl::unexpected<Error>(file_error("set the time of", name));
    if (guarded != nullptr) {
      struct stat info{};
      if (::fstat(fd.get(), &info) != 0) return tl::unexpected<Error>(file_error("stat", name));
      RETURN_IF_ERROR(mark_guarded_stub(fd.get(), info));
    }
    const int placed = replaces ? std::rename(name.c_str(), path.c_str()) : ::link(name.c_str(), path.c_str());
    if (placed != 0) return tl::unexpected<Error>(file_error("make", path));
    return {};
  }();
  if (!made || !replaces) ::unlink(name.c_str());
  return made;
}

void clear_stub(const std::string& path) {
  ::lremovexattr(path.c_str(), kStubAttribute);
  if (!read_guarded_stub(path)) ::lremovexattr(path.c_str(), kGuardedStubAttribute);
}

bool looks_released(const std::string& path) {
  if (read_guarded_stub(path)) return true;
  constexpr blkcnt_t kAttributeBlocks = 8;  // an attribute may take a block of 4 KiB
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || (info.st_mode & kPermissions) != 0) return false;
  return info.st_size > 0 && info.st_blocks <= (info.st_size > kAttributeBlocks * 512 ? kAttributeBlocks : 0);
}

bool is_stub(const std::string& path) {
  return ::lgetxattr(path.c_str(), kStubAttribute, nullptr, 0) >= 0 || read_guarded_stub(path);
}

}  // namespace millrace::link
