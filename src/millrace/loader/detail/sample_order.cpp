// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace millrace::loader {

namespace {

int64_t count_samples(order::SampleSource& source) {
  const auto shards = source.shard_samples();
  return std::accumulate(shards.begin(), shards.end(), int64_t{0});
}

// A loader of token ids of a source that has no lengths.
Status check_does_without_lengths(const LoaderOptions& options, const order::SampleSource& source) {
  if (!source.token_ids()) {
    return fail(ErrorCode::kUnsupported, "{}: its samples hold no token ids; SampleLoader reads samples of any kind",
                source.name());
  }
  if (options.pack_seq_len() == 0) return {};
  return fail(ErrorCode::kUnsupported,
              "{}: packing needs the number of tokens of each sample, which this source does not know; use "
              "collate='pad'",
              source.name());
}

Result<order::OrderOptions> resolve_order(const LoaderOptions& options, order::SampleSource& source) {
  const int64_t samples = count_samples(source);
  if (samples == 0) return fail(ErrorCode::kInvalidArgument, "{}: no samples", source.name());
  if (options.order.full && source.reads_to_plan()) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: shuffle='full' reads single samples, and the rows of this source are read in groups; shuffle=True "
                "shuffles the groups and the rows in them, and shards can be shuffled in full",
                source.name());
  }
  order::SampleLengths* const lengths = options.has_fields() ? nullptr : source.lengths();
  if (lengths == nullptr) {
    if (!options.has_fields()) RETURN_IF_ERROR(check_does_without_lengths(options, source));
    return order::resolve_options_by_bytes(options.order, samples, source.total_bytes(), source.window_hint());
  }
  ASSIGN_OR_RETURN(const int64_t tokens, lengths->total_tokens());
  order::OrderOptions wanted = options.order;
  wanted.pack_seq_len = options.pack_seq_len();
  wanted.best_fit = options.collate == Collate::kBestFit;
  return order::resolve_options(wanted, samples, tokens);
}

}  // namespace

void OrderCursor::Step::move_behind(order::LoaderState& state) const {
  if (auto* const one = std::get_if<order::OrderState>(&state)) {
    one->epoch = epoch;
    one->position = next_position;
    return;
  }
  auto& mix = std::get<order::MixtureState>(state).mix;
  mix.step = next_position;
  mix.cursors = cursors;
}

Result<EpochOrders::OrderPtr> EpochOrders::get(int64_t dataset, uint64_t epoch) {
  {
    MutexLock lock(mutex_);
    if (const auto known = orders_.find({dataset, epoch}); known != orders_.end()) return known->second;
  }
  const OrderInput& of = datasets_[static_cast<size_t>(dataset)];
  ASSIGN_OR_RETURN(auto made, order::EpochOrder::create(of.windows, of.options, epoch));
  auto order = std::make_shared<const order::EpochOrder>(std::move(made));
  MutexLock lock(mutex_);
  std::erase_if(orders_,
                [&](const auto& entry) { return entry.first.first == dataset && entry.first.second + 1 != epoch; });
  orders_[{dataset, epoch}] = order;
  if (of.options.pack_seq_len > 0) units_[{dataset, epoch}] = order->units();
  return order;
}

Result<int64_t> EpochOrders::units(int64_t dataset, uint64_t epoch) {
  const OrderInput& of = datasets_[static_cast<size_t>(dataset)];
  if (of.options.pack_seq_len == 0) return of.samples;
  {
    MutexLock lock(mutex_);
    if (const auto known = units_.find({dataset, epoch}); known != units_.end()) return known->second;
  }
  ASSIGN_OR_RETURN(const auto made, order::EpochOrder::create(of.windows, of.options, epoch));
  MutexLock lock(mutex_);
  return units_[{dataset, epoch}] = made.units();
}

Result<std::optional<OrderCursor::Step>> OrderCursor::next() {
  if (is_at_end_) return std::nullopt;
  auto step = advance();
  is_at_end_ = !step || !*step;
  return step;
}

// When packing, the tokens of each window decide where rows lie, so all lengths are read.
Result<EpochOrders::OrderInput> open_epochs(const LoaderOptions& options, order::SampleSource& source,
                                            const order::OrderOptions& resolved) {
  const bool packed = options.pack_seq_len() > 0;
  const int64_t in_window = resolved.window_samples;
  ASSIGN_OR_RETURN(auto table,
                   order::WindowTable::create(source.shard_samples(), in_window, packed, resolved.best_fit));
  if (resolved.best_fit) {
    RETURN_IF_ERROR(source.lengths()->sample_tokens([&](int64_t shard, std::span<const uint32_t> lengths) {
      const auto tokens = table.shard_tokens(shard), rows = table.shard_rows(shard);
      for (size_t window = 0; window < tokens.size(); ++window) {
        const auto ours = lengths.subspan(window * static_cast<size_t>(in_window));
        const auto of_window = ours.first(std::min(ours.size(), static_cast<size_t>(in_window)));
        tokens[window] = std::accumulate(of_window.begin(), of_window.end(), int64_t{0});
        rows[window] = order::best_fit(of_window, resolved.pack_seq_len).rows;
      }
    }));
  } else if (packed) {
    RETURN_IF_ERROR(
        source.lengths()->window_tokens(in_window, [&](int64_t shard) { return table.shard_tokens(shard); }));
  }
  return EpochOrders::OrderInput{resolved, std::make_shared<const order::WindowTable>(std::move(table)),
                                 count_samples(source)};
}

std::string order_difference(const LoaderOptions& options, std::string_view identity, const order::OrderOptions& there,
                             const order::SampleSource& source) {
  std::string differs;
  const auto compare = [&](std::string_view what, const auto& in_state, const auto& here) {
    if (in_state != here) differs += fmt::format(" {} is {} in the state and {} here;", what, in_state, here);
  };
  compare("the dataset", identity, source.identity());
  compare("seed", there.seed, options.order.seed);
  compare("shuffle", there.shuffle, options.order.shuffle);
  compare("full shuffle", there.full, options.order.full);
  compare("packed seq_len", there.pack_seq_len, options.pack_seq_len());
  compare("packing by best fit", there.best_fit, options.collate == Collate::kBestFit);
  return differs;
}

std::unique_ptr<SampleOrder> make_order(const LoaderOptions& options, std::span<const SourcePtr> sources) {
  return options.is_mixture() ? make_mixture_order(options, sources) : make_epochs_order(options, *sources.front());
}

Result<OpenedOrder> open_order(const LoaderOptions& options, std::span<const SourcePtr> sources) {
  std::vector<EpochOrders::OrderInput> datasets;
  order::MixtureState mixture;
  for (const SourcePtr& source : sources) {
    ASSIGN_OR_RETURN(const auto resolved, resolve_order(options, *source));
    ASSIGN_OR_RETURN(auto dataset, open_epochs(options, *source, resolved));
    datasets.push_back(std::move(dataset));
    mixture.sources.push_back({std::string(source->identity()), resolved});
  }
  OpenedOrder opened{.order = make_order(options, sources)};
  if (options.is_mixture()) {
    ASSIGN_OR_RETURN(mixture.mix, order::Mixture::start(options.weights, options.mix_end));
    opened.beginning.state = std::move(mixture);
  } else {
    opened.beginning.state =
        order::OrderState{.options = mixture.sources[0].options, .source = mixture.sources[0].identity};
  }
  opened.beginning.orders = std::make_shared<EpochOrders>(std::move(datasets));
  return opened;
}

}  // namespace millrace::loader
