// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lists both sides of a sync and merges them with its record. For one thread.

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

  // `reader` reads the record of the last sync; null: there is none. REQUIRES: `options` outlives this object.
  SyncStreams(const Location& from, const Location& to, const SyncOptions& options,
              std::unique_ptr<RecordReader> reader, const std::stop_token& stop);
};

// The files and bytes that a plan will move.
struct SyncTotals {
  int64_t files = 0;    // files to copy or compare
  int64_t bytes = 0;    // size of these files
  int64_t grows = 0;    // growth of the target's used space
  int64_t largest = 0;  // size of the largest file; a replaced file stays until its successor is whole

  void add(const Action& action);
};

}  // namespace millrace::sync
