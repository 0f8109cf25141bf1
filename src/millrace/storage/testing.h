// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small things that tests over storage need (link millrace_storage_testing). Not thread-safe.

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/testing.h"

namespace millrace {

// A new directory that goes with this object.
class TempDir {
 public:
  enum class Place { kDisk, kMemory };  // kMemory: a file system in memory, where there is one
  explicit TempDir(Place place = Place::kDisk);
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// `size` bytes that differ from seed to seed.
std::string test_bytes(size_t size, uint64_t seed);

// Runs `body` in a forked child; true when it returned true. The child never runs destructors or exit handlers, and is
// killed when it takes longer than a minute.
bool succeeds_in_child(const std::function<bool()>& body);

}  // namespace millrace
