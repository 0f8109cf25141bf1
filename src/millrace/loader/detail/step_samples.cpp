// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/step_samples.h"

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "millrace/loader/detail/block.h"

namespace millrace::loader {

namespace {

// A block as it is laid out, without memory.
struct LaidOut {
  std::vector<order::Window> windows;
  std::unique_ptr<Block> block;
};

Result<LaidOut> lay_out(order::SampleSource& source, const SampleDecoder& decoder, const order::EpochOrder& order,
                        const order::EpochOrder::Place& at, const std::stop_token& stop) {
  auto [windows, samples, tokens, units, first_row] = order.block(at.lane, at.block);
  ASSIGN_OR_RETURN(const order::SamplePlan plan, source.plan(windows, stop));
  ASSIGN_OR_RETURN(std::vector<uint32_t> items, decoder.count_items(plan));
  if (std::ssize(items) != samples) {
    return fail(ErrorCode::kInternal, "{}: {} lengths, {} were asked for", source.name(), items.size(), samples);
  }
  // A part of a sample without tokens is the whole sample.
  if (!decoder.item().has_bit) std::ranges::fill(items, 0);
  auto layout = order.layout(at.lane, at.block, items);
  return LaidOut{std::move(windows), std::make_unique<Block>(decoder.item(), items, std::move(layout),
                                                             std::span<const int64_t>(&samples, 1))};
}

class StepSamples {
 public:
  StepSamples(const LoaderOptions& options, const Dataset& dataset, std::span<const order::QuarantinedUnit> quarantined,
              const std::stop_token& stop)
      : options_(options), dataset_(dataset), stop_(stop) {
    for (const auto& unit : quarantined) {
      quarantined_[{unit.source, unit.epoch, unit.lane, unit.block, unit.index}] = &unit;
    }
  }

  Result<RowParts> row(const OrderCursor::Step& step, const OrderCursor::Step::Unit& unit) {
    if (unit.kind == OrderCursor::Step::Unit::Kind::kPadding) return RowParts();
    const auto& [number, epoch, order] = step.orders[unit.order];
    order::SampleSource& source = *dataset_.sources[static_cast<size_t>(number)];
    order::EpochOrder::Place place = unit.place;
    std::string replaces;
    if (const auto bad = quarantined_.find({number, epoch, place.lane, place.block, place.index});
        bad != quarantined_.end()) {
      const auto other = order->replacement(place, bad->second->attempts - 1);
      if (!other) return fail(ErrorCode::kInvalidArgument, "loader: a state names a replacement that does not exist");
      place = *other;
      replaces = bad->second->reason;
    }
    LaidOut& laid_out = blocks_[{number, epoch, place.lane, place.block}];
    if (laid_out.block == nullptr) {
      ASSIGN_OR_RETURN(laid_out,
                       lay_out(source, *dataset_.decoders[static_cast<size_t>(number)], *order, place, stop_));
    }
    RowParts parts;
    for (const auto& [sample, begin, end] : laid_out.block->segments(place.index, options_.pack_seq_len())) {
      const auto [shard, in_shard] = find(laid_out.windows, sample);
      parts.push_back({.source = number,
                       .shard = std::string(source.shard_name(shard)),
                       .sample = in_shard,
                       .begin = begin,
                       .end = std::min(end, begin + options_.seq_len),
                       .replaces = replaces});
    }
    return parts;
  }

 private:
  // Sample `number` of the windows laid end to end: its shard, and its number there.
  static std::pair<int64_t, int64_t> find(std::span<const order::Window> windows, int64_t number) {
    auto window = windows.begin();
    for (; number >= window->samples; ++window) number -= window->samples;
    return {window->shard, window->first + number};
  }

  const LoaderOptions& options_;
  const Dataset& dataset_;
  const std::stop_token& stop_;
  // By dataset, epoch, lane and block, and by the index there.
  std::map<std::tuple<int64_t, uint64_t, int64_t, int64_t>, LaidOut> blocks_;
  std::map<std::tuple<int64_t, uint64_t, int64_t, int64_t, int64_t>, const order::QuarantinedUnit*> quarantined_;
};

LoaderOptions of_rank(const LoaderOptions& options, int64_t rank) {
  LoaderOptions all_steps = options;
  all_steps.rank = rank;
  all_steps.first_step = 0;
  all_steps.step_stride = 1;
  return all_steps;
}

}  // namespace

Result<std::vector<std::vector<RowParts>>> step_samples(const LoaderOptions& options, const Dataset& dataset,
                                                        Start before,
                                                        std::span<const order::QuarantinedUnit> quarantined,
                                                        const std::stop_token& stop) {
  std::visit([](auto& state) { state.skipped.clear(); }, before.state);
  StepSamples samples(options, dataset, quarantined, stop);
  std::vector<std::vector<RowParts>> ranks;
  for (int64_t rank = 0; rank < options.world_size; ++rank) {
    const LoaderOptions mine = of_rank(options, rank);
    const auto order = make_order(mine, dataset.sources);
    ASSIGN_OR_RETURN(const auto step, order->cursor(before)->next());
    if (!step) return fail(ErrorCode::kInvalidArgument, "the pass has no batch there");
    auto& rows = ranks.emplace_back();
    for (const auto& unit : step->units) {
      ASSIGN_OR_RETURN(auto row, samples.row(*step, unit));
      rows.push_back(std::move(row));
    }
  }
  return ranks;
}

}  // namespace millrace::loader
