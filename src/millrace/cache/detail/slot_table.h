// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stores and finds blocks by key in the files of a cache. Blocks are looked up and read without a lock, and stored
// under the lock of a slot. A reader copies the hashes of a slot before it reads the data, so a block that another
// process replaces meanwhile does not match and is a miss.
//
// A chunk that this table checked or stored is copied without a check when it is read again, as long as it stayed in
// the page cache since, as far as that can be told. A read that finds a page missing checks the chunk again. Nothing
// is read ahead unless requested. The slot's state shows whether the slot changed meanwhile. The table does not notice
// bytes that other programs write into the data, or bring back from the disk. Thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"
#include "millrace/cache/detail/cache_files.h"

namespace millrace::cache {

// On disk: do not renumber.
enum class SlotState : uint64_t { kEmpty = 0, kFilling = 1, kFull = 2 };

void set_state(Slot& slot, SlotState state);

class SlotTable {
 public:
  // `files` outlives the table.
  explicit SlotTable(CacheFiles& files);

  struct Found {
    Slot* slot = nullptr;
    int64_t number = 0;  // number of the slot in the data
    uint64_t state = 0;
    uint64_t hashes[kMostChunks] = {};
    int64_t size = 0;
  };
  std::optional<Found> find(Hash128 key);

  enum class Outcome {
    kChecked,   // read, and compared with the hashes
    kKnown,     // read from memory, and checked before
    kReplaced,  // another block took the slot meanwhile
    kDamaged,   // the bytes differ from the stored ones; the block was dropped
  };
  // Fills `out` with bytes [offset, offset + out.size()) of the block. REQUIRES: the range lies in the block.
  [[nodiscard]] Outcome read(const Found& found, Hash128 key, int64_t offset, std::span<std::byte> out);

  // Whether the start of the block is in the page cache. Never waits. The check itself may bring the page back (the
  // kernel starts a read-ahead), so a missing block counts as unchecked from then on.
  bool is_in_memory(const Found& found);
  // Begins to read the block into the page cache.
  void prefetch(const Found& found);

  // Stores a block. Replaces another block when its set is full. Returns false when every slot of the set is being
  // written. Errors: those of pwrite (resource_exhausted: no space); no block is stored then.
  [[nodiscard]] Result<bool> store(Hash128 key, std::span<const std::byte> block);

 private:
  struct Victim;
  int64_t set_of(Hash128 key) const;
  void touch(Slot& slot);
  uint32_t stamp() const;
  bool matches(const Found& found, Hash128 key, int64_t chunk, std::span<const std::byte> bytes) const;
  [[nodiscard]] bool pread_all(int64_t at, std::span<std::byte> out) const;
  bool drop(const Found& found);
  // Marks the chunks [begin, end) of a block in this state as correct and in the page cache.
  void mark_checked(int64_t number, uint64_t state, int64_t begin, int64_t end);
  bool are_checked(const Found& found, int64_t begin, int64_t end) const;
  // Marks all chunks of the slot unchecked, because later reads may come from the disk.
  void forget_checks(int64_t number);
  bool read_from_memory(const Found& found, int64_t at, std::span<std::byte> out);
  std::vector<Victim> victims(int64_t set, bool only_full);
  [[nodiscard]] Result<bool> store_in(Hash128 key, std::span<const std::byte> block, bool only_full);
  [[nodiscard]] Status fill(Slot& slot, int64_t number, Hash128 key, std::span<const std::byte> block, uint32_t used);

  CacheFiles& files_;
  // One word for each slot. Low bits: the checked chunks. High bits: the low bits of the slot state that they apply
  // to.
  const std::unique_ptr<uint32_t[], void (*)(void*)> checked_;
};

}  // namespace millrace::cache
