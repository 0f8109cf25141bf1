// SPDX-License-Identifier: Apache-2.0
// The order of one dataset: one epoch after the other, a pass being `epochs` of them.

#include <algorithm>
#include <set>
#include <utility>

#include "millrace/loader/detail/sample_order.h"

namespace millrace::loader {

namespace {

const order::OrderState& state_of(const Start& start) {
  return std::get<order::OrderState>(start.state);
}

class EpochsCursor final : public OrderCursor {
 public:
  EpochsCursor(const LoaderOptions& options, Start start)
      : options_(options),
        start_(std::move(start)),
        epoch_(state_of(start_).epoch),
        position_(state_of(start_).position),
        to_skip_(options.first_step) {}

 private:
  Result<std::optional<Step>> advance() override {
    ASSIGN_OR_RETURN(const bool found, go_to_next());
    if (!found) return std::nullopt;
    to_skip_ = options_.step_stride - 1;
    const int64_t count = std::min(options_.all_ranks_batch(), order_->units() - position_);
    Step step{.orders = {{0, epoch_, order_}}, .epoch = epoch_, .position = position_};
    for (const int64_t position :
         order::rank_positions(*order_, position_, count, options_.rank, options_.world_size)) {
      step.units.push_back({0, order_->place(position)});
    }
    fill_up(step, count);
    position_ += count;
    step.next_position = position_;
    return step;
  }

  // Gives the rank as many units as it has of a whole batch. Together the ranks repeat the epoch's first positions.
  void fill_up(Step& step, int64_t count) const {
    if (options_.fill_last == FillLast::kNothing) return;
    using Kind = Step::Unit::Kind;
    const int64_t rows = options_.all_ranks_batch() / options_.world_size;
    int64_t repeated = options_.rank * rows - options_.rank * count / options_.world_size;  // by the ranks before
    while (std::ssize(step.units) < rows) {
      if (options_.fill_last == FillLast::kPadding) {
        step.units.push_back({.kind = Kind::kPadding});
      } else {
        step.units.push_back({0, order_->place(repeated++ % order_->units()), Kind::kRepeated});
      }
    }
  }

  // Goes to the next batch that is given; false at the end of a pass.
  Result<bool> go_to_next() {
    if (order_ == nullptr) RETURN_IF_ERROR(begin_epoch(epoch_));
    for (;;) {
      const int64_t count = std::min(options_.all_ranks_batch(), order_->units() - position_);
      if (options_.is_given(count)) {
        const bool is_skipped = order::is_skipped(state_of(start_).skipped, epoch_, position_);
        if (!is_skipped && to_skip_-- == 0) return true;
        position_ += count;
        continue;
      }
      const uint64_t next = epoch_ + 1;
      if (options_.epochs > 0 && next % static_cast<uint64_t>(options_.epochs) == 0) return false;
      RETURN_IF_ERROR(begin_epoch(next));
      position_ = 0;
    }
  }

  Status begin_epoch(uint64_t epoch) {
    ASSIGN_OR_RETURN(order_, start_.orders->get(0, epoch));
    epoch_ = epoch;
    if (!options_.drop_last || order_->units() >= options_.all_ranks_batch()) return {};
    return fail(ErrorCode::kInvalidArgument,
                "an epoch has {} rows, fewer than the global batch of {}; use drop_last=False or a smaller batch",
                order_->units(), options_.all_ranks_batch());
  }

  const LoaderOptions& options_;
  const Start start_;
  EpochOrders::OrderPtr order_;
  uint64_t epoch_;
  int64_t position_;  // of the next global batch
  int64_t to_skip_;   // global batches that are passed over before the next one
};

class EpochsOrder final : public SampleOrder {
 public:
  EpochsOrder(const LoaderOptions& options, order::SampleSource& source) : options_(options), source_(source) {}

  Result<Start> start_at(const order::LoaderState& there, const Start& known) override {
    const auto* state = std::get_if<order::OrderState>(&there);
    if (state == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "this loader state is of a mixture, and this loader reads one dataset");
    }
    const std::string differs = order_difference(options_, state->source, state->options, source_);
    if (!differs.empty()) {
      return fail(ErrorCode::kInvalidArgument, "this loader state belongs to another order:{}", differs);
    }
    if (state->options == known.orders->datasets()[0].options) return Start{*state, known.orders};
    // Another version chose other windows. They are part of the state, so that the order goes on as it was.
    ASSIGN_OR_RETURN(auto dataset, open_epochs(options_, source_, state->options));
    return Start{*state, std::make_shared<EpochOrders>(std::vector{std::move(dataset)})};
  }

  std::unique_ptr<OrderCursor> cursor(const Start& start) override {
    return std::make_unique<EpochsCursor>(options_, start);
  }

  Result<order::LoaderState> behind(const Start& now, uint64_t epoch, int64_t next_position) override {
    order::OrderState state = state_of(now);
    state.epoch = epoch;
    state.position = next_position;
    return state;
  }

  order::LoaderState pass_start(const Start& now, uint64_t number) override {
    order::OrderState state = state_of(now);
    state.epoch = number * epochs();
    state.position = 0;
    return state;
  }

  Result<Pass> pass(const Start& now) override {
    const order::OrderState& state = state_of(now);
    const uint64_t number = state.epoch / epochs();
    int64_t position = state.position;
    for (uint64_t epoch = state.epoch; epoch / epochs() == number; ++epoch, position = 0) {
      ASSIGN_OR_RETURN(const int64_t units, now.orders->units(0, epoch));
      const auto left = [&] { return std::min(units - position, options_.all_ranks_batch()); };
      while (options_.is_given(left()) && order::is_skipped(state.skipped, epoch, position)) position += left();
      // An epoch that is too small is an error of the cursor.
      if (options_.is_given(left()) || (epoch > state.epoch && position == 0)) return Pass{.number = number};
    }
    return Pass{.number = number, .over = true};
  }

  Result<order::LoaderState> at_step(const Start& now, int64_t step) override {
    order::OrderState state = state_of(now);
    state.epoch = options_.is_endless() ? 0 : state.epoch / epochs() * epochs();
    const uint64_t end = options_.is_endless() ? UINT64_MAX : state.epoch + epochs();
    for (int64_t left = step;;) {
      ASSIGN_OR_RETURN(const int64_t steps, epoch_steps(now, state.epoch));
      const bool is_last = state.epoch + 1 == end;
      if (left < steps || (is_last && left == steps)) {
        ASSIGN_OR_RETURN(const int64_t units, now.orders->units(0, state.epoch));
        state.position = std::min(left * options_.all_ranks_batch(), units);
        return state;
      }
      if (is_last || steps == 0) break;
      // Without packing all epochs are equal, and whole ones are passed at once.
      const int64_t whole = options_.pack_seq_len() > 0 ? 1 : left / steps;
      const uint64_t passed = std::min(static_cast<uint64_t>(whole), end - 1 - state.epoch);
      state.epoch += passed;
      left -= static_cast<int64_t>(passed) * steps;
    }
    return fail(ErrorCode::kInvalidArgument, "{} has no step {}", options_.is_endless() ? "the run" : "the pass", step);
  }

  Result<int64_t> step_of(const Start& now) override {
    const order::OrderState& state = state_of(now);
    const uint64_t first = options_.is_endless() ? 0 : state.epoch / epochs() * epochs();
    int64_t before = 0;
    if (options_.pack_seq_len() == 0) {
      ASSIGN_OR_RETURN(const int64_t steps, epoch_steps(now, first));
      before = static_cast<int64_t>(state.epoch - first) * steps;
    } else {
      for (uint64_t epoch = first; epoch < state.epoch; ++epoch) {
        ASSIGN_OR_RETURN(const int64_t steps, epoch_steps(now, epoch));
        before += steps;
      }
    }
    const int64_t batch = options_.all_ranks_batch();
    return before + state.position / batch + (state.position % batch != 0);
  }

  Result<std::vector<order::SkippedSteps>> skipped_steps(const Start& now, int64_t begin, int64_t end) override {
    ASSIGN_OR_RETURN(const auto first, at_step(now, begin));
    ASSIGN_OR_RETURN(const auto last, at_step(now, end - 1));
    RETURN_IF_ERROR(at_step(now, end).map([](const auto&) {}));  // the last one is a step, not the pass's end
    const auto& from = std::get<order::OrderState>(first);
    const auto& to = std::get<order::OrderState>(last);
    std::vector<order::SkippedSteps> skipped;
    for (uint64_t epoch = from.epoch; epoch <= to.epoch; ++epoch) {
      ASSIGN_OR_RETURN(const int64_t units, now.orders->units(0, epoch));
      skipped.push_back({epoch, epoch == from.epoch ? from.position : 0,
                         epoch == to.epoch ? std::min(to.position + options_.all_ranks_batch(), units) : units});
    }
    return skipped;
  }

  Result<int64_t> pass_batches(const Start& now, uint64_t number) override {
    const bool all_equal = options_.pack_seq_len() == 0;
    const uint64_t first = number * epochs();
    int64_t batches = 0;
    for (uint64_t i = 0; i < (all_equal ? 1 : epochs()); ++i) {
      ASSIGN_OR_RETURN(const int64_t steps, epoch_steps(now, first + i));
      batches += steps;
    }
    if (all_equal) batches *= options_.epochs;
    std::set<uint64_t> with_skipped;
    for (const auto& range : state_of(now).skipped) with_skipped.insert(range.epoch);
    for (const uint64_t epoch : with_skipped) {
      if (epoch < first || epoch - first >= epochs()) continue;
      ASSIGN_OR_RETURN(const int64_t steps, epoch_steps(now, epoch));
      const int64_t batch = options_.all_ranks_batch();
      batches -= order::count_skipped(state_of(now).skipped, epoch, batch, steps * batch);
    }
    return batches;
  }

  Result<int64_t> epoch_units(const Start& now) override { return now.orders->units(0, state_of(now).epoch); }

 private:
  Result<int64_t> epoch_steps(const Start& now, uint64_t epoch) {
    ASSIGN_OR_RETURN(const int64_t units, now.orders->units(0, epoch));
    const int64_t batch = options_.all_ranks_batch();
    return options_.drop_last ? units / batch : (units + batch - 1) / batch;
  }

  uint64_t epochs() const { return static_cast<uint64_t>(options_.epochs); }

  const LoaderOptions& options_;
  order::SampleSource& source_;
};

}  // namespace

std::unique_ptr<SampleOrder> make_epochs_order(const LoaderOptions& options, order::SampleSource& source) {
  return std::make_unique<EpochsOrder>(options, source);
}

}  // namespace millrace::loader
