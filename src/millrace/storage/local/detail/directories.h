// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: the directories above an object - made, locked, synced. Thread-safe.

#include <string>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

// Makes `dir` and what is missing above it. Errors: invalid_argument naming the file that is in the way.
[[nodiscard]] Status make_directories(const Context& context, const std::string& dir);

// Makes the entries of `dir`, and `dir` itself below the root, survive a power cut. A directory above `dir` that this
// user may not read is taken to be durable, and nothing above a mount point is synced.
[[nodiscard]] Status sync_directory(const Context& context, const std::string& dir);

// Removes the directories in `dir` that hold nothing but such directories, then `dir`. Follows no link. Errors:
// invalid_argument naming a file that is in the way, permission_denied.
[[nodiscard]] Status remove_empty_directory(const std::string& dir);

// Keeps a commit of if_version apart from every other commit and removal in the directory: that one locks
// exclusively, the others share. Where nothing can be locked the others go on, since no if_version can succeed there.
class DirectoryLock {
 public:
  // Waits. Errors: unsupported, permission_denied; never for kShared.
  [[nodiscard]] static Result<DirectoryLock> take(Syscalls& sys, const std::string& dir, LockMode mode);
  DirectoryLock(DirectoryLock&&) noexcept = default;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  DirectoryLock(Syscalls& sys, Fd fd) : sys_(sys), fd_(std::move(fd)) {}
  Syscalls& sys_;
  Fd fd_;
};

}  // namespace millrace::local
