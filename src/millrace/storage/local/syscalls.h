// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every system call of local/, in one table, so that a test can make calls fail, stop half-way or lose unsynced data
// (fault_syscalls.h). Each function takes the arguments of the call of its name. It returns -1 and sets errno on
// failure. Thread-safe.

#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>

struct io_uring;

namespace millrace {

class Syscalls {
 public:
  virtual ~Syscalls() = default;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual int close(int fd);
  virtual int dup(int fd);  // with F_DUPFD_CLOEXEC
  virtual ssize_t pread(int fd, void* out, size_t size, off_t offset);
  virtual ssize_t pwrite(int fd, const void* data, size_t size, off_t offset);
  virtual ssize_t copy_file_range(int in, off_t in_offset, int out, off_t out_offset, size_t size);
  virtual ssize_t getdents(int fd, void* out, size_t size);  // struct linux_dirent64
  virtual int stat(const char* path, struct stat* out);
  virtual int lstat(const char* path, struct stat* out);
  virtual int fstat(int fd, struct stat* out);
  virtual int statvfs(const char* path, struct statvfs* out);
  virtual int statfs(const char* path, struct statfs* out);
  virtual int get_quota(const char* path, int type, uint32_t id, struct dqblk* out);  // quotactl_fd, Q_GETQUOTA
  virtual uid_t geteuid();

  virtual int64_t cached_bytes(int fd, off_t offset, off_t size);  // 0 if the kernel does not tell
  // Estimates cached_bytes from 16 positions of the range, by whether each can be read without waiting.
  static int64_t sampled_cached_bytes(int fd, off_t offset, off_t size);
  virtual int fadvise(int fd, off_t offset, off_t size, int advice);
  virtual int sync_file_range(int fd, off_t offset, off_t size, unsigned flags);

  virtual int ftruncate(int fd, off_t size);
  virtual int fallocate(int fd, int mode, off_t offset, off_t size);
  virtual int fchown(int fd, uid_t owner, gid_t group);
  virtual int fchmod(int fd, mode_t mode);
  virtual int futimens(int fd, const struct timespec times[2]);
  virtual int flock(int fd, int operation);
  virtual int fdatasync(int fd);
  virtual int fsync(int fd);
  virtual int syncfs(int fd);
  virtual int64_t dirty_bytes();  // bytes of all files of the machine not yet on disk; INT64_MAX when unknown

  // Calls io_uring_setup(2) for a ring that reads and writes and loses no completion.
  virtual int setup_ring(unsigned entries, struct io_uring* out);
  // Called before a transfer of `size` bytes. Returns the bytes to request, or -errno as the result of the transfer.
  virtual int64_t ring_transfer(size_t size);

  virtual int rename(const char* from, const char* to);
  virtual int rename_noreplace(const char* from, const char* to);  // renameat2 with RENAME_NOREPLACE
  virtual int link(const char* from, const char* to);
  virtual int link_fd(int fd, const char* to);  // linkat: names a file without a name (O_TMPFILE); needs /proc
  virtual int unlink(const char* path);
  virtual int mkdir(const char* path, mode_t mode);
};

// Returns the real system calls.
Syscalls& real_syscalls();

}  // namespace millrace
