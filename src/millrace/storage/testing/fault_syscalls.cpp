// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/fault_syscalls.h"

#include <fcntl.h>
#include <linux/magic.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace millrace {
namespace {

int fail_with(int error) {
  errno = error;
  return -1;
}

}  // namespace

FaultSyscalls::FaultSyscalls(uint64_t seed, const std::string& crash_root) : random_(seed) {
  if (!crash_root.empty()) model_.emplace(crash_root);
}

void FaultSyscalls::add(SyscallFault fault) {
  MutexLock lock(mutex_);
  faults_.push_back({std::move(fault)});
}

void FaultSyscalls::clear() {
  MutexLock lock(mutex_);
  faults_.clear();
}

int64_t FaultSyscalls::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

void FaultSyscalls::cut_power_after(int64_t calls) {
  MutexLock lock(mutex_);
  power_until_ = calls_ + calls;
}

void FaultSyscalls::crash() {
  MutexLock lock(mutex_);
  power_until_ = INT64_MAX;
  paths_.clear();
  model_->crash(random_);
}

std::unique_ptr<MutexLock> FaultSyscalls::turn() {
  return has_model() ? std::make_unique<MutexLock>(turns_) : nullptr;
}

bool FaultSyscalls::has_model() const {
  MutexLock lock(mutex_);
  return model_.has_value();
}

std::string FaultSyscalls::path_of_fd(int fd) const {
  MutexLock lock(mutex_);
  const auto found = paths_.find(fd);
  return found == paths_.end() ? std::string() : found->second;
}

FaultSyscalls::Verdict FaultSyscalls::judge(std::string_view call, std::string_view path, size_t size) {
  Verdict verdict{.size = size};
  std::chrono::microseconds delay{0};
  {
    MutexLock lock(mutex_);
    if (calls_++ >= power_until_) return {.error = EIO};
    for (auto& [fault, matches] : faults_) {
      if (!fault.call.empty() && fault.call != call) continue;
      if (path.find(fault.path_part) == path.npos) continue;
      const int64_t match = matches++;
      if (match < fault.skip || match - fault.skip >= fault.count) continue;
      if (std::uniform_real_distribution<>(0, 1)(random_) >= fault.probability) continue;
      delay += fault.delay;
      apply(fault, verdict);
    }
  }
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
  return verdict;
}

void FaultSyscalls::apply(const SyscallFault& fault, Verdict& verdict) {
  using Kind = SyscallFault::Kind;
  if (fault.kind == Kind::kError || fault.kind == Kind::kTorn) verdict.error = fault.error;
  if (fault.kind == Kind::kTorn) verdict.torn = true;
  if ((fault.kind == Kind::kShort || fault.kind == Kind::kTorn) && verdict.size > 1) {
    verdict.size = 1 + random_() % (verdict.size - 1);
  }
}

template <class Real, class Tell>
int FaultSyscalls::run(std::string_view call, std::string_view path, Real&& real, Tell&& tell) {
  const auto held = turn();
  if (const Verdict verdict = judge(call, path); verdict.error != 0) return fail_with(verdict.error);
  const int result = real();
  if (result < 0) return result;
  MutexLock lock(mutex_);
  if (model_) tell(*model_);
  return result;
}

template <class Real>
int FaultSyscalls::run(std::string_view call, std::string_view path, Real&& real) {
  return run(call, path, real, [](CrashModel&) {});
}

int FaultSyscalls::open(const char* path, int flags, mode_t mode) {
  const auto held = turn();
  if (const Verdict verdict = judge("open", path); verdict.error != 0) return fail_with(verdict.error);
  const int fd = Syscalls::open(path, flags, mode);
  if (fd < 0) return fd;
  MutexLock lock(mutex_);
  paths_[fd] = path;
  const bool is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  if (model_ && is_unnamed) model_->made_unnamed(fd);
  if (model_ && !is_unnamed) model_->opened(fd, path, (flags & O_CREAT) != 0);
  if (model_ && (flags & O_TRUNC) != 0) model_->truncated(fd, 0);
  return fd;
}

int FaultSyscalls::close(int fd) {
  const auto held = turn();
  {
    MutexLock lock(mutex_);  // before the number can be given to another file
    paths_.erase(fd);
    if (model_) model_->closed(fd);
  }
  return Syscalls::close(fd);
}

int FaultSyscalls::dup(int fd) {
  return run("dup", path_of_fd(fd), [&] { return Syscalls::dup(fd); });
}

ssize_t FaultSyscalls::pread(int fd, void* out, size_t size, off_t offset) {
  const Verdict verdict = judge("pread", path_of_fd(fd), size);
  return verdict.error != 0 ? fail_with(verdict.error) : Syscalls::pread(fd, out, verdict.size, offset);
}

ssize_t FaultSyscalls::pwrite(int fd, const void* data, size_t size, off_t offset) {
  const auto held = turn();
  const Verdict verdict = judge("pwrite", path_of_fd(fd), size);
  if (verdict.error != 0 && !verdict.torn) return fail_with(verdict.error);
  const ssize_t put = Syscalls::pwrite(fd, data, verdict.size, offset);
  if (put > 0) {
    MutexLock lock(mutex_);
    if (model_) model_->wrote(fd, offset, {static_cast<const char*>(data), static_cast<size_t>(put)});
  }
  return verdict.error != 0 ? fail_with(verdict.error) : put;
}

ssize_t FaultSyscalls::copy_file_range(int in, off_t in_offset, int out, off_t out_offset, size_t size) {
  const auto held = turn();
  const Verdict verdict = judge("copy_file_range", path_of_fd(out), size);
  if (verdict.error != 0) return fail_with(verdict.error);
  const ssize_t moved = Syscalls::copy_file_range(in, in_offset, out, out_offset, verdict.size);
  MutexLock lock(mutex_);
  if (moved > 0 && model_) {
    std::string bytes(static_cast<size_t>(moved), '\0');
    if (Syscalls::pread(in, bytes.data(), bytes.size(), in_offset) == moved) model_->wrote(out, out_offset, bytes);
  }
  return moved;
}

ssize_t FaultSyscalls::getdents(int fd, void* out, size_t size) {
  const Verdict verdict = judge("getdents", path_of_fd(fd));
  return verdict.error != 0 ? fail_with(verdict.error) : Syscalls::getdents(fd, out, size);
}

int FaultSyscalls::stat(const char* path, struct stat* out) {
  return run("stat", path, [&] { return Syscalls::stat(path, out); });
}
int FaultSyscalls::lstat(const char* path, struct stat* out) {
  return run("lstat", path, [&] { return Syscalls::lstat(path, out); });
}
int FaultSyscalls::fstat(int fd, struct stat* out) {
  return run("fstat", path_of_fd(fd), [&] { return Syscalls::fstat(fd, out); });
}
int FaultSyscalls::statvfs(const char* path, struct statvfs* out) {
  return run("statvfs", path, [&] { return Syscalls::statvfs(path, out); });
}
// The model's file system is one of those that syncfs() writes out.
int FaultSyscalls::statfs(const char* path, struct statfs* out) {
  const int result = run("statfs", path, [&] { return Syscalls::statfs(path, out); });
  if (result == 0 && has_model()) out->f_type = EXT4_SUPER_MAGIC;
  return result;
}
int FaultSyscalls::ftruncate(int fd, off_t size) {
  return run(
      "ftruncate", path_of_fd(fd), [&] { return Syscalls::ftruncate(fd, size); },
      [&](CrashModel& model) { model.truncated(fd, size); });
}
int FaultSyscalls::fallocate(int fd, int mode, off_t offset, off_t size) {
  return run("fallocate", path_of_fd(fd), [&] { return Syscalls::fallocate(fd, mode, offset, size); });
}
int FaultSyscalls::fchown(int fd, uid_t owner, gid_t group) {
  return run("fchown", path_of_fd(fd), [&] { return Syscalls::fchown(fd, owner, group); });
}
int FaultSyscalls::fchmod(int fd, mode_t mode) {
  return run("fchmod", path_of_fd(fd), [&] { return Syscalls::fchmod(fd, mode); });
}
int FaultSyscalls::futimens(int fd, const struct timespec times[2]) {
  return run("futimens", path_of_fd(fd), [&] { return Syscalls::futimens(fd, times); });
}
int FaultSyscalls::flock(int fd, int operation) {
  // Not in a turn: it may wait for another thread, and changes nothing that the model knows.
  const Verdict verdict = judge("flock", path_of_fd(fd));
  return verdict.error != 0 ? fail_with(verdict.error) : Syscalls::flock(fd, operation);
}
int FaultSyscalls::fdatasync(int fd) {
  return run(
      "fdatasync", path_of_fd(fd), [&] { return has_model() ? 0 : Syscalls::fdatasync(fd); },
      [&](CrashModel& model) { model.file_synced(fd); });
}
int FaultSyscalls::fsync(int fd) {
  return run(
      "fsync", path_of_fd(fd), [&] { return has_model() ? 0 : Syscalls::fsync(fd); },
      [&](CrashModel& model) {
        model.file_synced(fd);
        model.directory_synced(fd);
      });
}
int FaultSyscalls::syncfs(int fd) {
  return run(
      "syncfs", path_of_fd(fd), [&] { return has_model() ? 0 : Syscalls::syncfs(fd); },
      [&](CrashModel& model) { model.all_synced(); });
}
int FaultSyscalls::setup_ring(unsigned entries, struct io_uring* out) {
  if (has_model()) return fail_with(ENOSYS);  // whose disk is made of calls
  return run("io_uring_setup", "", [&] { return Syscalls::setup_ring(entries, out); });
}
int64_t FaultSyscalls::ring_transfer(size_t size) {
  const Verdict verdict = judge("io_uring", "", size);
  return verdict.error != 0 ? -verdict.error : static_cast<int64_t>(verdict.size);
}
int FaultSyscalls::rename(const char* from, const char* to) {
  return run(
      "rename", to, [&] { return Syscalls::rename(from, to); }, [&](CrashModel& model) { model.renamed(from, to); });
}
int FaultSyscalls::rename_noreplace(const char* from, const char* to) {
  return run(
      "rename_noreplace", to, [&] { return Syscalls::rename_noreplace(from, to); },
      [&](CrashModel& model) { model.renamed(from, to); });
}
int FaultSyscalls::link(const char* from, const char* to) {
  return run("link", to, [&] { return Syscalls::link(from, to); }, [&](CrashModel& model) { model.linked(from, to); });
}
int FaultSyscalls::link_fd(int fd, const char* to) {
  return run("link_fd", to, [&] { return Syscalls::link_fd(fd, to); }, [&](CrashModel& model) { model.named(fd, to); });
}
int FaultSyscalls::unlink(const char* path) {
  return run("unlink", path, [&] { return Syscalls::unlink(path); }, [&](CrashModel& model) { model.unlinked(path); });
}
int FaultSyscalls::mkdir(const char* path, mode_t mode) {
  return run(
      "mkdir", path, [&] { return Syscalls::mkdir(path, mode); },
      [&](CrashModel& model) { model.made_directory(path); });
}

}  // namespace millrace
