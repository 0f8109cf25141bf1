// SPDX-License-Identifier: Apache-2.0
#pragma once

// Records which version of an object a process of this node saw last, so that other processes need not ask the server.
// The record of another key may overwrite a record at any time. Thread-safe.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "millrace/base/hash/hash.h"
#include "millrace/cache/detail/cache_files.h"

namespace millrace::cache {

struct OpenRecord {
  int64_t size = 0;
  std::string version;
};

// Finds the record of a key. Returns nothing when the record is missing or older than `most_age`.
std::optional<OpenRecord> find_open_record(CacheFiles& files, Hash128 key, std::chrono::milliseconds most_age);
// Keeps a record. `seen`: the time at which it was true. Does not keep versions longer than 160 bytes.
void keep_open_record(CacheFiles& files, Hash128 key, const OpenRecord& record,
                      std::chrono::system_clock::time_point seen);

}  // namespace millrace::cache
