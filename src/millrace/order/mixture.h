// SPDX-License-Identifier: Apache-2.0
#pragma once

// Mixes several datasets into one stream of units, by weight. docs/format/order.md ("Mixtures") defines the result to
// the bit. No I/O.
//
// A mixture draws one unit at a time. Each draw adds every dataset's share to the dataset's debt, takes a unit of the
// dataset with the largest debt, and subtracts one unit from that debt (smooth weighted round-robin). The counts
// therefore follow the weights closely from the first step on. A state is only a cursor and a debt for each dataset,
// so it is small and weights may change at any step. A second function, `rank_share`, decides which rank reads a unit;
// only that function knows the world size.
//
// Values; a Mixture is used by one thread at a time.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/order/order.h"
#include "millrace/order/quarantine.h"

namespace millrace::order {

// When a mixture ends.
enum class MixEnd {
  kFirstEmpty,  // before the step in which a dataset would begin its second epoch
  kAllEmpty,    // when every dataset with a weight has ended its first epoch; the others repeat until then
  kEndless,     // never; each dataset repeats
};
[[nodiscard]] Result<MixEnd> parse_mix_end(std::string_view name);  // "first_empty", "all_empty", "endless"
std::string_view mix_end_name(MixEnd end);

// The position of one dataset of a mixture.
struct MixCursor {
  uint64_t epoch = 0;
  int64_t position = 0;  // next unit of that epoch
  int64_t debt = 0;      // units owed, in 2^-32; the debts of a mixture add up to 0
  bool operator==(const MixCursor&) const = default;
};

// Weights that apply from a step on.
struct MixPhase {
  int64_t step = 0;
  std::vector<double> weights;  // one per dataset; only ratios count; 0 pauses a dataset
  bool operator==(const MixPhase&) const = default;
};

// A mixture before its next step.
struct MixState {
  int64_t step = 0;
  std::vector<MixCursor> cursors;  // one per dataset
  std::vector<MixPhase> phases;    // by step, the first at 0; including those of set_weights()
  MixEnd end = MixEnd::kFirstEmpty;
  bool operator==(const MixState&) const = default;
};

// Consecutive positions of one epoch of one dataset.
struct MixRange {
  int64_t source = 0;
  uint64_t epoch = 0;
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const MixRange&) const = default;
};
// One position of one epoch of one dataset.
struct MixUnit {
  int64_t source = 0;
  uint64_t epoch = 0;
  int64_t position = 0;
  bool operator==(const MixUnit&) const = default;
};

class Mixture {
 public:
  // Returns how many units an epoch of a dataset has.
  using UnitsOf = std::function<Result<int64_t>(int64_t source, uint64_t epoch)>;

  // Makes a mixture that continues from `state`. Errors: invalid_argument (no dataset; weights that are negative, not
  // finite, all 0 or not one per dataset; phases out of order; debts that do not add up to 0; a cursor below 0).
  [[nodiscard]] static Result<Mixture> create(MixState state, UnitsOf units_of);
  // Makes the state of a mixture at its start. Errors: as create().
  [[nodiscard]] static Result<MixState> start(std::vector<MixPhase> phases, MixEnd end);

  // Draws the next global batch of `batch` units. Returns at most one range for each dataset and epoch, sorted by
  // dataset, then epoch; empty once the mixture has ended. A mixture ends before a step, never within one. With
  // `cuts_last`, its last step ends with the last draw before the end, and may be smaller (docs/format/order.md).
  // Errors: invalid_argument (a dataset with a weight has no units; a cursor after the end of its epoch), those of
  // UnitsOf; the mixture is then unchanged.
  [[nodiscard]] Result<std::vector<MixRange>> next_step(int64_t batch, bool cuts_last = false);

  // Sets the weights from the next step on, until a later phase. Errors: invalid_argument, as create().
  [[nodiscard]] Status set_weights(std::vector<double> weights);

  const MixState& state() const { return state_; }

 private:
  Mixture(MixState state, UnitsOf units_of) : state_(std::move(state)), units_of_(std::move(units_of)) {}
  bool all_ended(std::span<const MixCursor> cursors) const;
  [[nodiscard]] Result<std::vector<MixRange>> cut_step(int64_t batch);
  [[nodiscard]] Result<bool> take(int64_t source, int64_t count, MixCursor& cursor, std::vector<MixRange>& step) const;

  MixState state_;
  UnitsOf units_of_;
};

// Returns the units of a step that `rank` of `world` reads. Sorts each dataset's n units of the step by (epoch, lane,
// row) and cuts the first ⌊n/world⌋·world of them into `world` equal runs, one per rank. The remaining units of all
// datasets form one more list of m units, by dataset. Rank r gets the run [⌊r·m/world⌋, ⌊(r+1)·m/world⌋) of it. Each
// rank thus gets datasets in the ratio of the mixture, and equally many units if `world` divides the batch.
// `order_of` returns the order of an epoch of a dataset. REQUIRES: 0 <= rank < world.
std::vector<MixUnit> rank_share(std::span<const MixRange> step,
                                const std::function<const EpochOrder&(int64_t source, uint64_t epoch)>& order_of,
                                int64_t rank, int64_t world);

// Returns how many units of a step the ranks below `rank` read. REQUIRES: as rank_share().
int64_t units_before(std::span<const MixRange> step, int64_t rank, int64_t world);

// The position of training in a mixture, and the orders that the mixture draws from: a few hundred bytes of JSON.
struct MixtureState {
  struct Source {
    std::string identity;  // SampleSource::identity()
    OrderOptions options;
    bool operator==(const Source&) const = default;
  };
  uint64_t pass = 0;
  MixState mix;  // state of the mixture in that pass
  std::vector<Source> sources;
  std::vector<SkippedSteps> skipped;
  std::vector<QuarantinedUnit> quarantined;  // damaged units that this rank has met
  std::vector<DamagedShard> damaged_shards;  // damaged shards of the dataset when the state was written
  bool operator==(const MixtureState&) const = default;
};
// Returns which epoch of a dataset's order is epoch `epoch` of pass `pass`. Passes share no epoch. REQUIRES: both are
// below 2^32.
constexpr uint64_t order_epoch(uint64_t pass, uint64_t epoch) {
  return pass << 32 | epoch;
}

// The position of a loader: in the order of one dataset, or in a mixture.
using LoaderState = std::variant<OrderState, MixtureState>;
std::string serialize_state(const LoaderState& state);
// Parses a state. Errors: invalid_argument (not a state, or one that Mixture::create refuses), unsupported (a newer
// version).
[[nodiscard]] Result<LoaderState> parse_loader_state(std::string_view json);

}  // namespace millrace::order
