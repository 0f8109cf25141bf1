// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes the order in which samples are trained on: a pure function of (dataset, seed, epoch), the same at every
// world size. docs/format/order.md defines it to the bit, with examples; this is that page as code. No I/O.
//
// Shards are cut into windows: consecutive samples of one shard that are read together. An epoch permutes the windows
// and deals them to a fixed number of lanes, the i-th window to lane i mod lanes. In a lane, every `block_windows`
// windows form a block whose samples are shuffled together.
// Batches count units. A unit is a sample. When packing, a unit is a row of `pack_seq_len` tokens of a block's
// shuffled and concatenated samples (the last row of a block may be shorter; no row spans blocks), or, by best fit, a
// row of whole samples of one window.
// Row q of the epoch holds the q-th unit of every lane that has one, and positions run along the rows: position =
// (positions of the rows before) + (number of the lane among those that still have a unit). Step s of global batch B
// takes positions [s*B, (s+1)*B), and `rank_positions` returns those of a rank. The state of training is therefore one
// position, and only rank_positions knows the world size.
//
// Values and const methods; thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/order/best_fit.h"
#include "millrace/order/permutation.h"
#include "millrace/order/quarantine.h"
#include "millrace/order/skipped.h"

namespace millrace::order {

struct Window {
  int64_t shard = 0;
  int64_t first = 0;  // sample number in the shard
  int64_t samples = 0;
  int64_t tokens = 0;  // tokens of these samples; 0: lengths are unknown, so packing is impossible
  int64_t rows = 0;    // rows that best_fit() packs them into; 0 without best fit
  bool operator==(const Window&) const = default;
};

// The fields that identify an order, in addition to the dataset. All fields are resolved (no zeros) except where 0 has
// a meaning.
struct OrderOptions {
  uint64_t seed = 0;
  bool shuffle = true;         // false: canonical order, one lane
  int64_t lanes = 0;           // 0: resolve_options chooses
  int64_t window_samples = 0;  // 0: resolve_options chooses
  int64_t block_windows = 0;   // 0: resolve_options chooses
  int64_t pack_seq_len = 0;    // 0: a unit is a sample
  bool best_fit = false;       // when packing: samples that fit into a row stay whole
  // Applies with `shuffle` and without packing. True: one permutation of all samples, each read alone. No table of
  // windows is made; lanes, window_samples and block_windows are 1.
  bool full = false;
  bool operator==(const OrderOptions&) const = default;
};

// Replaces the zeros by values that depend only on the dataset's size: blocks of about 512 Ki tokens (or 512 samples
// when lengths are unknown), 8 windows per block, at most 256 samples per window, and 32 lanes, or a smaller power of
// two when a lane would get fewer than 4 windows.
OrderOptions resolve_options(const OrderOptions& options, int64_t samples, int64_t tokens);

// Replaces the zeros for samples of any kind, by their bytes: windows of about 1 MiB, blocks of about 8 MiB, and so
// many lanes that their blocks together hold at most 256 MiB. When `bytes` is 0: 512 samples per block. A
// `window_hint` above 0 is the number of samples of a window, and each window is a block.
OrderOptions resolve_options_by_bytes(const OrderOptions& options, int64_t samples, int64_t bytes,
                                      int64_t window_hint = 0);

// The windows of a dataset in canonical order: `window_samples` consecutive samples of a shard each; the last window
// of a shard may be shorter. With lengths the table takes 8 bytes per window, with rows 8 more.
class WindowTable {
 public:
  // `with_lengths`: the caller then fills in the tokens of every window (shard_tokens). `with_rows`: the caller then
  // fills in the rows of every window (shard_rows). Errors: invalid_argument (more than 2^32 - 1 windows, which no
  // order can hold).
  // REQUIRES: window_samples >= 1.
  [[nodiscard]] static Result<WindowTable> create(std::span<const int64_t> shard_samples, int64_t window_samples,
                                                  bool with_lengths, bool with_rows = false);
  int64_t size() const { return first_windows_.back(); }
  int64_t window_samples() const { return window_samples_; }
  // REQUIRES: 0 <= number < size().
  Window window(int64_t number) const;
  // Returns the token counts of a shard's windows for the caller to fill in; they are 0 at first. Several threads may
  // fill different shards in parallel. REQUIRES: created with lengths.
  std::span<int64_t> shard_tokens(int64_t shard);
  // Returns the row counts of a shard's windows, to be filled in the same way. REQUIRES: created with rows.
  std::span<int64_t> shard_rows(int64_t shard);

 private:
  WindowTable() = default;
  std::span<int64_t> of_shard(std::vector<int64_t>& numbers, int64_t shard) const;
  int64_t window_samples_ = 1;
  std::vector<int64_t> shard_samples_;
  std::vector<int64_t> first_windows_;  // number of each shard's first window, then of all windows
  std::vector<int64_t> tokens_;         // tokens of each window; empty without lengths
  std::vector<int64_t> rows_;           // rows of each window; empty without rows
};

class EpochOrder {
 public:
  // Makes the order of an epoch. It takes 4 bytes per window and 40 per block; a full permutation takes none. Errors:
  // invalid_argument (packing without lengths, no windows, bad options).
  [[nodiscard]] static Result<EpochOrder> create(std::shared_ptr<const WindowTable> windows,
                                                 const OrderOptions& options, uint64_t epoch);

  // Returns the number of positions in this epoch.
  int64_t units() const { return units_; }
  int64_t lanes() const { return full_ ? 1 : static_cast<int64_t>(lane_blocks_.size()); }

  struct Place {
    int64_t lane = 0;
    int64_t block = 0;  // number within the lane
    int64_t index = 0;  // unit within the block
    int64_t row = 0;    // unit within the lane
    bool operator==(const Place&) const = default;
  };
  // Returns the place of a position. Once some lanes have ended, the time is proportional to the number of lanes.
  // REQUIRES: 0 <= position < units().
  Place place(int64_t position) const;

  // Returns the unit to read instead of a damaged one, for attempts counted from 0. The attempts try eight units of
  // the same block, then eight of each of the three next blocks of the lane, then units of other lanes, then the rest
  // of its block. In a full permutation they try up to 128 following units, wrapping around at the end. nullopt when
  // all were tried. The result is the same at every world size.
  std::optional<Place> replacement(const Place& damaged, int64_t attempt) const;
  static constexpr int64_t kReplacementsInBlock = 8;

  struct Block {
    std::vector<Window> windows;
    int64_t samples = 0;
    int64_t tokens = 0;
    int64_t units = 0;
    int64_t first_row = 0;  // number in the lane of the block's first row
  };
  int64_t blocks(int64_t lane) const {
    return full_ ? units_ : static_cast<int64_t>(lane_blocks_[static_cast<size_t>(lane)].size());
  }
  Block block(int64_t lane, int64_t number) const;
  // Returns the order of a block's samples: the i-th trained sample is sample permutation[i], counted window after
  // window.
  std::vector<uint32_t> permutation(int64_t lane, int64_t number) const;
  // Returns the layout of a block's samples: in the order of permutation(), or, by best fit, the shuffled bins of its
  // windows and then the samples without tokens. `lengths`: the lengths of the block's samples, window after window.
  BlockLayout layout(int64_t lane, int64_t number, std::span<const uint32_t> lengths) const;

 private:
  // Tables of the methods above.
  struct BlockEntry {
    int64_t first_window = 0;  // number in its lane
    int64_t first_row = 0;
    int64_t samples = 0;
    int64_t tokens = 0;
    int64_t units = 0;
  };
  // Consecutive rows in which the same lanes have units. These rows have the same number of positions.
  struct Segment {
    int64_t row = 0;             // first row
    int64_t begin = 0, end = 0;  // positions
    std::vector<int64_t> lanes;  // lanes that have units, ascending
  };
  friend std::vector<int64_t> rank_positions(const EpochOrder& order, int64_t begin, int64_t count, int64_t rank,
                                             int64_t world);
  [[nodiscard]] Status build_blocks();
  void build_breaks();
  using Break = std::pair<int64_t, int64_t>;
  std::vector<Break>::const_iterator break_after(int64_t position) const;
  Segment segment_at(int64_t position) const;

  OrderOptions options_;
  uint64_t epoch_ = 0;
  // lane_window() returns the i-th window of a lane, lane_size() the number of its windows.
  Window lane_window(int64_t lane, int64_t i) const;
  int64_t lane_size(int64_t lane) const;
  std::shared_ptr<const WindowTable> windows_;
  std::optional<Permutation> full_;  // instead of all tables below
  std::vector<uint32_t> dealt_;      // window numbers in the order of dealing, the i-th to lane i mod lanes
  std::vector<std::vector<BlockEntry>> lane_blocks_;
  std::vector<int64_t> lane_units_;
  std::vector<Break> breaks_;  // (row, positions before it) of row 0 and of each row where a lane ends
  int64_t units_ = 0;
};

// Returns the positions of [begin, begin + count) that `rank` of `world` reads, ordered by (lane, row). Sorts the
// positions by (lane, row) and cuts them into `world` runs; rank r takes [r*count/world, (r+1)*count/world). The union
// over all ranks is the range. If lanes % world == 0 and count % lanes == 0, a rank reads the same lanes in every
// step, as long as all lanes have units.
// REQUIRES: 0 <= rank < world, begin + count <= order.units().
std::vector<int64_t> rank_positions(const EpochOrder& order, int64_t begin, int64_t count, int64_t rank, int64_t world);

// A piece of a packed row. The rows are a block's samples in trained order, concatenated and cut after every `seq_len`
// tokens.
struct Segment {
  int64_t sample = 0;  // place in trained order
  int64_t begin = 0;   // tokens [begin, end) of that sample
  int64_t end = 0;
  bool operator==(const Segment&) const = default;
};
class BlockPacking {
 public:
  // `lengths[i]` is the token count of the i-th trained sample.
  BlockPacking(std::span<const uint32_t> lengths, int64_t seq_len);
  int64_t rows() const;
  std::vector<Segment> row(int64_t number) const;  // REQUIRES: 0 <= number < rows()

 private:
  std::vector<int64_t> ends_;  // token position after each sample
  int64_t seq_len_;
};

// The position of training and its order: a few hundred bytes of JSON.
struct OrderState {
  uint64_t epoch = 0;
  int64_t position = 0;  // next position in that epoch
  OrderOptions options;
  std::string source;  // SampleSource::identity() of the dataset
  std::vector<SkippedSteps> skipped;
  std::vector<QuarantinedUnit> quarantined;  // damaged units that this rank has met
  std::vector<DamagedShard> damaged_shards;  // damaged shards of the dataset when the state was written
  bool operator==(const OrderState&) const = default;
};
std::string serialize_state(const OrderState& state);
// Parses a state. Errors: invalid_argument (not a state), unsupported (a newer version).
[[nodiscard]] Result<OrderState> parse_state(std::string_view json);

}  // namespace millrace::order
