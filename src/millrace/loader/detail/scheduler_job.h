// SPDX-License-Identifier: Apache-2.0
#pragma once

// The jobs and blocks of the Scheduler, for its source files. Members change under the scheduler's lock, with two
// exceptions: the worker that decodes a run of a block writes the run, and the worker that collates a job writes its
// samples.

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
    Batch::RowPlace place;     // place of the row that is read for it
    int64_t replacements = 0;  // replacements tried so far
    size_t in_ledger = 0;      // with replacements: its index in `quarantined`
    // The decoded sample, with LoaderOptions::fields, once its block is ready; values may point into the block.
    std::shared_ptr<const DecodedSample> sample;
    std::optional<Error> damage;  // it was read but could not be decoded
  };
  std::vector<Unit> units;
  int64_t blocks_left = 0;  // blocks that are not ready
  bool is_done = false;
  std::optional<Error> error;
  std::vector<order::QuarantinedUnit> quarantined;
  Batch batch;

  // Earlier batches have a higher priority. It wraps around after a billion batches; a queue never holds that many.
  int priority() const { return static_cast<int>(-(number % (1 << 30))); }
};

struct Scheduler::LiveBlock {
  int64_t source = 0;
  int64_t first_job = 0;  // the first job that needs it
  int priority = 0;
  EpochOrders::OrderPtr order;
  Place place;
  bool is_asked = false;   // its plan was asked for
  int64_t rows_bytes = 0;  // its share of rows_held_
  std::optional<PlannedBlock> plan;
  std::optional<Error> error;  // planning failed, or there is no memory for it
  bool has_memory = false;
  int64_t runs_left = 0;
  bool is_ready = false;
  std::vector<JobPtr> waiting;
};

inline Batch::RowPlace place_of(const OrderCursor::Step& step, size_t order, const order::EpochOrder::Place& place) {
  return {step.orders[order].source, step.orders[order].epoch, place.lane, place.block, place.index};
}

}  // namespace millrace::loader
