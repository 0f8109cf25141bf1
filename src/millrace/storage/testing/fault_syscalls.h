// SPDX-License-Identifier: Apache-2.0
#pragma once

// System calls that go wrong as a test wants it: errors, interruptions, short and torn transfers, delays, and a power
// cut before any call, after which crash() makes the directory what might have been left (crash_model.h). For tests,
// through LocalOptions::syscalls. Thread-safe. Where power can be cut, the calls that change the tree run one after the
// other, in the order in which the model hears of them.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/thread/sync.h"
#include "millrace/storage/local/syscalls.h"
#include "millrace/storage/testing/crash_model.h"

namespace millrace {

// A fault for matching calls. The first `skip` pass, each of the next `count` is hit with `probability`. close() is
// never hit.
struct SyscallFault {
  static constexpr int64_t kForever = INT64_MAX;
  enum class Kind {
    kError,  // the call fails with `error`
    kShort,  // a transfer moves fewer bytes, at least one; for pread, pwrite, copy_file_range, io_uring
    kTorn,   // a pwrite writes some of its bytes and fails with `error`
    kDelay,
  };

  std::string call;       // "pwrite"; empty: any
  std::string path_part;  // of the path, or of the path the descriptor was opened with; empty: any
  int64_t skip = 0;
  int64_t count = 1;
  double probability = 1;
  Kind kind = Kind::kError;
  int error = 0;
  std::chrono::microseconds delay{0};
};

class FaultSyscalls final : public Syscalls {
 public:
  // With a `crash_root`, power can be cut. Only these calls may change the tree below it then.
  explicit FaultSyscalls(uint64_t seed, const std::string& crash_root = "");

  void add(SyscallFault fault);
  void clear();
  int64_t calls() const;
  // After `calls` more calls the power is off: every call fails with EIO and has no effect.
  void cut_power_after(int64_t calls);
  // The answer of dirty_bytes().
  void set_dirty_bytes(int64_t bytes) { dirty_bytes_ = bytes; }
  // The power comes back, and the directory is what survived. REQUIRES: crash_root, and no call is under way.
  void crash();

  int open(const char* path, int flags, mode_t mode) override;
  int close(int fd) override;
  int dup(int fd) override;
  ssize_t pread(int fd, void* out, size_t size, off_t offset) override;
  ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) override;
  ssize_t copy_file_range(int in, off_t in_offset, int out, off_t out_offset, size_t size) override;
  ssize_t getdents(int fd, void* out, size_t size) override;
  int stat(const char* path, struct stat* out) override;
  int lstat(const char* path, struct stat* out) override;
  int fstat(int fd, struct stat* out) override;
  int statvfs(const char* path, struct statvfs* out) override;
  int statfs(const char* path, struct statfs* out) override;
  int ftruncate(int fd, off_t size) override;
  int fallocate(int fd, int mode, off_t offset, off_t size) override;
  int fchown(int fd, uid_t owner, gid_t group) override;
  int fchmod(int fd, mode_t mode) override;
  int futimens(int fd, const struct timespec times[2]) override;
  int flock(int fd, int operation) override;
  int fdatasync(int fd) override;
  int fsync(int fd) override;
  int syncfs(int fd) override;
  int64_t dirty_bytes() override { return dirty_bytes_; }
  int setup_ring(unsigned entries, struct io_uring* out) override;
  int64_t ring_transfer(size_t size) override;  // "io_uring"
  int rename(const char* from, const char* to) override;
  int rename_noreplace(const char* from, const char* to) override;
  int link(const char* from, const char* to) override;
  int link_fd(int fd, const char* to) override;
  int unlink(const char* path) override;
  int mkdir(const char* path, mode_t mode) override;

 private:
  struct Armed {
    SyscallFault fault;
    int64_t matches = 0;
  };
  // The fate of one call: it moves at most `size` bytes, then fails with `error` unless that is 0.
  struct Verdict {
    int error = 0;
    size_t size = 0;
    bool torn = false;
  };
  Verdict judge(std::string_view call, std::string_view path, size_t size = 0);
  void apply(const SyscallFault& fault, Verdict& verdict) REQUIRES_LOCK(mutex_);
  bool has_model() const;  // which takes the place of the disk: real syncs would only cost time
  // To be held over a call that changes the tree, from its verdict until the model has heard of it: threads may not see
  // another order than the model, nor a file's number be given to another file in between.
  std::unique_ptr<MutexLock> turn();
  std::string path_of_fd(int fd) const;
  // Runs `real` unless the verdict fails it, and tells the model when it succeeded.
  template <class Real, class Tell>
  int run(std::string_view call, std::string_view path, Real&& real, Tell&& tell);
  template <class Real>
  int run(std::string_view call, std::string_view path, Real&& real);

  Mutex turns_;  // taken before mutex_
  mutable Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::vector<Armed> faults_ GUARDED_BY(mutex_);
  std::map<int, std::string> paths_ GUARDED_BY(mutex_);
  int64_t calls_ GUARDED_BY(mutex_) = 0;
  int64_t power_until_ GUARDED_BY(mutex_) = INT64_MAX;
  std::atomic<int64_t> dirty_bytes_{0};
  std::optional<CrashModel> model_ GUARDED_BY(mutex_);
};

}  // namespace millrace
