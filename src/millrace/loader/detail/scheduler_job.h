// SPDX-License-Identifier: Apache-2.0
#pragma once

// The jobs and blocks of the Scheduler, for its source files. Members change under the scheduler's lock. Two are
// written without it: a run of a block by the worker that decodes it, and the samples of a job by the worker that
// collates it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "millrace/loader/batch.h"
#include "millrace/loader/detail/scheduler.h"
#include "millrace/loader/fields.h"

namespace millrace::loader {

struct Scheduler::Job {
  int64_t number = 0;
  OrderCursor::Step step;
  struct Unit {
    BlockPtr block;  // null: a row of padding
    int64_t index = 0;
    Batch::RowPlace place;     // of what is read for it
    int64_t replacements = 0;  // that were tried for it
    size_t in_ledger = 0;      // then its place in `quarantined`
    // The decoded sample, where samples are of any kind, once its block is ready; values may point into the block.
    std::shared_ptr<const DecodedSample> sample;
    std::optional<Error> damage;  // it was read and does not decode
  };
  std::vector<Unit> units;
  int64_t blocks_left = 0;  // that are not ready
  bool is_done = false;
  std::optional<Error> error;
  std::vector<order::QuarantinedUnit> quarantined;
  Batch batch;

  // Earlier batches first. Wraps around after a billion batches, which are never in one queue.
  int priority() const { return static_cast<int>(-(number % (1 << 30))); }
};

struct Scheduler::LiveBlock {
  int64_t source = 0;
  int64_t first_job = 0;  // that needs it
  int priority = 0;
  EpochOrders::OrderPtr order;
  Place place;
  bool is_asked = false;   // for its plan
  int64_t rows_bytes = 0;  // its part of rows_held_
  std::optional<PlannedBlock> plan;
  std::optional<Error> error;  // it was not planned, or finds no memory
  bool has_memory = false;
  int64_t runs_left = 0;
  bool is_ready = false;
  std::vector<JobPtr> waiting;
};

inline Batch::RowPlace place_of(const OrderCursor::Step& step, size_t order, const order::EpochOrder::Place& place) {
  return {step.orders[order].source, step.orders[order].epoch, place.lane, place.block, place.index};
}

}  // namespace millrace::loader
