// SPDX-License-Identifier: Apache-2.0
#pragma once

// A stub that any program may open: a guardian (guardian.h) blocks the open until the content is here. The file keeps
// its mode, owner, size and time, and consists of one hole. Its attribute kGuardedStubAttribute, which only root sees
// and sets, holds "INODE SIZE MODIFIED_NS STATE". The inode distinguishes a stub from a copy that took the attribute
// with it. Functions are thread-safe.

#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/io/descriptor.h"
#include "millrace/link/config.h"
#include "millrace/storage/storage.h"

struct stat;

namespace millrace::link {

struct GuardedStub {
  uint64_t inode = 0;
  int64_t size = 0;  // size of the object
  FileTime modified;
  // Content is being written, or was when a process died, so the file's current time means nothing.
  bool is_filling = false;
};

// Read the stub's attribute; nullopt: the file has its content.
std::optional<GuardedStub> read_guarded_stub(int fd);
std::optional<GuardedStub> read_guarded_stub(const std::string& path);
// Sets the attribute that marks the file as a stub. Errors: unsupported (a file system without such attributes),
// permission_denied (not root).
[[nodiscard]] Status mark_guarded_stub(int fd, const GuardedStub& stub);
// Does the same with the inode, size and time in `info`.
[[nodiscard]] Status mark_guarded_stub(int fd, const struct stat& info);
// Returns the version (local_version()) that the file had as a complete stub.
std::string version_of(const GuardedStub& stub, const struct stat& info);

// Allows one process at a time to fill or release a file. The kernel frees the lock when its holder dies.
class InodeLock {
 public:
  // Waits for the lock. Errors: those of the file system of `home`.
  [[nodiscard]] static Result<InodeLock> take(const LinkHome& home, uint64_t inode);

 private:
  explicit InodeLock(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

}  // namespace millrace::link
