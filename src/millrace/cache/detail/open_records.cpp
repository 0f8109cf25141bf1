// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/detail/open_records.h"

#include <array>
#include <bit>
#include <cstring>

namespace millrace::cache {

namespace {

using Words = std::array<uint64_t, OpenSlot::kWords>;

// Words of a record: key, key, time in ms since 1970, size, bytes of the version, the version, XXH3-64 of all before.
constexpr size_t kVersionWord = 5, kChecksumWord = OpenSlot::kWords - 1;
constexpr size_t kMostVersion = 160;
static_assert(kMostVersion <= (kChecksumWord - kVersionWord) * sizeof(uint64_t));

uint64_t checksum(const Words& words) {
  return xxh3_64(std::as_bytes(std::span(words).first(kChecksumWord)));
}

int64_t to_ms(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

OpenSlot& slot_of(CacheFiles& files, Hash128 key) {
  return files.open_slot(static_cast<int64_t>(key.low % kOpenSlots));
}

}  // namespace

std::optional<OpenRecord> find_open_record(CacheFiles& files, Hash128 key, std::chrono::milliseconds most_age) {
  const OpenSlot& slot = slot_of(files, key);
  Words words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = slot.words[i].load(std::memory_order_relaxed);
  // Two processes that write at once leave a mixture, which the checksum finds.
  if (words[0] != key.low || words[1] != key.high || words[kChecksumWord] != checksum(words)) return std::nullopt;
  const int64_t age = to_ms(std::chrono::system_clock::now()) - static_cast<int64_t>(words[2]);
  if (age < 0 || age > most_age.count() || words[4] > kMostVersion) return std::nullopt;
  OpenRecord record{static_cast<int64_t>(words[3]), std::string(words[4], '\0')};
  std::memcpy(record.version.data(), &words[kVersionWord], record.version.size());
  return record;
}

void keep_open_record(CacheFiles& files, Hash128 key, const OpenRecord& record,
                      std::chrono::system_clock::time_point seen) {
  if (record.version.empty() || record.version.size() > kMostVersion) return;
  Words words = {key.low, key.high, static_cast<uint64_t>(to_ms(seen)), static_cast<uint64_t>(record.size),
                 record.version.size()};
  std::memcpy(&words[kVersionWord], record.version.data(), record.version.size());
  words[kChecksumWord] = checksum(words);
  OpenSlot& slot = slot_of(files, key);
  for (size_t i = 0; i < words.size(); ++i) slot.words[i].store(words[i], std::memory_order_relaxed);
}

}  // namespace millrace::cache
