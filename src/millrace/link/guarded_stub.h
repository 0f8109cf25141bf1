// SPDX-License-Identifier: Apache-2.0
#pragma once

// A stub that any program may open: a guardian (guardian.h) lets the open wait until the content is here. The file has
// its own mode, owner, size and time, is all hole, and has the attribute kGuardedStubAttribute, which only root sees
// and sets: "INODE SIZE MODIFIED_NS STATE". The inode tells a stub from a copy that took the attribute along. Functions
// are thread-safe.

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
  int64_t size = 0;  // of the object
  FileTime modified;
  // Content is being written, or was when a process died: the time that the file has now says nothing.
  bool is_filling = false;
};

// nullopt: the file has its content.
std::optional<GuardedStub> read_guarded_stub(int fd);
std::optional<GuardedStub> read_guarded_stub(const std::string& path);
// Makes the file a stub, as far as the attribute goes. Errors: unsupported (a file system without such attributes),
// permission_denied (not root).
[[nodiscard]] Status mark_guarded_stub(int fd, const GuardedStub& stub);
// The same by a file's own inode, size and time.
[[nodiscard]] Status mark_guarded_stub(int fd, const struct stat& info);
// The version that the file had as a whole stub (local_version()).
std::string version_of(const GuardedStub& stub, const struct stat& info);

// Lets one process at a time fill or release a file; the kernel frees it when its holder dies.
class InodeLock {
 public:
  // Waits. Errors: those of the file system of `home`.
  [[nodiscard]] static Result<InodeLock> take(const LinkHome& home, uint64_t inode);

 private:
  explicit InodeLock(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

}  // namespace millrace::link
