// SPDX-License-Identifier: Apache-2.0
#pragma once

// The order in which a loader returns samples: its beginning, the place of a state in it, its passes, and a cursor
// that walks it batch by batch. There are two kinds of order: the epochs of one dataset, and a mixture of several.
// They do no I/O except to read the lengths that a packed order needs.

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

// The orders of the epochs of each dataset, made on demand. Thread-safe.
class EpochOrders {
 public:
  // The input from which the orders of a dataset are made.
  struct OrderInput {
    order::OrderOptions options;
    std::shared_ptr<const order::WindowTable> windows;
    int64_t samples = 0;
  };
  explicit EpochOrders(std::vector<OrderInput> datasets) : datasets_(std::move(datasets)) {}

  const std::vector<OrderInput>& datasets() const { return datasets_; }
  using OrderPtr = std::shared_ptr<const order::EpochOrder>;
  // Returns the order of an epoch. Keeps this order and that of the previous epoch. Errors: those of
  // EpochOrder::create.
  [[nodiscard]] Result<OrderPtr> get(int64_t dataset, uint64_t epoch);
  // Returns the number of units of an epoch. Where a unit is a sample, it does not make the order. Errors: as get().
  [[nodiscard]] Result<int64_t> units(int64_t dataset, uint64_t epoch);

 private:
  using Key = std::pair<int64_t, uint64_t>;
  const std::vector<OrderInput> datasets_;
  Mutex mutex_;
  std::map<Key, OrderPtr> orders_ GUARDED_BY(mutex_);
  std::map<Key, int64_t> units_ GUARDED_BY(mutex_);  // number of units of packed epochs
};

// A state in the order, and the epochs' orders to walk from there.
struct Start {
  order::LoaderState state;
  std::shared_ptr<EpochOrders> orders;
};

class OrderCursor {
 public:
  // This rank's rows of one global batch.
  struct Step {
    struct Order {
      int64_t source = 0;
      uint64_t epoch = 0;
      EpochOrders::OrderPtr order;
    };
    struct Unit {
      size_t order = 0;  // index in `orders`
      order::EpochOrder::Place place;
      enum class Kind { kGiven, kRepeated, kPadding } kind = Kind::kGiven;  // kPadding has no place
    };
    std::vector<Order> orders;  // by source, then epoch
    std::vector<Unit> units;    // the rows of the batch
    // These three are the same as in Batch.
    uint64_t epoch = 0;
    int64_t position = 0;
    int64_t next_position = 0;
    std::vector<order::MixCursor> cursors;  // in a mixture: the place of each dataset after the batch
    // Moves a state from before the batch to after it. REQUIRES: in a mixture, `state` is in the same pass.
    void move_behind(order::LoaderState& state) const;
  };
  virtual ~OrderCursor() = default;
  // Returns the next batch of the loader; nothing at the end of a pass. After that, and after an error, is_at_end() is
  // true.
  [[nodiscard]] Result<std::optional<Step>> next();
  bool is_at_end() const { return is_at_end_; }

 private:
  [[nodiscard]] virtual Result<std::optional<Step>> advance() = 0;
  bool is_at_end_ = false;
};

class SampleOrder {
 public:
  virtual ~SampleOrder() = default;

  // Returns the start that `state` describes. `known`: any start of this order; its windows are reused where they are
  // the same. Otherwise this may read all lengths. Errors: invalid_argument, naming what differs (dataset, seed,
  // shuffle, packing).
  [[nodiscard]] virtual Result<Start> start_at(const order::LoaderState& state, const Start& known) = 0;
  virtual std::unique_ptr<OrderCursor> cursor(const Start& start) = 0;

  // Returns the state of a training run after the batch with this Batch::epoch and Batch::next_position, in the run
  // that `now` belongs to. Errors: invalid_argument (this order has no such batch).
  [[nodiscard]] virtual Result<order::LoaderState> behind(const Start& now, uint64_t epoch, int64_t next_position) = 0;

  // Returns the state before step `step` of the pass that `now` is in. An endless loader of epochs counts the steps of
  // the whole run. Steps in a skipped range count, too. The number of steps of the pass is allowed and means its end.
  // Errors: invalid_argument (no such step).
  [[nodiscard]] virtual Result<order::LoaderState> at_step(const Start& now, int64_t step) = 0;
  // Returns the step that `now` is before.
  [[nodiscard]] virtual Result<int64_t> step_of(const Start& now) = 0;
  // Returns the entries of a state that make it skip steps [begin, end). Errors: as at_step(). REQUIRES: begin < end.
  [[nodiscard]] virtual Result<std::vector<order::SkippedSteps>> skipped_steps(const Start& now, int64_t begin,
                                                                               int64_t end) = 0;

  // Returns the beginning of pass `number`. REQUIRES: the order has passes.
  [[nodiscard]] virtual order::LoaderState pass_start(const Start& now, uint64_t number) = 0;
  [[nodiscard]] virtual Result<Pass> pass(const Start& now) = 0;
  [[nodiscard]] virtual Result<int64_t> pass_batches(const Start& now, uint64_t number) = 0;
  // Returns the number of positions of the current epoch. Errors: invalid_argument (a mixture, where each dataset has
  // its own epoch).
  [[nodiscard]] virtual Result<int64_t> epoch_units(const Start& now) = 0;
};

// The order of `sources` that `options` ask for, and its beginning. The arguments of open_order() must outlive it.
// When packing, open_order() reads all lengths. Errors: those of the sources.
struct OpenedOrder {
  std::unique_ptr<SampleOrder> order;
  Start beginning;
};
[[nodiscard]] Result<OpenedOrder> open_order(const LoaderOptions& options, std::span<const SourcePtr> sources);

// ---- for the implementations of the two orders

[[nodiscard]] Result<EpochOrders::OrderInput> open_epochs(const LoaderOptions& options, order::SampleSource& source,
                                                          const order::OrderOptions& resolved);
// Describes the differences between the order `there`, of a state, and the order here; empty when there are none.
std::string order_difference(const LoaderOptions& options, std::string_view identity, const order::OrderOptions& there,
                             const order::SampleSource& source);
std::unique_ptr<SampleOrder> make_order(const LoaderOptions& options, std::span<const SourcePtr> sources);
std::unique_ptr<SampleOrder> make_epochs_order(const LoaderOptions& options, order::SampleSource& source);
std::unique_ptr<SampleOrder> make_mixture_order(const LoaderOptions& options, std::span<const SourcePtr> sources);

}  // namespace millrace::loader
