// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: descriptors, whole reads and writes, versions and names. Everything here retries EINTR, finishes
// short reads and writes, and names the path in its errors. Functions are thread-safe; an Fd belongs to one owner.

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/storage/local/detail/ring.h"
#include "millrace/storage/local/syscalls.h"
#include "millrace/storage/storage.h"

namespace millrace::local {

// Unfinished files have names ".millrace-tmp.host.nonce.pid.counter.target". The note of such a file lies beside it,
// with "-note" behind the counter; a note being written has "-note-new".
inline constexpr std::string_view kTempPrefix = ".millrace-tmp.";
inline constexpr std::string_view kNoteMark = "-note";
inline constexpr std::string_view kNewNoteMark = "-note-new";

// The parts of such a name; nullopt for any other name.
struct TempName {
  std::string_view counter;  // with the mark of a note
  std::string_view target;   // cut when the whole name would be too long
  bool is_note() const { return counter.ends_with(kNoteMark) || counter.ends_with(kNewNoteMark); }
};
std::optional<TempName> parse_temp_name(std::string_view name);
// The path of a note of the unfinished file at `temp_path`. REQUIRES: its name is of that form.
std::string note_path(const std::string& temp_path, std::string_view mark);

inline constexpr int64_t kStatBlockBytes = 512;  // unit of st_blocks

class Fd {
 public:
  Fd() = default;
  Fd(Syscalls& sys, int fd) : sys_(&sys), fd_(fd) {}
  Fd(Fd&& other) noexcept : sys_(other.sys_), fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { close(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

 private:
  Syscalls* sys_ = nullptr;
  int fd_ = -1;
};

// See durable.h.
struct FileSystem {
  Fd fd;
  dev_t device = 0;
};

class ListWalk;
class StreamPolicy;

// These threads wait for the disk, which flushes once for all of them. With 8, files are durable ten times as soon as
// with one, for less CPU. 16 were no faster.
inline constexpr int kSyncThreads = 8;

// The state of one storage in one process.
struct ProcessState {
  ProcessState(Syscalls& sys, int io_threads, FileSystem whole)
      : file_system(std::move(whole)), executor(io_threads, "mr-local-io"), rings(sys, io_threads) {}
  const FileSystem file_system;  // opened before the first write, or it would miss errors; durable.h
  Mutex file_system_mutex;
  bool file_system_failed GUARDED_BY(file_system_mutex) = false;
  Executor executor;
  Rings rings;  // work that rings leave goes to the executor, which outlives them
  Executor syncers{kSyncThreads, "mr-local-sync"};
  // This file system has no O_TMPFILE: new files need a name from the start.
  std::atomic<bool> needs_names{false};
  std::atomic<bool> told_of_owners{false};  // a warning said that files keep this user as their owner
  Mutex mutex;
  // Directories whose entry in their parent is known to survive a power cut, and so on up to the root.
  std::unordered_set<std::string> durable_directories GUARDED_BY(mutex);
  // Listings between two pages, the oldest first.
  std::vector<std::shared_ptr<ListWalk>> walks GUARDED_BY(mutex);
};

// Shared by a storage, its readers and its writers, which may outlive it.
struct Context {
  std::string root;  // absolute; "" for "/"
  std::string name;  // "file:///root"
  Syscalls* sys = nullptr;
  std::unique_ptr<PerProcess<ProcessState>> state;
  std::shared_ptr<StreamPolicy> streams;
  bool rings = true;  // LocalOptions

  std::string path(std::string_view key) const { return root + "/" + std::string(key); }
};

// The path of a key. Errors: invalid_argument.
[[nodiscard]] Result<std::string> path_of(const Context& context, std::string_view key);
std::string parent_of(const std::string& path);

// Repeats a system call while it is interrupted. Returns its result, or -errno.
template <class Call>
int64_t retry(Call&& call) {
  for (;;) {
    const int64_t result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -int64_t{errno};
  }
}

// The Error for a negative result of `retry`.
inline tl::unexpected<Error> sys_fail(int64_t result, std::string_view what) {
  return tl::unexpected<Error>(errno_error(static_cast<int>(-result), what));
}

[[nodiscard]] Result<Fd> open_fd(Syscalls& sys, const std::string& path, int flags, mode_t mode = 0);
// Clears O_NONBLOCK of an open file; `flags` are the ones that stay. Ordinary calls ignore it, but a ring believes that
// such a file never blocks, and would wait for a network in its own thread.
void wait_in_calls(const Fd& fd, int flags);
[[nodiscard]] Result<struct stat> stat_path(Syscalls& sys, const std::string& path);
[[nodiscard]] Result<struct stat> stat_fd(Syscalls& sys, const Fd& fd, const std::string& path);
// Errors: corruption when the file ends earlier.
[[nodiscard]] Status pread_all(Syscalls& sys, const Fd& fd, const std::string& path, int64_t offset,
                               std::span<std::byte> out);
[[nodiscard]] Status pwrite_all(Syscalls& sys, const Fd& fd, const std::string& path, int64_t offset,
                                std::span<const std::byte> data);

// Errors: invalid_argument when it is a directory or anything else that is not a file.
[[nodiscard]] Status check_is_file(const struct stat& info, const std::string& path);
std::string version_of(const struct stat& info);
ObjectInfo object_info(std::string key, const struct stat& info);
PosixAttributes posix_attributes(const struct stat& info);
// Sets owner, mode and times of the open file or directory. Where this user may not give it to the owner, that stays,
// and one warning says so.
[[nodiscard]] Status set_posix_attributes(const Context& context, const Fd& fd, const std::string& path,
                                          const PosixAttributes& attributes);

// Locks a file or directory (flock; the lock goes with the process). False when another process holds it. Errors:
// unsupported where the file system has no locks.
enum class LockMode { kShared, kExclusive };
[[nodiscard]] Result<bool> try_lock(Syscalls& sys, const Fd& fd, const std::string& path, LockMode mode);
[[nodiscard]] Status wait_lock(Syscalls& sys, const Fd& fd, const std::string& path, LockMode mode);
// Unlocks for all that share the descriptor, a forked child too; close() alone would leave the lock to the child.
void unlock(Syscalls& sys, const Fd& fd);

}  // namespace millrace::local
