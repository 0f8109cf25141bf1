// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/mixture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace millrace::order {
namespace {

constexpr int64_t kUnit = int64_t{1} << 32;  // one unit of debt
constexpr int64_t kSourceLimit = 65536;      // a state may come from anywhere: no table is sized by an unchecked number

Status check_weights(std::span<const double> weights, size_t sources) {
  const auto bad = [](std::string_view what) { return fail(ErrorCode::kInvalidArgument, "mixture: {}", what); };
  if (weights.size() != sources) {
    return bad(fmt::format("{} weights for {} datasets", weights.size(), sources));
  }
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight >= 0) || !std::isfinite(weight)) return bad(fmt::format("a weight of {}; at least 0", weight));
    sum += weight;
  }
  if (!(sum > 0) || !std::isfinite(sum)) return bad("the weights must add up to more than 0");
  return {};
}

// Each dataset's share of a unit, in 2^-32; they add up to one unit exactly. A dataset's share is the difference of two
// rounded running sums, so no rounding error accumulates.
std::vector<int64_t> shares_of(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> shares;
  double running = 0;
  int64_t before = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    running += weights[i];
    const int64_t until = std::llround(std::min(running / sum, 1.0) * static_cast<double>(kUnit));
    shares.push_back(until - before);
    before = until;
  }
  return shares;
}

const MixPhase& phase_at(const MixState& state) {
  const auto after = std::upper_bound(state.phases.begin(), state.phases.end(), state.step,
                                      [](int64_t step, const MixPhase& phase) { return step < phase.step; });
  return *std::prev(after);
}

Status check_state(const MixState& state) {
  const auto bad = [](std::string_view what) { return fail(ErrorCode::kInvalidArgument, "mixture: {}", what); };
  if (state.cursors.empty()) return bad("no dataset");
  if (std::ssize(state.cursors) > kSourceLimit) return bad(fmt::format("more than {} datasets", kSourceLimit));
  if (state.step < 0) return bad("a step below 0");
  if (state.phases.empty() || state.phases.front().step != 0) return bad("no weights for step 0");
  for (size_t i = 0; i < state.phases.size(); ++i) {
    RETURN_IF_ERROR(check_weights(state.phases[i].weights, state.cursors.size()));
    if (i > 0 && state.phases[i].step <= state.phases[i - 1].step) return bad("weights are not listed by rising step");
  }
  int64_t debts = 0;
  for (const MixCursor& cursor : state.cursors) {
    if (cursor.position < 0) return bad("a position below 0");
    if (__builtin_add_overflow(debts, cursor.debt, &debts)) return bad("debts out of range");
  }
  if (debts != 0) return bad("debts that do not add up to 0");
  return {};
}

// Draws `batch` units; how many come from each dataset. Changes the debts of `cursors`.
std::vector<int64_t> draw(std::span<MixCursor> cursors, std::span<const double> weights, int64_t batch) {
  const std::vector<int64_t> shares = shares_of(weights);
  std::vector<int64_t> counts(cursors.size());
  for (int64_t drawn = 0; drawn < batch; ++drawn) {
    size_t most = cursors.size();
    for (size_t i = 0; i < cursors.size(); ++i) {
      cursors[i].debt += shares[i];
      if (shares[i] > 0 && (most == cursors.size() || cursors[i].debt > cursors[most].debt)) most = i;
    }
    cursors[most].debt -= kUnit;
    ++counts[most];
  }
  return counts;
}

// Where a rank's run begins in a list of `count` that is cut into `world` runs, as equal as whole numbers allow.
int64_t run_begin(int64_t count, int64_t rank, int64_t world) {
  return rank * count / world;
}

}  // namespace

Result<MixEnd> parse_mix_end(std::string_view name) {
  for (const MixEnd end : {MixEnd::kFirstEmpty, MixEnd::kAllEmpty, MixEnd::kEndless}) {
    if (name == mix_end_name(end)) return end;
  }
  return fail(ErrorCode::kInvalidArgument, "a mixture ends at first_empty, all_empty or endless, not '{}'", name);
}

std::string_view mix_end_name(MixEnd end) {
  switch (end) {
    case MixEnd::kFirstEmpty:
      return "first_empty";
    case MixEnd::kAllEmpty:
      return "all_empty";
    case MixEnd::kEndless:
      return "endless";
  }
  return "";
}

Result<Mixture> Mixture::create(MixState state, UnitsOf units_of) {
  RETURN_IF_ERROR(check_state(state));
  return Mixture(std::move(state), std::move(units_of));
}

Result<MixState> Mixture::start(std::vector<MixPhase> phases, MixEnd end) {
  MixState state{.phases = std::move(phases), .end = end};
  if (!state.phases.empty()) state.cursors.resize(state.phases.front().weights.size());
  RETURN_IF_ERROR(check_state(state));
  return state;
}

bool Mixture::all_ended(std::span<const MixCursor> cursors) const {
  const MixPhase& phase = phase_at(state_);
  for (size_t i = 0; i < cursors.size(); ++i) {
    if (phase.weights[i] > 0 && cursors[i].epoch == 0) return false;
  }
  return true;
}

// Takes the next `count` units of a dataset and moves its cursor behind them, into the next epoch when this one is
// over. False when the mixture ends because the dataset has.
Result<bool> Mixture::take(int64_t source, int64_t count, MixCursor& cursor, std::vector<MixRange>& step) const {
  for (int64_t left = count; left > 0;) {
    if (state_.end == MixEnd::kFirstEmpty && cursor.epoch > 0) return false;
    ASSIGN_OR_RETURN(const int64_t units, units_of_(source, cursor.epoch));
    if (units <= 0) return fail(ErrorCode::kInvalidArgument, "mixture: dataset {} has no samples", source);
    if (cursor.position >= units) {
      return fail(ErrorCode::kInvalidArgument, "mixture: dataset {} has {} units, position {} does not exist", source,
                  units, cursor.position);
    }
    const int64_t taken = std::min(left, units - cursor.position);
    step.push_back({source, cursor.epoch, cursor.position, taken});
    left -= taken;
    cursor.position += taken;
    if (cursor.position == units) {
      ++cursor.epoch;
      cursor.position = 0;
    }
  }
  return true;
}

Result<std::vector<MixRange>> Mixture::next_step(int64_t batch, bool cuts_last) {
  std::vector<MixRange> step;
  if (state_.end == MixEnd::kAllEmpty && all_ended(state_.cursors)) return step;
  std::vector<MixCursor> cursors = state_.cursors;
  const std::vector<int64_t> counts = draw(cursors, phase_at(state_).weights, batch);
  for (size_t i = 0; i < cursors.size(); ++i) {
    ASSIGN_OR_RETURN(const bool goes_on, take(static_cast<int64_t>(i), counts[i], cursors[i], step));
    if (!goes_on) return cuts_last ? cut_step(batch) : std::vector<MixRange>{};
  }
  if (cuts_last && state_.end == MixEnd::kAllEmpty && all_ended(cursors)) return cut_step(batch);
  state_.cursors = std::move(cursors);
  ++state_.step;
  return step;
}

// The draws of a step up to the end of the mixture. One by one: it lies among them, or behind the last.
Result<std::vector<MixRange>> Mixture::cut_step(int64_t batch) {
  const std::vector<double>& weights = phase_at(state_).weights;
  std::vector<MixCursor> cursors = state_.cursors;  // behind the draws so far
  std::vector<int64_t> counts(cursors.size());
  for (int64_t drawn = 0; drawn < batch; ++drawn) {
    if (state_.end == MixEnd::kAllEmpty && all_ended(cursors)) break;
    std::vector<MixCursor> next = cursors;
    const std::vector<int64_t> one = draw(next, weights, 1);
    const auto source = static_cast<size_t>(std::ranges::find(one, 1) - one.begin());
    std::vector<MixRange> unused;
    ASSIGN_OR_RETURN(const bool goes_on, take(static_cast<int64_t>(source), 1, next[source], unused));
    if (!goes_on) break;
    ++counts[source];
    cursors = std::move(next);
  }
  std::vector<MixRange> step;
  for (size_t i = 0; i < cursors.size(); ++i) {
    MixCursor from = state_.cursors[i];
    RETURN_IF_ERROR(take(static_cast<int64_t>(i), counts[i], from, step).map([](bool) {}));
  }
  if (step.empty()) return step;
  state_.cursors = std::move(cursors);
  ++state_.step;
  return step;
}

Status Mixture::set_weights(std::vector<double> weights) {
  RETURN_IF_ERROR(check_weights(weights, state_.cursors.size()));
  auto& phases = state_.phases;
  const auto at = std::lower_bound(phases.begin(), phases.end(), state_.step,
                                   [](const MixPhase& phase, int64_t step) { return phase.step < step; });
  if (at != phases.end() && at->step == state_.step) {
    at->weights = std::move(weights);
  } else {
    phases.insert(at, {.step = state_.step, .weights = std::move(weights)});
  }
  return {};
}

std::vector<MixUnit> rank_share(std::span<const MixRange> step,
                                const std::function<const EpochOrder&(int64_t source, uint64_t epoch)>& order_of,
                                int64_t rank, int64_t world) {
  std::vector<MixUnit> share, rest, units;
  for (size_t i = 0; i < step.size();) {
    units.clear();
    const int64_t source = step[i].source;
    for (; i < step.size() && step[i].source == source; ++i) {
      const MixRange& range = step[i];
      for (const int64_t position :
           rank_positions(order_of(source, range.epoch), range.begin, range.count, /*rank=*/0, /*world=*/1)) {
        units.push_back({source, range.epoch, position});
      }
    }
    const int64_t each = std::ssize(units) / world;
    share.insert(share.end(), units.begin() + rank * each, units.begin() + (rank + 1) * each);
    rest.insert(rest.end(), units.begin() + world * each, units.end());
  }
  const int64_t left = std::ssize(rest);
  share.insert(share.end(), rest.begin() + run_begin(left, rank, world),
               rest.begin() + run_begin(left, rank + 1, world));
  return share;
}

int64_t units_before(std::span<const MixRange> step, int64_t rank, int64_t world) {
  std::map<int64_t, int64_t> counts;
  for (const MixRange& range : step) counts[range.source] += range.count;
  int64_t each = 0, left = 0;
  for (const auto& [source, count] : counts) {
    each += count / world;
    left += count % world;
  }
  return rank * each + run_begin(left, rank, world);
}

}  // namespace millrace::order
