// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage in a directory of a local or shared file system (ext4, XFS, Lustre, NFS). Thread-safe; usable after fork.
//
//  - A version is device, inode, size and modification time in ns. An object changed in place between two reads is
//    corruption. An object replaced by a commit stays readable through open readers.
//  - A write goes to a file ".millrace-tmp.*" next to its target. `list` hides this file. Its lock shows whether its
//    writer still runs. Keys with such a component are refused. A write replaces a symbolic link at its target instead
//    of following it.
//  - remove() leaves empty directories, and `list` shows them as prefixes. Symbolic links are followed for reading.
//  - if_version protects against every process that writes or removes through this class. if_version and list_uploads
//    answer unsupported on a file system without flock.

#include <functional>
#include <memory>
#include <string>

#include "millrace/storage/storage.h"

struct stat;

namespace millrace {

class Syscalls;

// How large files that are read or written once are moved (OpenOptions::once, a large WriteOptions::size_hint_bytes).
enum class LocalDirect {
  kByFileSystem,  // bypasses the page cache (O_DIRECT) on ext4, XFS, F2FS and Lustre, not elsewhere
  kNever,         // uses the page cache, and drops the pages after the transfer
  kAlways,        // bypasses the page cache for all aligned pieces
};

struct LocalOptions {
  int io_threads = 0;  // threads that serve submit(); 0: one per available CPU, at least 2 and at most 16
  bool rings = true;   // use io_uring for submit() if available: 32 transfers at once per thread
  LocalDirect direct = LocalDirect::kByFileSystem;
  Syscalls* syscalls = nullptr;  // tests replace the real ones; outlives the storage and its files
};

// The attribute of a stub, a file whose content is elsewhere (link/). A stub has mode 0000, a size, and no data
// blocks.
inline constexpr const char* kStubAttribute = "user.millrace.stub";
// The attribute of a guarded stub. Any program may open a guarded stub and then waits for its content
// (link/guarded_stub.h). The value begins with the inode of the stub. Only root sees the attribute.
inline constexpr const char* kGuardedStubAttribute = "trusted.millrace.stub";
// Opens the content of `path`, a file with the mode and size of a stub. `file`: the result of stat(). Errors:
// not_found (the file is not a stub); any other error: the content is not available. Thread-safe.
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
// Checks a file for code that reads it without this storage. Errors: unavailable (the file is a stub, which reads as
// zeros).
[[nodiscard]] Status check_has_content(int fd, const std::string& path);

// Returns the version of the file that `info` describes.
std::string local_version(const struct stat& info);

// Reads MILLRACE_DIRECT_IO: "auto" (the default), "never" or "always". Errors: invalid_argument.
[[nodiscard]] Result<LocalDirect> local_direct_from_environment();

// Opens the storage of all files below `root`. Errors: not_found, invalid_argument (not a directory),
// permission_denied.
[[nodiscard]] Result<std::shared_ptr<Storage>> open_local_storage(std::string root, const LocalOptions& options = {});

}  // namespace millrace
