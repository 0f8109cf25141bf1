// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps rows that the caller rejected after the loader had returned them, by their place in the order. The loader
// treats these rows as damaged. Thread-safe.

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/loader/batch.h"

namespace millrace::loader {

class RejectedRows {
 public:
  // Adds a row. Returns the number of rejected rows.
  int64_t add(const Batch::RowPlace& place, std::string reason) {
    MutexLock lock(mutex_);
    rows_.emplace(place, std::move(reason));
    return static_cast<int64_t>(rows_.size());
  }
  // Returns why the row was rejected; nullopt: it was not.
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
