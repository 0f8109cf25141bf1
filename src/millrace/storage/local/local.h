// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage in a directory of a local or shared file system (ext4, XFS, Lustre, NFS). Thread-safe; usable after fork.
//
//  - A version is device, inode, size and modification time in ns. An object changed in place between two reads is
//    corruption; one replaced by a commit stays readable by those who have it open.
//  - A write goes to ".millrace-tmp.*" beside its target, which `list` hides and whose lock tells the living from the
//    dead; keys with such a component are refused. A symbolic link at the target is replaced, not followed.
//  - remove() leaves empty directories, and `list` shows them as prefixes. Symbolic links are followed for reading.
//  - if_version holds against every process that writes or removes through this class. It and list_uploads answer
//    unsupported on a file system without flock.

#include <memory>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace {

class Syscalls;

// How large files that are read or written once are moved (OpenOptions::once, a large WriteOptions::size_hint_bytes).
enum class LocalDirect {
  kByFileSystem,  // past the page cache (O_DIRECT) on ext4, XFS, F2FS and Lustre, through it elsewhere
  kNever,         // through it, and dropped behind
  kAlways,        // past it, whatever is aligned for that
};

struct LocalOptions {
  int io_threads = 0;  // that serve submit(); 0: one per available CPU, at least 2 and at most 16
  bool rings = true;   // io_uring for submit(), where the system has it: each thread has 32 transfers under way
  LocalDirect direct = LocalDirect::kByFileSystem;
  Syscalls* syscalls = nullptr;  // for tests: used instead of the system's own; outlives the storage and all it opened
};

// MILLRACE_DIRECT_IO: "auto" (as when it is not set), "never" or "always". Errors: invalid_argument.
[[nodiscard]] Result<LocalDirect> local_direct_from_environment();

// The storage of all files below `root`. Errors: not_found, invalid_argument (not a directory), permission_denied.
[[nodiscard]] Result<std::shared_ptr<Storage>> open_local_storage(std::string root, const LocalOptions& options = {});

}  // namespace millrace
