// SPDX-License-Identifier: Apache-2.0
// The order of a mixture: each global batch takes units of several datasets by weight (docs/format/order.md). Every
// position but the first is found by drawing the steps before it, which costs nanoseconds a unit and no I/O.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/loader/detail/sample_order.h"

namespace millrace::loader {

namespace {

const order::MixtureState& mixture_of(const Start& start) {
  return std::get<order::MixtureState>(start.state);
}

Result<order::Mixture> mixture_at(const order::MixtureState& state, const std::shared_ptr<EpochOrders>& orders) {
  return order::Mixture::create(state.mix, [orders, pass = state.pass](int64_t source, uint64_t epoch) {
    return orders->units(source, order::order_epoch(pass, epoch));
  });
}

// Without drop_last the last step of a pass ends where the mixture does.
Result<std::vector<order::MixRange>> next_step(const LoaderOptions& options, order::Mixture& mixture) {
  return mixture.next_step(options.all_ranks_batch(), !options.drop_last);
}

// The weights by step stay: what was set by call holds at that step of every pass.
order::MixtureState beginning_of(order::MixtureState state, uint64_t pass) {
  state.pass = pass;
  state.mix.step = 0;
  std::ranges::fill(state.mix.cursors, order::MixCursor{});
  return state;
}

class MixtureCursor final : public OrderCursor {
 public:
  MixtureCursor(const LoaderOptions& options, Start start)
      : options_(options), start_(std::move(start)), to_skip_(options.first_step) {}

 private:
  Result<std::optional<Step>> advance() override {
    if (!mixture_) {
      ASSIGN_OR_RETURN(mixture_, mixture_at(mixture_of(start_), start_.orders));
    }
    const order::MixtureState& from = mixture_of(start_);
    std::vector<order::MixRange> ranges;
    while (to_skip_ >= 0) {
      const bool is_given = !order::is_skipped(from.skipped, from.pass, mixture_->state().step);
      ASSIGN_OR_RETURN(ranges, next_step(options_, *mixture_));
      if (ranges.empty()) return std::nullopt;
      if (is_given) --to_skip_;
    }
    to_skip_ = options_.step_stride - 1;
    return step_of(ranges);
  }

  Result<std::optional<Step>> step_of(std::span<const order::MixRange> ranges) {
    const order::MixState& mix = mixture_->state();
    const uint64_t pass = mixture_of(start_).pass;
    Step step{.epoch = pass, .position = mix.step - 1, .next_position = mix.step, .cursors = mix.cursors};
    newest_.resize(mix.cursors.size());
    for (const order::MixRange& range : ranges) {
      Step::Order& newest = newest_[static_cast<size_t>(range.source)];
      const uint64_t epoch = order::order_epoch(pass, range.epoch);
      if (newest.order == nullptr || newest.epoch != epoch) {
        ASSIGN_OR_RETURN(auto order, start_.orders->get(range.source, epoch));
        newest = {range.source, epoch, std::move(order)};
      }
      step.orders.push_back(newest);
    }
    const auto find = [&](int64_t source, uint64_t epoch) {
      return std::ranges::find_if(ranges, [&](const auto& at) { return at.source == source && at.epoch == epoch; }) -
             ranges.begin();
    };
    const auto order_of = [&](int64_t source, uint64_t epoch) -> const order::EpochOrder& {
      return *step.orders[static_cast<size_t>(find(source, epoch))].order;
    };
    for (const auto& unit : order::rank_share(ranges, order_of, options_.rank, options_.world_size)) {
      const auto at = static_cast<size_t>(find(unit.source, unit.epoch));
      step.units.push_back({at, step.orders[at].order->place(unit.position)});
    }
    RETURN_IF_ERROR(fill_up(step, ranges));
    return step;
  }

  // Gives the rank as many units as it has of a whole batch. Together the ranks repeat the pass's first units.
  Status fill_up(Step& step, std::span<const order::MixRange> ranges) const {
    using Kind = Step::Unit::Kind;
    const int64_t rows = options_.all_ranks_batch() / options_.world_size;
    if (options_.fill_last == FillLast::kPadding) {
      while (std::ssize(step.units) < rows) step.units.push_back({.kind = Kind::kPadding});
    }
    int64_t given = 0;
    for (const order::MixRange& range : ranges) given += range.count;
    const int64_t missing = options_.all_ranks_batch() - given;
    if (options_.fill_last != FillLast::kRepeats || missing == 0) return {};
    ASSIGN_OR_RETURN(const std::vector<order::MixUnit> first, first_units(missing));
    // Those that the ranks before this one repeat come first.
    int64_t repeated = options_.rank * rows - order::units_before(ranges, options_.rank, options_.world_size);
    while (std::ssize(step.units) < rows) {
      const order::MixUnit& unit = first[static_cast<size_t>(repeated++ % std::ssize(first))];
      const uint64_t epoch = order::order_epoch(mixture_of(start_).pass, unit.epoch);
      const auto known = std::ranges::find_if(
          step.orders, [&](const Step::Order& order) { return order.source == unit.source && order.epoch == epoch; });
      const auto at = static_cast<size_t>(known - step.orders.begin());
      if (known == step.orders.end()) {
        ASSIGN_OR_RETURN(auto order, start_.orders->get(unit.source, epoch));
        step.orders.push_back({unit.source, epoch, std::move(order)});
      }
      step.units.push_back({at, step.orders[at].order->place(unit.position), Kind::kRepeated});
    }
    return {};
  }

  // The first `count` draws of the pass, or as many as it has.
  Result<std::vector<order::MixUnit>> first_units(int64_t count) const {
    const order::MixtureState& here = mixture_of(start_);
    ASSIGN_OR_RETURN(auto mixture, mixture_at(beginning_of(here, here.pass), start_.orders));
    ASSIGN_OR_RETURN(const auto ranges, mixture.next_step(count, /*cuts_last=*/true));
    std::vector<order::MixUnit> units;
    for (const order::MixRange& range : ranges) {
      for (int64_t i = 0; i < range.count; ++i) units.push_back({range.source, range.epoch, range.begin + i});
    }
    return units;
  }

  const LoaderOptions& options_;
  const Start start_;
  std::optional<order::Mixture> mixture_;
  std::vector<Step::Order> newest_;  // of each dataset
  int64_t to_skip_;                  // global batches that are passed over before the next one
};

class MixtureOrder final : public SampleOrder {
 public:
  MixtureOrder(const LoaderOptions& options, std::span<const SourcePtr> sources)
      : options_(options), sources_(sources) {}

  Result<Start> start_at(const order::LoaderState& there, const Start& known) override {
    const auto* state = std::get_if<order::MixtureState>(&there);
    if (state == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "this loader state is of one dataset, and this loader reads a mixture");
    }
    RETURN_IF_ERROR(check(*state));
    std::vector<EpochOrders::OrderInput> datasets = known.orders->datasets();
    bool is_known = true;
    for (size_t i = 0; i < datasets.size(); ++i) {
      const order::OrderOptions& options = state->sources[i].options;
      if (options == datasets[i].options) continue;
      // Another version chose other windows. They are part of the state, so that the order goes on as it was.
      ASSIGN_OR_RETURN(datasets[i], open_epochs(options_, *sources_[i], options));
      is_known = false;
    }
    return Start{*state, is_known ? known.orders : std::make_shared<EpochOrders>(std::move(datasets))};
  }

  std::unique_ptr<OrderCursor> cursor(const Start& start) override {
    return std::make_unique<MixtureCursor>(options_, start);
  }

  Result<order::LoaderState> behind(const Start& now, uint64_t pass, int64_t step) override {
    order::MixtureState from = mixture_of(now);
    if (from.pass != pass || from.mix.step > step) from = beginning_of(mixture_of(now), pass);
    {
      MutexLock lock(mutex_);
      const bool is_same_way = last_.pass == pass && last_.mix.phases == from.mix.phases && !last_.sources.empty();
      if (is_same_way && last_.mix.step <= step && last_.mix.step > from.mix.step) from = last_;
    }
    from.skipped = mixture_of(now).skipped;
    ASSIGN_OR_RETURN(auto mixture, mixture_at(from, now.orders));
    while (mixture.state().step < step) {
      ASSIGN_OR_RETURN(const auto ranges, next_step(options_, mixture));
      if (ranges.empty()) {
        return fail(ErrorCode::kInvalidArgument, "pass {} of the mixture has {} batches, none of number {}", pass,
                    mixture.state().step, step);
      }
    }
    from.mix = mixture.state();
    MutexLock lock(mutex_);
    last_ = from;
    return from;
  }

  order::LoaderState pass_start(const Start& now, uint64_t number) override {
    return beginning_of(mixture_of(now), number);
  }

  Result<order::LoaderState> at_step(const Start& now, int64_t step) override {
    return behind(now, mixture_of(now).pass, step);
  }

  Result<int64_t> step_of(const Start& now) override { return mixture_of(now).mix.step; }

  Result<std::vector<order::SkippedSteps>> skipped_steps(const Start& now, int64_t begin, int64_t end) override {
    RETURN_IF_ERROR(at_step(now, end).map([](const auto&) {}));
    return std::vector<order::SkippedSteps>{{mixture_of(now).pass, begin, end}};
  }

  Result<Pass> pass(const Start& now) override {
    const order::MixtureState& from = mixture_of(now);
    ASSIGN_OR_RETURN(auto mixture, mixture_at(from, now.orders));
    for (;;) {
      const bool is_given = !order::is_skipped(from.skipped, from.pass, mixture.state().step);
      ASSIGN_OR_RETURN(const auto ranges, next_step(options_, mixture));
      if (ranges.empty() || is_given) return Pass{.number = from.pass, .over = ranges.empty()};
    }
  }

  Result<int64_t> pass_batches(const Start& now, uint64_t number) override {
    ASSIGN_OR_RETURN(auto mixture, mixture_at(beginning_of(mixture_of(now), number), now.orders));
    for (;;) {
      ASSIGN_OR_RETURN(const auto ranges, next_step(options_, mixture));
      const int64_t steps = mixture.state().step;
      if (ranges.empty()) return steps - order::count_skipped(mixture_of(now).skipped, number, 1, steps);
    }
  }

  Result<int64_t> epoch_units(const Start&) override {
    return fail(ErrorCode::kInvalidArgument, "a mixture has no epoch: each dataset has its own");
  }

 private:
  Status check(const order::MixtureState& state) const {
    if (state.sources.size() != sources_.size()) {
      return fail(ErrorCode::kInvalidArgument, "this loader state mixes {} datasets, this loader {}",
                  state.sources.size(), sources_.size());
    }
    for (size_t i = 0; i < sources_.size(); ++i) {
      const auto& source = state.sources[i];
      const std::string differs = order_difference(options_, source.identity, source.options, *sources_[i]);
      if (!differs.empty()) {
        return fail(ErrorCode::kInvalidArgument, "this loader state belongs to another order: dataset {} ({}):{}", i,
                    sources_[i]->name(), differs);
      }
    }
    if (state.mix.end != options_.mix_end) {
      return fail(ErrorCode::kInvalidArgument, "the stop rule is {} in the state and {} here",
                  order::mix_end_name(state.mix.end), order::mix_end_name(options_.mix_end));
    }
    const auto is_in_state = [&](const order::MixPhase& phase) {
      return std::ranges::find(state.mix.phases, phase) != state.mix.phases.end();
    };
    if (!std::ranges::all_of(options_.weights, is_in_state)) {
      log(LogLevel::kWarning,
          "loader: the weights of the state differ from those of the loader, and the state's hold; set_weights() "
          "changes them");
    }
    return {};
  }

  const LoaderOptions& options_;
  const std::span<const SourcePtr> sources_;
  Mutex mutex_;
  order::MixtureState last_ GUARDED_BY(mutex_);  // that behind() found
};

}  // namespace

std::unique_ptr<SampleOrder> make_mixture_order(const LoaderOptions& options, std::span<const SourcePtr> sources) {
  return std::make_unique<MixtureOrder>(options, sources);
}

}  // namespace millrace::loader
