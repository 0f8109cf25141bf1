// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the tests of the cache.

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace millrace::cache {

inline constexpr int64_t kBlock = 16 << 10;  // small blocks, so that little data is many

// Returns the bytes that a cache takes on the disk.
inline int64_t disk_bytes(const std::string& directory) {
  int64_t bytes = 0;
  for (const char* name : {"/cache.table", "/cache.data", "/cache.lock", "/cache.table.new"}) {
    struct stat found = {};
    if (::stat((directory + name).c_str(), &found) == 0) bytes += found.st_blocks * 512;
  }
  return bytes;
}

}  // namespace millrace::cache
