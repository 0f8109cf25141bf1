// SPDX-License-Identifier: Apache-2.0
#pragma once

// Removes objects, many at once, each with the block hashes next to it. For one thread.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/storage/storage.h"

namespace millrace::sync {

class Removal {
 public:
  // Called for each object in the order of add(), after its removal succeeded or failed.
  using OnRemoved = std::function<void(const std::string& path, int64_t size, const Status& removed)>;
  // With `dry_run`, removes nothing and calls `done` as if every removal succeeded.
  Removal(Storage& storage, bool dry_run, OnRemoved done)
      : storage_(storage), dry_run_(dry_run), done_(std::move(done)) {}

  // Adds an object to remove. `path` is passed to `done`.
  void add(std::string path, std::string key, int64_t size);
  // Removes the added objects that are not removed yet. Call it after the last add().
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
