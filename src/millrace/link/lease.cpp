// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/lease.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "millrace/base/io/descriptor.h"
#include "millrace/link/wall_clock.h"

namespace millrace::link {

namespace {

// The kernel tells the holder of a lease by SIGIO that somebody waits for it, and that would end this process.
void live_through_sigio() {
  static const bool once = [] {
    struct sigaction now{};
    if (::sigaction(SIGIO, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
      now.sa_handler = SIG_IGN;
      ::sigaction(SIGIO, &now, nullptr);
    }
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

FileLease::FileLease(int fd, Kind kind) : fd_(fd) {
  live_through_sigio();
  if (::fcntl(fd_, F_SETLEASE, kind == Kind::kNobody ? F_WRLCK : F_RDLCK) != 0) error_ = errno;
}

FileLease::~FileLease() {
  if (is_held()) ::fcntl(fd_, F_SETLEASE, F_UNLCK);
}

bool FileLease::is_in_use() const {
  return error_ == EAGAIN || error_ == EBUSY;
}

Committed how_committed(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return Committed::kNo;
  // A write stamps both times alike; link(2) and a set time change one of them. So no lease, for which a writer that
  // comes meanwhile has to wait, is taken of files that are just being written.
  if (info.st_mtim.tv_sec == info.st_ctim.tv_sec && info.st_mtim.tv_nsec == info.st_ctim.tv_nsec) return Committed::kNo;
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) return errno == EWOULDBLOCK ? Committed::kInUse : Committed::kNo;
  const FileLease lease(fd.get(), FileLease::Kind::kNoWriter);
  if (lease.is_held()) return Committed::kYes;
  return lease.is_in_use() ? Committed::kInUse : Committed::kNo;
}

bool is_finished(const std::string& path, const ObjectInfo& listed, double quiet_s) {
  const double age_s = wall_now_s() - listed.modified.as_seconds();
  // A time in the future is a clock that was set back, not a writer.
  if (age_s >= 0 && age_s < quiet_s) return false;
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  // A lease that its holder is asked to give up: a release is at work. Whoever waited for it with an open transaction
  // would keep that release waiting in turn.
  if (fd < 0) return errno != EWOULDBLOCK;  // of anything else the copy says why it cannot be read
  // Any other refusal (another owner, a network file system) says nothing of writers.
  const bool has_writer = FileLease(fd, FileLease::Kind::kNoWriter).is_in_use();
  ::close(fd);
  return !has_writer;
}

}  // namespace millrace::link
