// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/syscalls.h"

#include <dirent.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

namespace millrace {

int Syscalls::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
int Syscalls::close(int fd) {
  return ::close(fd);
}
int Syscalls::dup(int fd) {
  return ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
}
ssize_t Syscalls::pread(int fd, void* out, size_t size, off_t offset) {
  return ::pread(fd, out, size, offset);
}
ssize_t Syscalls::pwrite(int fd, const void* data, size_t size, off_t offset) {
  return ::pwrite(fd, data, size, offset);
}
ssize_t Syscalls::copy_file_range(int in, off_t in_offset, int out, off_t out_offset, size_t size) {
  return ::copy_file_range(in, &in_offset, out, &out_offset, size, 0);
}
ssize_t Syscalls::getdents(int fd, void* out, size_t size) {
  return ::getdents64(fd, out, size);
}
int Syscalls::stat(const char* path, struct stat* out) {
  return ::stat(path, out);
}
int Syscalls::lstat(const char* path, struct stat* out) {
  return ::lstat(path, out);
}
int Syscalls::fstat(int fd, struct stat* out) {
  return ::fstat(fd, out);
}
int Syscalls::statvfs(const char* path, struct statvfs* out) {
  return ::statvfs(path, out);
}
int Syscalls::statfs(const char* path, struct statfs* out) {
  return ::statfs(path, out);
}
int Syscalls::get_quota(const char* path, int type, uint32_t id, struct dqblk* out) {
  const int fd = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  const long result = ::syscall(SYS_quotactl_fd, fd, QCMD(Q_GETQUOTA, type), id, out);
  const int error = errno;
  ::close(fd);
  errno = error;
  return static_cast<int>(result);
}
uid_t Syscalls::geteuid() {
  return ::geteuid();
}
int64_t Syscalls::cached_bytes(int fd, off_t offset, off_t size) {
  constexpr long kCachestat = 451;  // since Linux 6.5; newer than the headers
  struct {
    uint64_t offset, size;
  } const range{static_cast<uint64_t>(offset), static_cast<uint64_t>(size)};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } pages{};
  if (::syscall(kCachestat, fd, &range, &pages, 0) != 0) return sampled_cached_bytes(fd, offset, size);
  return static_cast<int64_t>(pages.cached) * ::sysconf(_SC_PAGESIZE);
}
int64_t Syscalls::sampled_cached_bytes(int fd, off_t offset, off_t size) {
  constexpr int kLooks = 16;  // a call each; tells a sixteenth apart
  char byte = 0;
  const iovec out{&byte, 1};
  int64_t found = 0;
  for (int i = 0; i < kLooks; ++i) {
    found += ::preadv2(fd, &out, 1, offset + size / kLooks * i, RWF_NOWAIT) == 1 ? 1 : 0;
  }
  return size / kLooks * found;
}
int Syscalls::fadvise(int fd, off_t offset, off_t size, int advice) {
  const int error = ::posix_fadvise(fd, offset, size, advice);
  if (error == 0) return 0;
  errno = error;
  return -1;
}
int Syscalls::sync_file_range(int fd, off_t offset, off_t size, unsigned flags) {
  return ::sync_file_range(fd, offset, size, flags);
}
int Syscalls::ftruncate(int fd, off_t size) {
  return ::ftruncate(fd, size);
}
int Syscalls::fallocate(int fd, int mode, off_t offset, off_t size) {
  return ::fallocate(fd, mode, offset, size);
}
int Syscalls::fchown(int fd, uid_t owner, gid_t group) {
  return ::fchown(fd, owner, group);
}
int Syscalls::fchmod(int fd, mode_t mode) {
  return ::fchmod(fd, mode);
}
int Syscalls::futimens(int fd, const struct timespec times[2]) {
  return ::futimens(fd, times);
}
int Syscalls::flock(int fd, int operation) {
  return ::flock(fd, operation);
}
int Syscalls::fdatasync(int fd) {
  return ::fdatasync(fd);
}
int Syscalls::fsync(int fd) {
  return ::fsync(fd);
}
int Syscalls::syncfs(int fd) {
  return ::syncfs(fd);
}
int64_t Syscalls::dirty_bytes() {
  std::ifstream lines("/proc/meminfo");  // "Dirty:    4 kB"
  std::string name, unit;
  int64_t dirty = 0;
  if (lines.peek() == std::ifstream::traits_type::eof()) return std::numeric_limits<int64_t>::max();
  for (int64_t kib = 0; lines >> name >> kib; std::getline(lines, unit)) {
    if (name == "Dirty:" || name == "Writeback:") dirty += kib * 1024;
  }
  return dirty;
}
int Syscalls::setup_ring(unsigned entries, struct io_uring* out) {
  io_uring_params params{};
  params.flags = IORING_SETUP_COOP_TASKRUN;  // the ring's thread asks for completions, so it need not be interrupted
  int result = io_uring_queue_init_params(entries, out, &params);
  if (result == -EINVAL) {  // Linux before 5.19
    params = {};
    result = io_uring_queue_init_params(entries, out, &params);
  }
  constexpr unsigned kNeeded = IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS | IORING_FEAT_FAST_POLL;  // Linux 5.7
  if (result == 0 && (params.features & kNeeded) != kNeeded) {
    io_uring_queue_exit(out);
    result = -ENOSYS;
  }
  if (result == 0) return 0;
  errno = -result;
  return -1;
}
int64_t Syscalls::ring_transfer(size_t size) {
  return static_cast<int64_t>(size);
}
int Syscalls::rename(const char* from, const char* to) {
  return ::rename(from, to);
}
int Syscalls::rename_noreplace(const char* from, const char* to) {
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
}
int Syscalls::link(const char* from, const char* to) {
  return ::link(from, to);
}
int Syscalls::link_fd(int fd, const char* to) {
  // Avoids /proc where the kernel allows it: with CAP_DAC_READ_SEARCH, or for files that this process opened since
  // Linux 6.10. Otherwise it gives ENOENT, as it does when `to` has no directory.
  static std::atomic<bool> may{true};
  if (may && ::linkat(fd, "", AT_FDCWD, to, AT_EMPTY_PATH) == 0) return 0;
  if (may && errno != ENOENT) return -1;
  const std::string from = "/proc/self/fd/" + std::to_string(fd);
  const int linked = ::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to, AT_SYMLINK_FOLLOW);
  if (linked == 0) may = false;
  return linked;
}
int Syscalls::unlink(const char* path) {
  return ::unlink(path);
}
int Syscalls::mkdir(const char* path, mode_t mode) {
  return ::mkdir(path, mode);
}

Syscalls& real_syscalls() {
  static Syscalls real;
  return real;
}

}  // namespace millrace
