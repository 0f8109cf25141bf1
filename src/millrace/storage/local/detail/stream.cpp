// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/stream.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>

namespace millrace::local {
namespace {

constexpr size_t kAlignment = 4096;                // of offset, size and memory: no device that is in use asks for more
constexpr size_t kPieceBytes = 1 << 20;            // smaller ones gain little, and many wait for the disk one by one
constexpr int64_t kWrittenObjectBytes = 16 << 20;  // a smaller one may well be read soon, from memory
constexpr int kMeasuredPieces = 4;                 // of each way
constexpr size_t kMeasuredBytes = 2 << 20;  // of a piece that is written: the slower way is waited for, and may cost
                                            // ten times the CPU time. A read needs length to show what it can
constexpr double kWorthwhile = 0.9;         // of the buffered rate: direct transfers cost a tenth of the CPU time
constexpr size_t kLargestTransfer = size_t{1} << 30;  // the kernel moves no more than 2 GiB at once
constexpr int64_t kBehindBytes = 32 << 20;            // written behind a stream before it is waited for and dropped

bool is_aligned(uint64_t value) {
  return value % kAlignment == 0;
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

int64_t StreamPolicy::smallest_object_bytes(bool write) const {
  if (takes_all()) return 0;
  return write ? kWrittenObjectBytes : static_cast<int64_t>(kPieceBytes);
}

size_t StreamPolicy::smallest_piece_bytes() const {
  return takes_all() ? kAlignment : kPieceBytes;
}

Turn StreamPolicy::next(dev_t device, bool write) {
  if (mode_ != LocalDirect::kMeasured) return {.direct = takes_all()};
  MutexLock lock(mutex_);
  Contest& contest = contests_[{device, write}];
  if (contest.direct) return {.direct = *contest.direct};
  // Turn about, so that a disk that is busy for a while is so for both.
  return {.direct = contest.begun++ % 2 == 0, .measured = true};
}

bool StreamPolicy::is_direct(dev_t device, bool write) {
  if (mode_ != LocalDirect::kMeasured) return takes_all();
  MutexLock lock(mutex_);
  return contests_[{device, write}].direct.value_or(false);
}

void StreamPolicy::tell(dev_t device, bool write, bool direct, size_t bytes, double seconds) {
  MutexLock lock(mutex_);
  Contest& contest = contests_[{device, write}];
  Way& way = contest.ways[direct ? 1 : 0];
  ++way.pieces;
  way.bytes += static_cast<double>(bytes);
  way.seconds += seconds;
  const auto& [buffered, past] = contest.ways;
  if (contest.direct || std::min(buffered.pieces, past.pieces) < kMeasuredPieces) return;
  contest.direct = past.rate() >= kWorthwhile * buffered.rate();
}

void StreamPolicy::refused(dev_t device, bool write) {
  MutexLock lock(mutex_);
  contests_[{device, write}].direct = false;
}

Stream::Stream(Syscalls& sys, StreamPolicy& policy, const std::string& path, const Fd& fd, bool write)
    : sys_(sys), policy_(policy), fd_(fd) {
  const auto opened = stat_fd(sys, fd, path);
  if (!opened) return;
  device_ = opened->st_dev;
  auto direct = open_fd(sys, path, (write ? O_WRONLY : O_RDONLY) | O_DIRECT | O_NOFOLLOW | O_NONBLOCK);
  if (!direct) return;
  const auto found = stat_fd(sys, *direct, path);
  if (!found || found->st_dev != opened->st_dev || found->st_ino != opened->st_ino) return;
  wait_in_calls(*direct, O_DIRECT);
  direct_ = std::move(*direct);
}

bool Stream::is_cached(int64_t offset, size_t size) const {
  const auto bytes = static_cast<int64_t>(size);
  return sys_.cached_bytes(fd_.get(), offset, bytes) > bytes / 2;
}

bool Stream::may_be_direct(int64_t offset, std::span<const std::byte> memory) const {
  return direct_ && is_aligned(static_cast<uint64_t>(offset)) && is_aligned(std::bit_cast<uintptr_t>(memory.data()));
}

std::optional<Transfer> Stream::direct_transfer(int64_t offset, std::span<std::byte> memory, bool write) const {
  if (memory.size() < policy_.smallest_piece_bytes() || memory.size() > kLargestTransfer) return {};
  if (!is_aligned(memory.size())) return {};
  if (!may_be_direct(offset, memory) || !policy_.is_direct(device_, write)) return {};
  if (!write && is_cached(offset, memory.size())) return {};
  return Transfer{.fd = direct_.get(), .is_write = write, .is_direct = true, .offset = offset, .memory = memory};
}

// The aligned front of `bytes`, past the page cache.
template <class Span, class Call>
size_t Stream::move(Span bytes, bool write, Call&& call) const {
  const size_t whole = bytes.size() - bytes.size() % kAlignment;
  size_t done = 0;
  while (done < whole && is_aligned(done)) {
    const int64_t moved = retry([&] { return call(done, whole - done); });
    if ((moved == -EINVAL || moved == -EOPNOTSUPP) && done == 0) policy_.refused(device_, write);
    if (moved <= 0) break;
    done += static_cast<size_t>(moved);
  }
  return done;
}

size_t Stream::read(int64_t offset, std::span<std::byte> out) const {
  if (out.size() < policy_.smallest_piece_bytes()) return 0;
  const bool cached = is_cached(offset, out.size());
  if (cached || !may_be_direct(offset, out)) return buffered_read(offset, out, cached);
  const Turn turn = policy_.next(device_, false);
  const Stopwatch watch;
  const size_t done =
      turn.direct ? move(out, false,
                         [&](size_t at, size_t size) {
                           return sys_.pread(direct_.get(), out.data() + at, size, offset + static_cast<int64_t>(at));
                         })
                  : buffered_read(offset, out, false);
  if (turn.measured && done > 0) policy_.tell(device_, false, turn.direct, done, watch.seconds());
  return done;
}

// What was in memory before stays there: somebody uses it.
size_t Stream::buffered_read(int64_t offset, std::span<std::byte> out, bool cached) const {
  const int64_t got = retry([&] { return sys_.pread(fd_.get(), out.data(), out.size(), offset); });
  if (got <= 0) return 0;
  if (!cached) static_cast<void>(sys_.fadvise(fd_.get(), offset, got, POSIX_FADV_DONTNEED));
  return static_cast<size_t>(got);
}

size_t Stream::write(int64_t offset, std::span<const std::byte> data) const {
  if (data.size() < policy_.smallest_piece_bytes()) return 0;
  if (!may_be_direct(offset, data)) return buffered_write(offset, data, false);
  const Turn turn = policy_.next(device_, true);
  if (!turn.measured) return turn.direct ? direct_write(offset, data) : buffered_write(offset, data, false);
  const auto front = data.first(std::min(data.size(), kMeasuredBytes));
  const Stopwatch watch;
  const size_t done = turn.direct ? direct_write(offset, front) : buffered_write(offset, front, true);
  if (done == 0) return 0;
  policy_.tell(device_, true, turn.direct, done, watch.seconds());
  if (done < front.size()) return done;
  return done + direct_write(offset + static_cast<int64_t>(done), data.subspan(done));
}

size_t Stream::direct_write(int64_t offset, std::span<const std::byte> data) const {
  return move(data, true, [&](size_t at, size_t size) {
    return sys_.pwrite(direct_.get(), data.data() + at, size, offset + static_cast<int64_t>(at));
  });
}

// The disk begins at once; what was written some time before is waited for and leaves the memory.
size_t Stream::buffered_write(int64_t offset, std::span<const std::byte> data, bool wait) const {
  const int64_t put = retry([&] { return sys_.pwrite(fd_.get(), data.data(), data.size(), offset); });
  if (put <= 0) return 0;
  constexpr unsigned kWaited = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  static_cast<void>(sys_.sync_file_range(fd_.get(), offset, put, wait ? kWaited : SYNC_FILE_RANGE_WRITE));
  const int64_t behind = wait ? offset : offset - kBehindBytes;
  if (behind >= 0) {
    static_cast<void>(sys_.sync_file_range(fd_.get(), behind, put, kWaited));
    static_cast<void>(sys_.fadvise(fd_.get(), behind, put, POSIX_FADV_DONTNEED));
  }
  return static_cast<size_t>(put);
}

}  // namespace millrace::local
