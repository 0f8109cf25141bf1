// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests: a storage of the shape of S3. Objects lie in memory; a write is made of parts that are known by their MD5,
// no byte is written at a free place, nothing keeps a note, and a write that was left can be gone on with. Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>

#include "millrace/storage/storage.h"

namespace millrace {

// What was asked of it, and how it is to behave.
struct PartsService {
  std::atomic<int64_t> opens{0}, read_bytes{0}, written_bytes{0}, copied_bytes{0}, lists{0};
  std::atomic<int64_t> part_bytes{0};  // of every write; 0: as wished, at least 5 MiB
  // So many parts are still taken; then its clients are gone: every write fails, and nothing is cleaned up.
  std::atomic<int64_t> parts_left{INT64_MAX};
  std::atomic<bool> keeps_checksums{false};  // and tells them
};

std::shared_ptr<Storage> make_parts_storage(std::shared_ptr<PartsService> service);

}  // namespace millrace
