// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small things that tests of every room need: a folder, bytes, a child process. Link millrace_base_testing. Not
// thread-safe.

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/status.h"
#include "millrace/base/testing.h"

namespace millrace {

inline constexpr int64_t kMiB = 1 << 20;

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

// The code of an error; kInternal, which no call under test answers, where there is none.
template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode::kInternal : result.error().code();
}

// Runs `body` in a forked child; true when it returned true. The child never runs destructors or exit handlers, and is
// killed when it takes longer than a minute.
bool succeeds_in_child(const std::function<bool()>& body);

}  // namespace millrace
