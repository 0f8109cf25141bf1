// SPDX-License-Identifier: Apache-2.0
#pragma once

// Objects that are to go, removed many at once, each with the block hashes beside it. For one thread.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/storage/storage.h"

namespace millrace::sync {

class Removal {
 public:
  // Called for each object in the order of add(), once it is gone or could not be removed.
  using OnRemoved = std::function<void(const std::string& path, int64_t size, const Status& removed)>;
  // With `dry_run` no object is removed, and every call says that it was.
  Removal(Storage& storage, bool dry_run, OnRemoved done)
      : storage_(storage), dry_run_(dry_run), done_(std::move(done)) {}

  // `path` is for `done`.
  void add(std::string path, std::string key, int64_t size);
  // Removes what was added and not removed yet; call it after the last add.
  void flush();

 private:
  void remove_sidecars();

  Storage& storage_;
  const bool dry_run_;
  const OnRemoved done_;
  std::vector<std::string> paths_, keys_;
  std::vector<int64_t> sizes_;
};

}  // namespace millrace::sync
