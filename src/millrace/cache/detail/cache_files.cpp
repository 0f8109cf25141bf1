// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/detail/cache_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include "millrace/base/hash/hash.h"
#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/cache/detail/file_system.h"
#include "millrace/cache/detail/slot_table.h"

namespace millrace::cache {

namespace {

constexpr char kMagic[8] = {'m', 'r', 'c', 'a', 'c', 'h', 'e', '\n'};
constexpr uint32_t kFormat = 1;
// Blocks of a set. With fewer, more sets are full while others have room: 128 lose about 3 % of the space to that.
constexpr int64_t kWays = 128;
constexpr int64_t kFewestWays = 8, kMostWays = 1024;  // after a change of the cap; beyond, the cache begins anew
constexpr int64_t kFewestBlocks = 16;
constexpr int64_t kFixedBytes = sizeof(TableHeader) + kOpenSlots * sizeof(OpenSlot);
constexpr std::chrono::seconds kPatience{30};   // A choice: holders lay out or shrink files, which takes seconds
constexpr std::chrono::milliseconds kRetry{5};  // A choice: short beside a start, and little work while one waits

int64_t slots_under(int64_t cap_bytes, int64_t block_bytes) {
  return (cap_bytes - kFixedBytes) / (block_bytes + static_cast<int64_t>(sizeof(Slot)));
}

uint64_t header_checksum(const TableHeader& header) {
  // SAFETY: the fields before the checksum are plain.
  return xxh3_64({reinterpret_cast<const std::byte*>(&header), offsetof(TableHeader, checksum)});
}

void set_header(TableHeader& header, const Geometry& geometry, uint32_t generation) {
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.format = kFormat;
  header.block_bytes = static_cast<uint32_t>(geometry.block_bytes);
  header.sets = static_cast<uint64_t>(geometry.sets);
  header.ways = static_cast<uint64_t>(geometry.ways);
  header.checksum = header_checksum(header);
  header.limit_ways = static_cast<uint32_t>(geometry.ways);
  header.generation = generation;
}

Result<Descriptor> open_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return Descriptor(fd);
  const int error = errno;
  Error failed = errno_error(error, "open " + path);
  if (error == EACCES) failed.add_context("a cache belongs to one user; name another folder");
  return tl::unexpected(std::move(failed));
}

Status truncate(int fd, int64_t bytes, const std::string& path) {
  if (::ftruncate(fd, bytes) == 0) return {};
  return tl::unexpected(errno_error(errno, "resize " + path));
}

// Asked again and again: flock(2) and fcntl(2) wait without end, and no stop token wakes them.
Status pause_for_lock(const std::string& path, const std::stop_token& stop) {
  if (sleep_until(Clock::now() + kRetry, stop)) return {};
  return fail(ErrorCode::kCancelled, "{}: stopped while other processes used the cache", path);
}

// Waits for a lock on the whole file, up to kPatience. Errors: unavailable, cancelled.
Status lock_file(int fd, int kind, const std::string& path, const std::stop_token& stop) {
  for (const auto deadline = Clock::now() + kPatience;;) {
    if (::flock(fd, kind | LOCK_NB) == 0) return {};
    if (errno != EWOULDBLOCK && errno != EINTR) return tl::unexpected(errno_error(errno, "lock " + path));
    if (Clock::now() > deadline) {
      return fail(ErrorCode::kUnavailable, "{}: another process has been changing the cache for {} s", path,
                  kPatience.count());
    }
    RETURN_IF_ERROR(pause_for_lock(path, stop));
  }
}

}  // namespace

int64_t Geometry::table_bytes() const {
  return kFixedBytes + slots() * static_cast<int64_t>(sizeof(Slot));
}

TableHeader& CacheFiles::header() {
  // SAFETY: the mapping begins with the header; other processes change only its atomic words.
  return *reinterpret_cast<TableHeader*>(table_);
}

OpenSlot& CacheFiles::open_slot(int64_t number) {
  // SAFETY: an array of kOpenSlots lies behind the header.
  return reinterpret_cast<OpenSlot*>(table_ + sizeof(TableHeader))[number];
}

Slot& CacheFiles::slot(int64_t set, int64_t way) {
  // SAFETY: an array of sets * ways lies behind the open slots, at a multiple of its alignment.
  return reinterpret_cast<Slot*>(table_ + kFixedBytes)[set * geometry_.ways + way];
}

int64_t CacheFiles::usable_ways() {
  return std::min<int64_t>(header().limit_ways.load(), geometry_.ways);
}

int64_t CacheFiles::limit_bytes() {
  return geometry_.sets * usable_ways() * geometry_.block_bytes + geometry_.table_bytes();
}

Result<std::unique_ptr<CacheFiles>> CacheFiles::open(const std::string& directory, int64_t cap_bytes,
                                                     int64_t block_bytes, const std::stop_token& stop) {
  const int64_t least = kFixedBytes + kFewestBlocks * (block_bytes + static_cast<int64_t>(sizeof(Slot)));
  if (cap_bytes < least) {
    return fail(ErrorCode::kInvalidArgument, "the cache {}: cache_bytes is {}, and at least {} are needed", directory,
                format_bytes(cap_bytes), format_bytes(least));
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return tl::unexpected(errno_error(error.value(), "make the folder of the cache, " + directory));
  std::unique_ptr<CacheFiles> files(new CacheFiles(directory, block_bytes));
  RETURN_IF_ERROR(files->check_file_system());
  RETURN_IF_ERROR(files->lock_and_open(cap_bytes, stop));
  return files;
}

CacheFiles::~CacheFiles() {
  unmap();
  if (made_in_ == fork_generation()) return;
  lock_.release();
  data_.release();
}

Status CacheFiles::check_file_system() const {
  struct statfs found = {};
  if (::statfs(directory_.c_str(), &found) != 0) return tl::unexpected(errno_error(errno, "look at " + directory_));
  const std::string_view name = network_file_system(static_cast<uint32_t>(found.f_type));
  if (name.empty()) return {};
  return fail(ErrorCode::kUnsupported,
              "the cache {}: it lies on {}, which several machines share; name a folder on a disk of this node",
              directory_, name);
}

Status CacheFiles::lock_and_open(int64_t cap_bytes, const std::stop_token& stop) {
  const std::string lock_path = path("cache.lock");
  ASSIGN_OR_RETURN(lock_, open_file(lock_path, O_CREAT));
  locks_ = std::make_unique<ByteLocks>(lock_.get());
  // The exclusive lock is not turned into a shared one in one step, so another process may come in between; what it
  // leaves is looked at anew.
  for (const auto deadline = Clock::now() + kPatience; Clock::now() < deadline;) {
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) RETURN_IF_ERROR(prepare_alone(cap_bytes));
    RETURN_IF_ERROR(lock_file(lock_.get(), LOCK_SH, lock_path, stop));
    ASSIGN_OR_RETURN(const bool is_mapped, map_table());
    if (!is_mapped) {
      ::flock(lock_.get(), LOCK_UN);
      continue;
    }
    ASSIGN_OR_RETURN(data_, open_file(path("cache.data"), O_CREAT));
    // Read-ahead would bring back blocks that nobody checks (SlotTable).
    ::posix_fadvise(data_.get(), 0, 0, POSIX_FADV_RANDOM);
    return lower_to(cap_bytes, stop);
  }
  return fail(ErrorCode::kUnavailable, "{}: the table cannot be read, and other processes use it", path("cache.table"));
}

// False when there is no valid table of this block size.
Result<bool> CacheFiles::map_table() {
  unmap();
  auto file = open_file(path("cache.table"), 0);
  if (!file && file.error().code() == ErrorCode::kNotFound) return false;
  if (!file) return tl::unexpected(std::move(file).error());
  struct stat found = {};
  TableHeader head;
  if (::fstat(file->get(), &found) != 0 || ::pread(file->get(), &head, sizeof head, 0) != sizeof head) return false;
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || head.checksum != header_checksum(head)) return false;
  if (head.format != kFormat) {
    return fail(ErrorCode::kUnsupported, "{}: format {}, and this version knows {}; remove the folder or name another",
                path("cache.table"), head.format, kFormat);
  }
  geometry_ = {head.block_bytes, static_cast<int64_t>(head.sets), static_cast<int64_t>(head.ways)};
  if (geometry_.block_bytes != block_bytes_ || found.st_size != geometry_.table_bytes()) return false;
  void* const memory =
      ::mmap(nullptr, static_cast<size_t>(found.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (memory == MAP_FAILED) return tl::unexpected(errno_error(errno, "map " + path("cache.table")));
  table_ = static_cast<std::byte*>(memory);
  return true;
}

void CacheFiles::unmap() {
  if (table_ != nullptr) ::munmap(table_, static_cast<size_t>(geometry_.table_bytes()));
  table_ = nullptr;
}

// With the exclusive lock: makes the table what the cap asks for.
Status CacheFiles::prepare_alone(int64_t cap_bytes) {
  const int64_t slots = slots_under(cap_bytes, block_bytes_);
  const int64_t fresh_sets = std::max<int64_t>(1, slots / kWays);
  const Geometry fresh{block_bytes_, fresh_sets, slots / fresh_sets};
  ASSIGN_OR_RETURN(const bool is_mapped, map_table());
  if (!is_mapped) return create(fresh);
  const int64_t ways = slots / geometry_.sets;
  const bool keeps_sets = ways >= kFewestWays && ways <= kMostWays;
  const Status resized = ways == geometry_.ways ? Status() : keeps_sets ? resize(ways) : create(fresh);
  RETURN_IF_ERROR(resized);
  ASSIGN_OR_RETURN(const bool is_there, map_table());
  if (!is_there) return fail(ErrorCode::kInternal, "{}: changed by a process without the lock", path("cache.table"));
  header().limit_ways = static_cast<uint32_t>(geometry_.ways);
  ++header().generation;
  return {};
}

Status CacheFiles::create(const Geometry& geometry) {
  ASSIGN_OR_RETURN(const Descriptor data, open_file(path("cache.data"), O_CREAT));
  RETURN_IF_ERROR(truncate(data.get(), 0, path("cache.data")));
  return write_table(geometry, nullptr);
}

Status CacheFiles::resize(int64_t ways) {
  Geometry geometry = geometry_;
  geometry.ways = ways;
  RETURN_IF_ERROR(write_table(geometry, this));
  ASSIGN_OR_RETURN(const Descriptor data, open_file(path("cache.data"), O_CREAT));
  struct stat found = {};
  if (::fstat(data.get(), &found) == 0 && found.st_size <= geometry.data_bytes()) return {};
  return truncate(data.get(), geometry.data_bytes(), path("cache.data"));
}

// A new table with the entries of `from`, in the place of the old one. Its space is taken at once: a write to mapped
// memory without space behind it would kill the process.
Status CacheFiles::write_table(const Geometry& geometry, CacheFiles* from) {
  const std::string fresh = path("cache.table.new");
  ASSIGN_OR_RETURN(const Descriptor file, open_file(fresh, O_CREAT | O_TRUNC));
  if (const int error = ::posix_fallocate(file.get(), 0, geometry.table_bytes()); error != 0) {
    ::unlink(fresh.c_str());
    return tl::unexpected(errno_error(
        error, fmt::format("make the table of the cache ({}), {}", format_bytes(geometry.table_bytes()), fresh)));
  }
  TableHeader header = {};
  set_header(header, geometry, from == nullptr ? 1 : from->header().generation.load());
  if (::pwrite(file.get(), &header, sizeof header, 0) != sizeof header) {
    return tl::unexpected(errno_error(errno, "write " + fresh));
  }
  const int64_t kept = from == nullptr ? 0 : std::min(geometry.ways, from->geometry_.ways);
  const auto bytes = static_cast<ssize_t>(kept * static_cast<int64_t>(sizeof(Slot)));
  for (int64_t set = 0; set < geometry.sets && kept > 0; ++set) {
    const int64_t at = kFixedBytes + set * geometry.ways * static_cast<int64_t>(sizeof(Slot));
    if (::pwrite(file.get(), &from->slot(set, 0), static_cast<size_t>(bytes), at) != bytes) {
      return tl::unexpected(errno_error(errno, "write " + fresh));
    }
  }
  if (::rename(fresh.c_str(), path("cache.table").c_str()) == 0) return {};
  return tl::unexpected(errno_error(errno, "rename " + fresh));
}

Status CacheFiles::lower_to(int64_t cap_bytes, const std::stop_token& stop) {
  const int64_t ways = (cap_bytes - geometry_.table_bytes()) / (geometry_.sets * block_bytes_);
  std::atomic<uint32_t>& limit = header().limit_ways;
  uint32_t before = limit.load();
  if (ways > before) {
    log(LogLevel::kInfo, "the cache {}: other processes have it open, so that their cap of {} holds", directory_,
        format_bytes(limit_bytes()));
  }
  if (ways < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "the cache {}: other processes have it open, and made it for {}; a cap of {} needs a cache to itself",
                directory_, format_bytes(geometry_.data_bytes()), format_bytes(cap_bytes));
  }
  while (ways < before && !limit.compare_exchange_weak(before, static_cast<uint32_t>(ways))) {
  }
  if (ways >= before) return {};
  // Processes look at the limit again once they hold the lock of a slot, so that none writes behind this.
  const int64_t begin = kSlotLocks + ways * geometry_.sets, end = kSlotLocks + geometry_.slots();
  for (;;) {
    ASSIGN_OR_RETURN(const bool is_taken, locks_->try_lock(begin, end));
    if (is_taken) break;
    RETURN_IF_ERROR(pause_for_lock(path("cache.data"), stop));
  }
  const ByteLock lock(*locks_, begin, end);
  for (int64_t set = 0; set < geometry_.sets; ++set) {
    for (int64_t way = ways; way < geometry_.ways; ++way) set_state(slot(set, way), SlotState::kEmpty);
  }
  const int64_t bytes = ways * geometry_.sets * block_bytes_;
  struct stat found = {};
  if (::fstat(data_.get(), &found) == 0 && found.st_size <= bytes) return {};
  return truncate(data_.get(), bytes, path("cache.data"));
}

}  // namespace millrace::cache
