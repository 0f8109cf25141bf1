// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage in a directory of a local or shared file system (ext4, XFS, Lustre, NFS). Thread-safe; usable after fork.
//
//  - A version is device, inode, size and modification time in ns. An object changed in place between two reads is
//    corruption. An object replaced by a commit stays readable through open readers.
//  - A write goes to ".millrace-tmp.*" beside its target, which `list` hides. The file's lock shows whether its writer
//    still runs. Keys with such a component are refused. A symbolic link at the target is replaced, not followed.
//  - remove() leaves empty directories, and `list` shows them as prefixes. Symbolic links are followed for reading.
//  - if_version holds against every process that writes or removes through this class. It and list_uploads answer
//    unsupported on a file system without flock.

#include <functional>
#include <memory>
#include <string>

#include "millrace/storage/storage.h"

struct stat;

namespace millrace {

class Syscalls;

// How large files that are read or written once are moved (OpenOptions::once, a large WriteOptions::size_hint_bytes).
enum class LocalDirect {
  kByFileSystem,  // past the page cache (O_DIRECT) on ext4, XFS, F2FS and Lustre, through it elsewhere
  kNever,         // through the page cache, and dropped from it behind the stream
  kAlways,        // past it, for all aligned pieces
};

struct LocalOptions {
  int io_threads = 0;  // threads that serve submit(); 0: one per available CPU, at least 2 and at most 16
  bool rings = true;   // io_uring for submit(), where the system has it: each thread has 32 transfers under way
  LocalDirect direct = LocalDirect::kByFileSystem;
  Syscalls* syscalls = nullptr;  // tests replace the system's own; outlives the storage and all that it opened
};

// A stub: a file whose content is elsewhere (link/). It has this attribute, mode 0000, a size, and no data blocks.
inline constexpr const char* kStubAttribute = "user.millrace.stub";
// The other kind of stub: any program may open it and then waits for its content (link/guarded_stub.h). Its value
// begins with its inode; only root sees it.
inline constexpr const char* kGuardedStubAttribute = "trusted.millrace.stub";
// Opens the content of `path`, whose mode and size are those of a stub. `file`: from stat(). Errors: not_found (the
// file is not a stub); any other error: the content is not available. Thread-safe.
using StubOpener =
    std::function<Result<std::unique_ptr<RandomReader>>(const std::string& path, const ObjectInfo& file)>;
// Makes open_read() of a stub read its content; without an opener, that is an error. Call it once, before other threads
// read.
void set_stub_opener(StubOpener opener);
// While it lives, open_read on this thread refuses stubs and reads only content that the file itself holds. For code
// that compares a file with its copy, or resumes from it.
class OwnContentScope {
 public:
  OwnContentScope();
  ~OwnContentScope();
  OwnContentScope(const OwnContentScope&) = delete;
  OwnContentScope& operator=(const OwnContentScope&) = delete;
};
// For code that reads a file without this storage. Errors: unavailable (the file is a stub, which reads as zeros).
[[nodiscard]] Status check_has_content(int fd, const std::string& path);

// The version of the file that `info` describes.
std::string local_version(const struct stat& info);

// Reads MILLRACE_DIRECT_IO: "auto" (the default), "never" or "always". Errors: invalid_argument.
[[nodiscard]] Result<LocalDirect> local_direct_from_environment();

// The storage of all files below `root`. Errors: not_found, invalid_argument (not a directory), permission_denied.
[[nodiscard]] Result<std::shared_ptr<Storage>> open_local_storage(std::string root, const LocalOptions& options = {});

}  // namespace millrace
