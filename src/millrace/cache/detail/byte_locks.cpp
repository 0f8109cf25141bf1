// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/detail/byte_locks.h"

#include <fcntl.h>

#include <cerrno>

namespace millrace::cache {

namespace {

int set_lock(int fd, short type, int64_t begin, int64_t end) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = begin;
  range.l_len = end - begin;
  int result = 0;
  do {
    result = ::fcntl(fd, F_SETLK, &range);
  } while (result < 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

}  // namespace

Result<bool> ByteLocks::try_lock(int64_t begin, int64_t end) {
  State& state = state_.get();
  MutexLock lock(state.mutex);
  const auto next = state.held.lower_bound({begin, begin});
  if (next != state.held.end() && next->first < end) return false;
  if (next != state.held.begin() && std::prev(next)->second > begin) return false;
  const int error = set_lock(fd_, F_WRLCK, begin, end);
  if (error == EAGAIN || error == EACCES) return false;
  if (error != 0) return tl::unexpected(errno_error(error, "lock the cache"));
  state.held.emplace(begin, end);
  return true;
}

void ByteLocks::unlock(int64_t begin, int64_t end) {
  State& state = state_.get();
  MutexLock lock(state.mutex);
  set_lock(fd_, F_UNLCK, begin, end);
  const auto first = state.held.lower_bound({begin, begin});
  state.held.erase(first, state.held.lower_bound({end, end}));
}

}  // namespace millrace::cache
