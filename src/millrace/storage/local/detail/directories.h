// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: makes, locks and syncs the directories above an object. Thread-safe.

#include <string>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

// Makes `dir` and missing directories above it. Errors: invalid_argument naming a file in the way.
[[nodiscard]] Status make_directories(const Context& context, const std::string& dir);

// Makes the entries of `dir`, and `dir` itself below the root, survive a power cut. Directories above `dir` that this
// user may not read count as durable. Directories above a mount point are not synced.
[[nodiscard]] Status sync_directory(const Context& context, const std::string& dir);

// As Storage::set_folder_attributes.
[[nodiscard]] Status set_directory_attributes(const Context& context, const std::string& dir,
                                              const PosixAttributes& attributes);

// Removes the empty directories below `dir`, then `dir`. Follows no link. Errors: invalid_argument naming a file in the
// way, permission_denied.
[[nodiscard]] Status remove_empty_directory(const std::string& dir);

// Separates a commit with if_version from other commits and removals in the directory: it locks exclusively, the others
// share the lock. Where locking is impossible the others continue, because if_version fails there.
class DirectoryLock {
 public:
  // Waits for the lock. Errors: unsupported, permission_denied; none for kShared.
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
