// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/detail/slot_table.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

namespace millrace::cache {

namespace {

constexpr uint64_t kStateMask = 3;
constexpr uint32_t kSecondsBits = 24;
constexpr uint32_t kSecondsMask = (1U << kSecondsBits) - 1;
// In a set that is full of this job's blocks, a new block is evicted next; only one new block in kStaysOneOf stays. A
// job that reads more than fits, in an order that returns after an epoch, so keeps a part of it instead of nothing
// (bimodal insertion: Qureshi et al., "Adaptive Insertion Policies for High Performance Caching", ISCA 2007, with
// nearly the same value).
constexpr uint32_t kStaysOneOf = 16;

SlotState state_of(uint64_t word) {
  return static_cast<SlotState>(word & kStateMask);
}

uint64_t next_word(uint64_t word, SlotState state) {
  return (word & ~kStateMask) + (kStateMask + 1) + static_cast<uint64_t>(state);
}

// What SlotTable::checked_ has of a block in this state, without the bits of its chunks.
uint32_t mark_of(uint64_t state) {
  return static_cast<uint32_t>(state >> 2) << kMostChunks;
}

uint32_t chunk_bits(int64_t begin, int64_t end) {
  return ((1U << (end - begin)) - 1) << begin;
}

uint32_t random_number() {
  thread_local std::minstd_rand random(std::random_device{}());
  return static_cast<uint32_t>(random());
}

// What the kernel has read from disks for this thread, in 512-byte blocks. Zero where it does not count (no
// CONFIG_TASK_IO_ACCOUNTING).
int64_t blocks_read_from_disk() {
  rusage usage = {};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_inblock;
}

// False when a part is not in the page cache, or the file system cannot tell. RWF_NOWAIT alone does not say so: the
// kernel starts to read a page that is missing, and about one time in a thousand the disk is done before it looks.
bool read_cached_pages(int fd, int64_t at, std::span<std::byte> out) {
  const int64_t before = blocks_read_from_disk();
  const iovec target{out.data(), out.size()};
  return ::preadv2(fd, &target, 1, at, RWF_NOWAIT) == std::ssize(out) && blocks_read_from_disk() == before;
}

}  // namespace

void set_state(Slot& slot, SlotState state) {
  slot.state.store(next_word(slot.state.load(), state), std::memory_order_release);
}

// calloc: of a large table, the pages of slots that are not used take no memory.
SlotTable::SlotTable(CacheFiles& files)
    : files_(files),
      checked_(static_cast<uint32_t*>(std::calloc(static_cast<size_t>(files.geometry().slots()), sizeof(uint32_t))),
               &std::free) {}

void SlotTable::mark_checked(int64_t number, uint64_t state, int64_t begin, int64_t end) {
  if (checked_ == nullptr) return;
  const std::atomic_ref<uint32_t> word(checked_[static_cast<size_t>(number)]);
  const uint32_t mark = mark_of(state), bits = chunk_bits(begin, end);
  uint32_t before = word.load(std::memory_order_relaxed);
  constexpr uint32_t kChunks = (1U << kMostChunks) - 1;
  while (!word.compare_exchange_weak(before, ((before & ~kChunks) == mark ? before : mark) | bits,
                                     std::memory_order_relaxed)) {
  }
}

bool SlotTable::are_checked(const Found& found, int64_t begin, int64_t end) const {
  if (checked_ == nullptr) return false;
  const std::atomic_ref<uint32_t> word(checked_[static_cast<size_t>(found.number)]);
  const uint32_t wanted = mark_of(found.state) | chunk_bits(begin, end);
  constexpr uint32_t kChunks = (1U << kMostChunks) - 1;
  const uint32_t is = word.load(std::memory_order_relaxed);
  return (is & ~kChunks) == mark_of(found.state) && (is & wanted) == wanted;
}

// Keys of one object step through the sets by the golden ratio, which spreads them evenly.
int64_t SlotTable::set_of(Hash128 key) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<int64_t>((Wide{key.low} * static_cast<uint64_t>(files_.geometry().sets)) >> 64);
}

uint32_t SlotTable::stamp() const {
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  return (files_.header().generation.load(std::memory_order_relaxed) << kSecondsBits) |
         (static_cast<uint32_t>(now.count()) & kSecondsMask);
}

void SlotTable::touch(Slot& slot) {
  const uint32_t now = stamp();
  if (slot.used.load(std::memory_order_relaxed) != now) slot.used.store(now, std::memory_order_relaxed);
}

std::optional<SlotTable::Found> SlotTable::find(Hash128 key) {
  const int64_t set = set_of(key);
  const int64_t ways = files_.usable_ways();
  for (int64_t way = 0; way < ways; ++way) {
    Slot& slot = files_.slot(set, way);
    if (slot.key_low.load(std::memory_order_relaxed) != key.low) continue;
    Found found{.slot = &slot, .number = way * files_.geometry().sets + set, .state = slot.state.load()};
    if (state_of(found.state) != SlotState::kFull) continue;
    // Each word is read before the state is read again, and written behind the state kFilling: a word of another block
    // shows in the state. (Acquire and release of words instead of fences, which ThreadSanitizer does not know.)
    const bool same = slot.key_low.load(std::memory_order_acquire) == key.low &&
                      slot.key_high.load(std::memory_order_acquire) == key.high;
    for (size_t i = 0; i < kMostChunks; ++i) found.hashes[i] = slot.hashes[i].load(std::memory_order_acquire);
    found.size = slot.size.load(std::memory_order_acquire);
    if (same && slot.state.load(std::memory_order_relaxed) == found.state) return found;
  }
  return std::nullopt;
}

bool SlotTable::matches(const Found& found, Hash128 key, int64_t chunk, std::span<const std::byte> bytes) const {
  return xxh3_64(bytes, key.low) == found.hashes[chunk];
}

bool SlotTable::pread_all(int64_t at, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(files_.data(), out.data(), out.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = out.subspan(static_cast<size_t>(got));
    at += got;
  }
  return true;
}

void SlotTable::forget_checks(int64_t number) {
  if (checked_ == nullptr) return;
  std::atomic_ref<uint32_t>(checked_[static_cast<size_t>(number)]).store(0, std::memory_order_relaxed);
}

bool SlotTable::is_in_memory(const Found& found) {
  std::byte first{};
  if (read_cached_pages(files_.data(), found.number * files_.geometry().block_bytes, {&first, 1})) return true;
  forget_checks(found.number);
  return false;
}

void SlotTable::prefetch(const Found& found) {
  forget_checks(found.number);
  ::posix_fadvise(files_.data(), found.number * files_.geometry().block_bytes, found.size, POSIX_FADV_WILLNEED);
}

// False when a part is not in the page cache, the file system cannot tell, or the slot has changed.
bool SlotTable::read_from_memory(const Found& found, int64_t at, std::span<std::byte> out) {
  if (!read_cached_pages(files_.data(), at, out)) {
    forget_checks(found.number);
    return false;
  }
  // A writer changes the state before the data. All of the data was read before the state is.
  __sync_synchronize();
  return found.slot->state.load() == found.state;
}

SlotTable::Outcome SlotTable::read(const Found& found, Hash128 key, int64_t offset, std::span<std::byte> out) {
  const int64_t base = found.number * files_.geometry().block_bytes;
  const int64_t end = offset + static_cast<int64_t>(out.size());
  const auto give_up = [&] { return drop(found) ? Outcome::kDamaged : Outcome::kReplaced; };
  if (end > found.size) return give_up();
  const int64_t first_chunk = offset / kChunkBytes, end_chunk = (end + kChunkBytes - 1) / kChunkBytes;
  if (are_checked(found, first_chunk, end_chunk) && read_from_memory(found, base + offset, out)) {
    touch(*found.slot);
    return Outcome::kKnown;
  }
  thread_local const auto scratch = std::make_unique<std::byte[]>(kChunkBytes);
  for (int64_t at = offset; at < end;) {
    const int64_t chunk = at / kChunkBytes, begin = chunk * kChunkBytes;
    const int64_t chunk_end = std::min(begin + kChunkBytes, found.size);
    std::byte* const target = out.data() + (at - offset);
    if (at > begin || end < chunk_end) {  // a part of a chunk: the whole of it is what can be checked
      const std::span<std::byte> whole(scratch.get(), static_cast<size_t>(chunk_end - begin));
      if (!pread_all(base + begin, whole) || !matches(found, key, chunk, whole)) return give_up();
      const int64_t part_end = std::min(end, chunk_end);
      std::memcpy(target, whole.data() + (at - begin), static_cast<size_t>(part_end - at));
      at = part_end;
      continue;
    }
    const int64_t run_end = end == found.size ? end : end / kChunkBytes * kChunkBytes;
    if (!pread_all(base + at, {target, static_cast<size_t>(run_end - at)})) return give_up();
    for (int64_t part = at; part < run_end; part += kChunkBytes) {
      const auto bytes = static_cast<size_t>(std::min(kChunkBytes, run_end - part));
      if (!matches(found, key, part / kChunkBytes, {target + (part - at), bytes})) return give_up();
    }
    at = run_end;
  }
  touch(*found.slot);
  mark_checked(found.number, found.state, first_chunk, end_chunk);
  return Outcome::kChecked;
}

// Empties the slot, unless it has another block by now. Whether it had been damaged.
bool SlotTable::drop(const Found& found) {
  const int64_t byte = CacheFiles::kSlotLocks + found.number;
  const Result<bool> taken = files_.locks().try_lock(byte, byte + 1);
  if (!taken || !*taken) return false;
  const ByteLock lock(files_.locks(), byte, byte + 1);
  if (found.slot->state.load() != found.state) return false;
  set_state(*found.slot, SlotState::kEmpty);
  return true;
}

// A slot that a block may take, with what is in it: the lowest goes first.
struct SlotTable::Victim {
  int rank = 0;  // empty, left by a process that died, of an older job, of this job
  uint32_t used = 0;
  int64_t way = 0;
  uint64_t state = 0;

  bool operator<(const Victim& other) const {
    return std::tie(rank, used, way) < std::tie(other.rank, other.used, other.way);
  }
};

std::vector<SlotTable::Victim> SlotTable::victims(int64_t set, bool only_full) {
  const uint32_t now = stamp();
  const int64_t ways = files_.usable_ways();
  std::vector<Victim> all;
  for (int64_t way = 0; way < ways; ++way) {
    const Slot& slot = files_.slot(set, way);
    Victim victim{.way = way, .state = slot.state.load()};
    const SlotState state = state_of(victim.state);
    if (only_full && state != SlotState::kFull) continue;
    if (state == SlotState::kFilling) victim.rank = 1;
    if (state == SlotState::kFull) {
      victim.used = slot.used.load(std::memory_order_relaxed);
      victim.rank = (victim.used ^ now) >> kSecondsBits != 0 ? 2 : 3;
    }
    all.push_back(victim);
  }
  std::ranges::sort(all, std::less<>());
  return all;
}

Result<bool> SlotTable::store(Hash128 key, std::span<const std::byte> block) {
  Result<bool> stored = store_in(key, block, /*only_full=*/false);
  // The disk is full: the space of another block can still be written.
  if (!stored && stored.error().code() == ErrorCode::kResourceExhausted) {
    const Result<bool> again = store_in(key, block, /*only_full=*/true);
    if (again && *again) return again;
  }
  return stored;
}

Result<bool> SlotTable::store_in(Hash128 key, std::span<const std::byte> block, bool only_full) {
  const int64_t set = set_of(key);
  for (const Victim& victim : victims(set, only_full)) {
    const int64_t number = victim.way * files_.geometry().sets + set;
    const int64_t byte = CacheFiles::kSlotLocks + number;
    ASSIGN_OR_RETURN(const bool is_taken, files_.locks().try_lock(byte, byte + 1));
    if (!is_taken) continue;
    const ByteLock lock(files_.locks(), byte, byte + 1);
    Slot& slot = files_.slot(set, victim.way);
    if (slot.state.load() != victim.state || victim.way >= files_.usable_ways()) continue;
    const bool is_next_to_go = victim.rank == 3 && random_number() % kStaysOneOf != 0;
    RETURN_IF_ERROR(fill(slot, number, key, block, is_next_to_go ? victim.used : stamp()));
    return true;
  }
  return false;
}

Status SlotTable::fill(Slot& slot, int64_t number, Hash128 key, std::span<const std::byte> block, uint32_t used) {
  set_state(slot, SlotState::kFilling);
  __sync_synchronize();  // before the data (read_from_memory)
  slot.key_low.store(key.low, std::memory_order_release);
  slot.key_high.store(key.high, std::memory_order_release);
  const int64_t base = number * files_.geometry().block_bytes;
  for (size_t at = 0; at < block.size();) {
    const ssize_t put = ::pwrite(files_.data(), block.data() + at, block.size() - at, base + static_cast<int64_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int error = put == 0 ? ENOSPC : errno;
      set_state(slot, SlotState::kEmpty);
      return tl::unexpected(errno_error(error, "write to the cache " + files_.directory()));
    }
    at += static_cast<size_t>(put);
  }
  for (size_t chunk = 0; chunk * kChunkBytes < block.size(); ++chunk) {
    const size_t begin = chunk * kChunkBytes, bytes = std::min<size_t>(kChunkBytes, block.size() - begin);
    slot.hashes[chunk].store(xxh3_64(block.subspan(begin, bytes), key.low), std::memory_order_release);
  }
  slot.size.store(static_cast<uint32_t>(block.size()), std::memory_order_release);
  slot.used.store(used, std::memory_order_relaxed);
  set_state(slot, SlotState::kFull);
  const auto chunks = (static_cast<int64_t>(block.size()) + kChunkBytes - 1) / kChunkBytes;
  mark_checked(number, slot.state.load(std::memory_order_relaxed), 0, chunks);
  return {};
}

}  // namespace millrace::cache
