// SPDX-License-Identifier: Apache-2.0
#pragma once

// Both sides of a sync, listed and merged with what its record says. For one thread.

#include <cstdint>
#include <memory>
#include <stop_token>

#include "millrace/sync/plan.h"
#include "millrace/sync/sync.h"

namespace millrace::sync {

struct SyncStreams {
  EntryWalk source, target;
  std::unique_ptr<RecordReader> record;
  Plan plan;

  // `options` outlives this. `reader`: of the record of the last sync; null where there is none.
  SyncStreams(const Location& from, const Location& to, const SyncOptions& options,
              std::unique_ptr<RecordReader> reader, const std::stop_token& stop);
};

// The files and bytes that a plan will move.
struct SyncTotals {
  int64_t files = 0;    // files to copy or compare
  int64_t bytes = 0;    // size of these files
  int64_t grows = 0;    // growth of the target's used space
  int64_t largest = 0;  // a file that is replaced stays until its successor is whole

  void add(const Action& action);
};

}  // namespace millrace::sync
