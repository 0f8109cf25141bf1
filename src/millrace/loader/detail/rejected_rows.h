// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows that the caller found to be bad after the loader had given them, by their place in the order. What is known here
// counts as damage wherever it is met. Thread-safe.

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/loader/batch.h"

namespace millrace::loader {

class RejectedRows {
 public:
  // How many there are then.
  int64_t add(const Batch::RowPlace& place, std::string reason) {
    MutexLock lock(mutex_);
    rows_.emplace(place, std::move(reason));
    return static_cast<int64_t>(rows_.size());
  }
  // Why the row was rejected; nothing: it was not.
  std::optional<std::string> find(const Batch::RowPlace& place) const {
    MutexLock lock(mutex_);
    const auto found = rows_.find(place);
    return found == rows_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable Mutex mutex_;
  std::map<Batch::RowPlace, std::string> rows_ GUARDED_BY(mutex_);
};

}  // namespace millrace::loader
