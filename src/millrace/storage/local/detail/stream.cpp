// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/stream.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <array>
#include <bit>

#include "millrace/storage/local/lustre.h"

namespace millrace::local {
namespace {

constexpr size_t kAlignment = 4096;  // of offset, size and memory: the most that devices in use require
// smaller pieces gain little, and many of them wait for the disk one by one
constexpr size_t kPieceBytes = 1 << 20;
constexpr int64_t kWrittenObjectBytes = 16 << 20;     // a smaller object is often read again soon, from memory
constexpr size_t kLargestTransfer = size_t{1} << 30;  // the kernel moves at most 2 GiB in a call
// written behind a stream before it is waited for and dropped: four parts of a copy
constexpr int64_t kBehindBytes = 32 << 20;

bool is_aligned(uint64_t value) {
  return value % kAlignment == 0;
}

// On ext4 and XFS direct transfers were as fast and cost a tenth of the CPU time (docs/benchmarks.md); F2FS and
// Lustre are listed by their documentation. Left out: btrfs and ZFS, which compute checksums of cached pages, and NFS,
// FUSE and overlays, which may serve the page cache of another host.
constexpr std::array<int64_t, 4> kDirectFileSystems = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
                                                       kLustreMagic};

}  // namespace

int64_t StreamPolicy::smallest_object_bytes(bool write) const {
  if (takes_all()) return 0;
  return write ? kWrittenObjectBytes : static_cast<int64_t>(kPieceBytes);
}

size_t StreamPolicy::smallest_piece_bytes() const {
  return takes_all() ? kAlignment : kPieceBytes;
}

bool StreamPolicy::is_direct(dev_t device, int64_t type) {
  if (mode_ != LocalDirect::kByFileSystem) return takes_all();
  if (std::ranges::find(kDirectFileSystems, type) == kDirectFileSystems.end()) return false;
  MutexLock lock(mutex_);
  return !refusing_.contains(device);
}

void StreamPolicy::note_refusal(dev_t device) {
  MutexLock lock(mutex_);
  refusing_.insert(device);
}

Stream::Stream(Syscalls& sys, StreamPolicy& policy, const std::string& path, const Fd& fd, bool write)
    : sys_(sys), policy_(policy), fd_(fd) {
  const auto opened = stat_fd(sys, fd, path);
  if (!opened) return;
  device_ = opened->st_dev;
  struct statfs file_system{};
  if (retry([&] { return sys.statfs(path.c_str(), &file_system); }) < 0) return;
  file_system_ = static_cast<int64_t>(file_system.f_type);
  if (!policy_.is_direct(device_, file_system_)) return;
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

bool Stream::goes_direct(int64_t offset, std::span<const std::byte> memory) const {
  const bool aligned = is_aligned(static_cast<uint64_t>(offset)) && is_aligned(std::bit_cast<uintptr_t>(memory.data()));
  return direct_ && aligned && policy_.is_direct(device_, file_system_);
}

std::optional<Transfer> Stream::direct_transfer(int64_t offset, std::span<std::byte> memory, bool write) const {
  if (memory.size() < policy_.smallest_piece_bytes() || memory.size() > kLargestTransfer) return {};
  if (!is_aligned(memory.size())) return {};
  if (!goes_direct(offset, memory)) return {};
  if (!write && is_cached(offset, memory.size())) return {};
  return Transfer{.fd = direct_.get(), .is_write = write, .offset = offset, .memory = memory};
}

// The aligned front of `bytes`, past the page cache.
template <class Span, class Call>
size_t Stream::move(Span bytes, Call&& call) const {
  const size_t whole = bytes.size() - bytes.size() % kAlignment;
  size_t done = 0;
  while (done < whole && is_aligned(done)) {
    const int64_t moved = retry([&] { return call(done, whole - done); });
    if ((moved == -EINVAL || moved == -EOPNOTSUPP) && done == 0) policy_.note_refusal(device_);
    if (moved <= 0) break;
    done += static_cast<size_t>(moved);
  }
  return done;
}

size_t Stream::read(int64_t offset, std::span<std::byte> out) const {
  if (out.size() < policy_.smallest_piece_bytes()) return 0;
  const bool cached = is_cached(offset, out.size());
  if (cached || !goes_direct(offset, out)) return buffered_read(offset, out, cached);
  return move(out, [&](size_t at, size_t size) {
    return sys_.pread(direct_.get(), out.data() + at, size, offset + static_cast<int64_t>(at));
  });
}

// Pages that were cached before stay cached: another program uses them.
size_t Stream::buffered_read(int64_t offset, std::span<std::byte> out, bool cached) const {
  const int64_t got = retry([&] { return sys_.pread(fd_.get(), out.data(), out.size(), offset); });
  if (got <= 0) return 0;
  if (!cached) static_cast<void>(sys_.fadvise(fd_.get(), offset, got, POSIX_FADV_DONTNEED));
  return static_cast<size_t>(got);
}

size_t Stream::write(int64_t offset, std::span<const std::byte> data) const {
  if (data.size() < policy_.smallest_piece_bytes()) return 0;
  return goes_direct(offset, data) ? direct_write(offset, data) : buffered_write(offset, data);
}

size_t Stream::direct_write(int64_t offset, std::span<const std::byte> data) const {
  return move(data, [&](size_t at, size_t size) {
    return sys_.pwrite(direct_.get(), data.data() + at, size, offset + static_cast<int64_t>(at));
  });
}

// Starts the writing of this piece, then waits for older pieces and drops them from the cache.
size_t Stream::buffered_write(int64_t offset, std::span<const std::byte> data) const {
  const int64_t put = retry([&] { return sys_.pwrite(fd_.get(), data.data(), data.size(), offset); });
  if (put <= 0) return 0;
  constexpr unsigned kWaited = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  static_cast<void>(sys_.sync_file_range(fd_.get(), offset, put, SYNC_FILE_RANGE_WRITE));
  if (const int64_t behind = offset - kBehindBytes; behind >= 0) {
    static_cast<void>(sys_.sync_file_range(fd_.get(), behind, put, kWaited));
    static_cast<void>(sys_.fadvise(fd_.get(), behind, put, POSIX_FADV_DONTNEED));
  }
  return static_cast<size_t>(put);
}

}  // namespace millrace::local
