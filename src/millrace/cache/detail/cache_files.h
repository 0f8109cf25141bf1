// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of a node cache (docs/format/cache.md): `cache.lock`, `cache.table` (mapped) and `cache.data`. A process
// that uses the files holds a shared flock on `cache.lock`. A process changes the size of the table only when no other
// process uses the files. Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/cache/detail/byte_locks.h"

namespace millrace::cache {

inline constexpr int64_t kChunkBytes = 64 << 10;  // a part of a block, with its own hash
inline constexpr size_t kMostChunks = 4;          // most chunks in a block

// One slot of the table. All words are changed atomically, because other processes read them at any time.
struct Slot {
  // The lowest two bits are a SlotState. The other bits are a counter that every change raises.
  std::atomic<uint64_t> state;
  std::atomic<uint64_t> key_low, key_high;
  std::atomic<uint64_t> hashes[kMostChunks];  // XXH3-64 of each chunk, seeded with key_low
  std::atomic<uint32_t> size;                 // bytes of the block
  std::atomic<uint32_t> used;                 // the last use: generation (8 bits), seconds (24 bits)
};
static_assert(sizeof(Slot) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The facts about an object that one process opened, shared with the others. Stored as words, so that they can be
// copied atomically.
struct OpenSlot {
  static constexpr size_t kWords = 32;
  std::atomic<uint64_t> words[kWords];
};

inline constexpr int64_t kFillCounters = 512;
inline constexpr int64_t kOpenSlots = 4096;

struct TableHeader {
  char magic[8];
  uint32_t format;
  uint32_t block_bytes;
  uint64_t sets;
  uint64_t ways;
  uint64_t checksum;                 // XXH3-64 of everything before it
  std::atomic<uint32_t> limit_ways;  // ways in use; fewer than `ways` if a process has a smaller cap
  std::atomic<uint32_t> generation;  // raised by each process that opens the cache alone
  char unused[2000];
  std::atomic<uint32_t> fills[kFillCounters];  // raised when a download ends; waiting processes sleep on them
};
static_assert(sizeof(TableHeader) == 4096);

// The number of blocks that fit under a cap. Slot `way * sets + set` of the data belongs to entry `set * ways + way`.
struct Geometry {
  int64_t block_bytes = 0;
  int64_t sets = 0;
  int64_t ways = 0;

  int64_t slots() const { return sets * ways; }
  int64_t data_bytes() const { return slots() * block_bytes; }
  int64_t table_bytes() const;
};

class CacheFiles {
 public:
  // Creates `directory` and the files if they are missing. `cap_bytes` covers table and data. While several processes
  // have the cache open, the smallest of their caps applies. Errors: unsupported (a network file system, a newer
  // format), invalid_argument (a cap below 16 blocks), resource_exhausted (no space for the table), permission_denied,
  // unavailable (another process has been changing the cache for 30 s), cancelled.
  [[nodiscard]] static Result<std::unique_ptr<CacheFiles>> open(const std::string& directory, int64_t cap_bytes,
                                                                int64_t block_bytes, const std::stop_token& stop);
  ~CacheFiles();
  CacheFiles(const CacheFiles&) = delete;
  CacheFiles& operator=(const CacheFiles&) = delete;

  const std::string& directory() const { return directory_; }
  const Geometry& geometry() const { return geometry_; }
  int data() const { return data_.get(); }
  ByteLocks& locks() { return *locks_; }
  TableHeader& header();
  OpenSlot& open_slot(int64_t number);
  Slot& slot(int64_t set, int64_t way);
  // Return the number of ways that fit below the smallest cap of all processes, and the bytes of these ways and the
  // table.
  int64_t usable_ways();
  int64_t limit_bytes();
  // Locks for the slots of the data: byte kSlotLocks + number.
  static constexpr int64_t kSlotLocks = int64_t{1} << 62;
  // Stops using the slots that do not fit below `cap_bytes`. Waits for their readers. Errors: invalid_argument (fewer
  // than one way is left), cancelled.
  [[nodiscard]] Status lower_to(int64_t cap_bytes, const std::stop_token& stop);

 private:
  CacheFiles(std::string directory, int64_t block_bytes)
      : directory_(std::move(directory)), block_bytes_(block_bytes) {}
  std::string path(std::string_view name) const { return directory_ + "/" + std::string(name); }
  [[nodiscard]] Status check_file_system() const;
  [[nodiscard]] Status lock_and_open(int64_t cap_bytes, const std::stop_token& stop);
  [[nodiscard]] Status prepare_alone(int64_t cap_bytes);
  [[nodiscard]] Status create(const Geometry& geometry);
  [[nodiscard]] Status resize(int64_t ways);
  [[nodiscard]] Status write_table(const Geometry& geometry, CacheFiles* from);
  [[nodiscard]] Result<bool> map_table();
  void unmap();

  const std::string directory_;
  const int64_t block_bytes_;
  const uint64_t made_in_ = fork_generation();
  Descriptor lock_, data_;
  std::unique_ptr<ByteLocks> locks_;
  Geometry geometry_;
  std::byte* table_ = nullptr;  // mapped, geometry_.table_bytes()
};

}  // namespace millrace::cache
