// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests: a storage with the shape of S3. Objects lie in memory. A write consists of parts with an MD5 each. There
// are no writes at arbitrary offsets and no notes. A suspended write can be resumed. Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>

#include "millrace/storage/storage.h"

namespace millrace {

// The requests that it received, and its settings.
struct PartsService {
  std::atomic<int64_t> opens{0}, read_bytes{0}, written_bytes{0}, copied_bytes{0}, lists{0};
  std::atomic<int64_t> part_bytes{0};  // of every write; 0: as wished, at least 5 MiB
  // Accepts this many more parts. Then its clients are gone: every write fails, and no upload is cleaned up.
  std::atomic<int64_t> parts_left{INT64_MAX};
  std::atomic<bool> keeps_checksums{false};  // and tells them
};

std::shared_ptr<Storage> make_parts_storage(std::shared_ptr<PartsService> service);

}  // namespace millrace
