// SPDX-License-Identifier: Apache-2.0
#pragma once

// The order in which a loader gives samples: where it begins, where a state stands in it, how passes follow each other,
// and a cursor that walks it batch by batch. There are two orders: the epochs of one dataset, and a mixture of several.
// No I/O beyond the lengths that a packed order needs.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/options.h"
#include "millrace/order/mixture.h"
#include "millrace/order/order.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

using SourcePtr = std::unique_ptr<order::SampleSource>;

// The epochs' orders of each dataset, made when they are asked for. Thread-safe.
class EpochOrders {
 public:
  // The input of a dataset's orders.
  struct OrderInput {
    order::OrderOptions options;
    std::shared_ptr<const order::WindowTable> windows;
    int64_t samples = 0;
  };
  explicit EpochOrders(std::vector<OrderInput> datasets) : datasets_(std::move(datasets)) {}

  const std::vector<OrderInput>& datasets() const { return datasets_; }
  using OrderPtr = std::shared_ptr<const order::EpochOrder>;
  // Keeps the order of this epoch and of the one before. Errors: those of EpochOrder::create.
  [[nodiscard]] Result<OrderPtr> get(int64_t dataset, uint64_t epoch);
  // Units of the epoch; without making its order where a unit is a sample. Errors: as get().
  [[nodiscard]] Result<int64_t> units(int64_t dataset, uint64_t epoch);

 private:
  using Key = std::pair<int64_t, uint64_t>;
  const std::vector<OrderInput> datasets_;
  Mutex mutex_;
  std::map<Key, OrderPtr> orders_ GUARDED_BY(mutex_);
  std::map<Key, int64_t> units_ GUARDED_BY(mutex_);  // number of units of packed epochs
};

// The position of a loader, and the orders that it walks there.
struct Start {
  order::LoaderState state;
  std::shared_ptr<EpochOrders> orders;
};

class OrderCursor {
 public:
  // One global batch, as far as this rank reads it.
  struct Step {
    struct Order {
      int64_t source = 0;
      uint64_t epoch = 0;
      EpochOrders::OrderPtr order;
    };
    struct Unit {
      size_t order = 0;  // in `orders`
      order::EpochOrder::Place place;
      enum class Kind { kGiven, kRepeated, kPadding } kind = Kind::kGiven;  // the others fill up; kPadding has no place
    };
    std::vector<Order> orders;  // by source, then epoch
    std::vector<Unit> units;    // the rows of the batch
    // The same as in Batch.
    uint64_t epoch = 0;
    int64_t position = 0;
    int64_t next_position = 0;
    std::vector<order::MixCursor> cursors;  // in a mixture: the place of each dataset after the batch
    // Moves a state from before the batch, in the same pass of a mixture, to after it.
    void move_behind(order::LoaderState& state) const;
  };
  virtual ~OrderCursor() = default;
  // The next batch to give; nothing at the end of a pass. Behind the end and behind an error it is at its end.
  [[nodiscard]] Result<std::optional<Step>> next();
  bool is_at_end() const { return is_at_end_; }

 private:
  [[nodiscard]] virtual Result<std::optional<Step>> advance() = 0;
  bool is_at_end_ = false;
};

class SampleOrder {
 public:
  virtual ~SampleOrder() = default;

  // The start that `state` describes. `known`: any start; its windows are used where they are the same. Otherwise this
  // may read all lengths. Errors: invalid_argument, naming what differs (dataset, seed, shuffle, packing).
  [[nodiscard]] virtual Result<Start> start_at(const order::LoaderState& state, const Start& known) = 0;
  virtual std::unique_ptr<OrderCursor> cursor(const Start& start) = 0;

  // The state of a training that stands at `now` or before and has used the batch of this Batch::epoch and
  // next_position. Errors: invalid_argument (a batch that this order does not have behind `now`).
  [[nodiscard]] virtual Result<order::LoaderState> behind(const Start& now, uint64_t epoch, int64_t next_position) = 0;

  // The state before step `step` of the pass that `now` is in, in an endless loader that follows epochs of the whole
  // run; of a step in a skipped range too. The last step's end is a step. Errors: invalid_argument (no such step).
  [[nodiscard]] virtual Result<order::LoaderState> at_step(const Start& now, int64_t step) = 0;
  // The step that `now` is before.
  [[nodiscard]] virtual Result<int64_t> step_of(const Start& now) = 0;
  // The entries of a state that leave out steps [begin, end). Errors: as at_step. REQUIRES: begin < end.
  [[nodiscard]] virtual Result<std::vector<order::SkippedSteps>> skipped_steps(const Start& now, int64_t begin,
                                                                               int64_t end) = 0;

  // The beginning of pass `number`. REQUIRES: the order has passes.
  [[nodiscard]] virtual order::LoaderState pass_start(const Start& now, uint64_t number) = 0;
  [[nodiscard]] virtual Result<Pass> pass(const Start& now) = 0;
  [[nodiscard]] virtual Result<int64_t> pass_batches(const Start& now, uint64_t number) = 0;
  // Positions of the current epoch. Errors: invalid_argument (a mixture, where each dataset has an epoch).
  [[nodiscard]] virtual Result<int64_t> epoch_units(const Start& now) = 0;
};

// The order that `options` ask for, of `sources`, and its beginning. The arguments must outlive it. When packing, all
// lengths are read. Errors: those of the sources.
struct OpenedOrder {
  std::unique_ptr<SampleOrder> order;
  Start beginning;
};
[[nodiscard]] Result<OpenedOrder> open_order(const LoaderOptions& options, std::span<const SourcePtr> sources);

// ---- for the two orders

[[nodiscard]] Result<EpochOrders::OrderInput> open_epochs(const LoaderOptions& options, order::SampleSource& source,
                                                          const order::OrderOptions& resolved);
// Names what differs between the order of a state and the one here; empty when they are the same.
std::string order_difference(const LoaderOptions& options, std::string_view identity, const order::OrderOptions& there,
                             const order::SampleSource& source);
std::unique_ptr<SampleOrder> make_order(const LoaderOptions& options, std::span<const SourcePtr> sources);
std::unique_ptr<SampleOrder> make_epochs_order(const LoaderOptions& options, order::SampleSource& source);
std::unique_ptr<SampleOrder> make_mixture_order(const LoaderOptions& options, std::span<const SourcePtr> sources);

}  // namespace millrace::loader
