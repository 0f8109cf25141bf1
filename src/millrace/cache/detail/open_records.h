// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which version of an object a process of this node saw last, so that the others need not ask the server. A record may
// be overwritten by another key's at any time. Thread-safe.

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

// Nothing when the record is older than `most_age`, or is not there.
std::optional<OpenRecord> find_open_record(CacheFiles& files, Hash128 key, std::chrono::milliseconds most_age);
// `seen`: when the record was true. Keeps no version longer than 160 bytes.
void keep_open_record(CacheFiles& files, Hash128 key, const OpenRecord& record,
                      std::chrono::system_clock::time_point seen);

}  // namespace millrace::cache
