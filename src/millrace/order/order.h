// SPDX-License-Identifier: Apache-2.0
#pragma once

// The order in which samples are trained on: a pure function of (what the dataset is, seed, epoch), the same at every
// world size. docs/format/order.md defines it to the bit, with examples; this is that page as code. No I/O.
//
// Shards are cut into windows: consecutive samples of one shard that are read together. An epoch permutes the windows
// and deals them to a fixed number of lanes, the i-th to lane i mod lanes. In a lane, every `block_windows` windows
// form a block whose samples are shuffled together. A unit is what a batch counts: a sample, or, when packing, a row of
// `pack_seq_len` tokens of a block's shuffled samples laid end to end (the last row of a block may be shorter; no row
// spans blocks), or by best fit a row of whole samples of one window. Row q of the epoch holds the q-th unit of every
// lane that has one, and positions run along the rows: position = (positions of the rows before) + (number of the lane
// among those that still have a unit). Step s of global batch B takes positions [s*B, (s+1)*B), and `rank_positions`
// gives those of a rank. So the state of training is one position, and only rank_positions knows the world size.
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
  int64_t tokens = 0;  // tokens of these samples; 0 when lengths are unknown (then packing is impossible)
  int64_t rows = 0;    // into which best_fit() packs them; 0 otherwise
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
  // With `shuffle`, not packed: one permutation of all samples, each of which is read alone. No table of windows is
  // made; lanes, window_samples and block_windows are 1.
  bool full = false;
  bool operator==(const OrderOptions&) const = default;
};

// Fills the zeros from the dataset's size alone: blocks of about 512 Ki tokens (or 512 samples when lengths are
// unknown), 8 windows a block, at most 256 samples a window and 32 lanes, fewer (a power of two) where a lane would get
// fewer than 4 windows.
OrderOptions resolve_options(const OrderOptions& options, int64_t samples, int64_t tokens);

// Fills the zeros for samples of any kind, by their bytes: windows of about 1 MiB, blocks of about 8 MiB and lanes that
// hold 256 MiB together at most; 512 samples a block when `bytes` is 0.
// A `window_hint` above 0 is the size of a window, and each is a block.
OrderOptions resolve_options_by_bytes(const OrderOptions& options, int64_t samples, int64_t bytes,
                                      int64_t window_hint = 0);

// The windows of a dataset in canonical order: `window_samples` consecutive samples of a shard, the last of a shard may
// be shorter. With lengths it takes 8 bytes a window, with rows 8 more.
class WindowTable {
 public:
  // `with_lengths`: the tokens of every window follow (shard_tokens), `with_rows`: and the rows that they are packed
  // into (shard_rows). Errors: invalid_argument (more than 2^32 - 1 windows, which no order holds).
  // REQUIRES: window_samples >= 1.
  [[nodiscard]] static Result<WindowTable> create(std::span<const int64_t> shard_samples, int64_t window_samples,
                                                  bool with_lengths, bool with_rows = false);
  int64_t size() const { return first_windows_.back(); }
  int64_t window_samples() const { return window_samples_; }
  // REQUIRES: 0 <= number < size().
  Window window(int64_t number) const;
  // The token counts of a shard's windows, to be filled; 0 before. Several threads may fill different shards at once.
  // REQUIRES: created with lengths.
  std::span<int64_t> shard_tokens(int64_t shard);
  // The row counts of a shard's windows, to be filled in the same way. REQUIRES: created with rows.
  std::span<int64_t> shard_rows(int64_t shard);

 private:
  WindowTable() = default;
  std::span<int64_t> of_shard(std::vector<int64_t>& numbers, int64_t shard) const;
  int64_t window_samples_ = 1;
  std::vector<int64_t> shard_samples_;
  std::vector<int64_t> first_windows_;  // number of each shard's first window, and of all windows
  std::vector<int64_t> tokens_;         // tokens of each window; empty without lengths
  std::vector<int64_t> rows_;           // rows of each window; empty without rows
};

class EpochOrder {
 public:
  // Takes 4 bytes a window and 40 a block; a full permutation takes none. Errors: invalid_argument (packing without
  // lengths, no windows, bad options).
  [[nodiscard]] static Result<EpochOrder> create(std::shared_ptr<const WindowTable> windows,
                                                 const OrderOptions& options, uint64_t epoch);

  // Positions in this epoch.
  int64_t units() const { return units_; }
  int64_t lanes() const { return full_ ? 1 : static_cast<int64_t>(lane_blocks_.size()); }

  struct Place {
    int64_t lane = 0;
    int64_t block = 0;  // number within the lane
    int64_t index = 0;  // unit within the block
    int64_t row = 0;    // unit within the lane
    bool operator==(const Place&) const = default;
  };
  // Takes time in proportion to the lanes once some have ended. REQUIRES: 0 <= position < units().
  Place place(int64_t position) const;

  // The unit that is read in place of a damaged one, attempt 0 first: eight units of the same block, of each of three
  // blocks that follow it in the lane, and of other lanes; then the others of its block. nullopt once all were tried.
  // The same at every world size. Of a full permutation: up to 128 units that follow it, the first following the last.
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
  // The i-th trained sample of a block is sample permutation[i] of its windows laid end to end.
  std::vector<uint32_t> permutation(int64_t lane, int64_t number) const;
  // How a block's samples lie end to end: `permutation`, or, by best fit, the bins of its windows, shuffled, and behind
  // them the samples without tokens. `lengths`: of the block's samples, windows laid end to end.
  BlockLayout layout(int64_t lane, int64_t number, std::span<const uint32_t> lengths) const;

 private:
  // Tables of the methods above.
  struct BlockEntry {
    int64_t first_window = 0;  // in its lane
    int64_t first_row = 0;
    int64_t samples = 0;
    int64_t tokens = 0;
    int64_t units = 0;
  };
  // Rows in which the same lanes have units, and so a constant number of positions.
  struct Segment {
    int64_t row = 0;             // the first
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
  // The i-th window of a lane, and how many it has.
  Window lane_window(int64_t lane, int64_t i) const;
  int64_t lane_size(int64_t lane) const;
  std::shared_ptr<const WindowTable> windows_;
  std::optional<Permutation> full_;  // instead of all tables below
  std::vector<uint32_t> dealt_;      // numbers of windows as they are dealt, the i-th to lane i mod lanes
  std::vector<std::vector<BlockEntry>> lane_blocks_;
  std::vector<int64_t> lane_units_;
  std::vector<Break> breaks_;  // (row, positions before it): 0, then where a lane ends
  int64_t units_ = 0;
};

// The positions of [begin, begin + count) that `rank` of `world` reads, ordered by (lane, row): the positions are
// sorted by (lane, row) and cut into `world` runs, rank r taking [r*count/world, (r+1)*count/world). Their union over
// ranks is the range, and where lanes % world == 0 and count % lanes == 0 a rank reads the same lanes in every step, as
// long as all lanes have units.
// REQUIRES: 0 <= rank < world, begin + count <= order.units().
std::vector<int64_t> rank_positions(const EpochOrder& order, int64_t begin, int64_t count, int64_t rank, int64_t world);

// Rows of `seq_len` tokens: a block's samples in trained order, laid end to end and cut.
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
  std::vector<int64_t> ends_;  // token position behind each sample
  int64_t seq_len_;
};

// The position of training and its order: a few hundred bytes of JSON.
struct OrderState {
  uint64_t epoch = 0;
  int64_t position = 0;  // the next one in that epoch
  OrderOptions options;
  std::string source;  // SampleSource::identity() of the dataset
  std::vector<SkippedSteps> skipped;
  std::vector<QuarantinedUnit> quarantined;  // damaged units that this rank has met
  std::vector<DamagedShard> damaged_shards;  // damaged shards of the dataset when the state was written
  bool operator==(const OrderState&) const = default;
};
std::string serialize_state(const OrderState& state);
// Errors: invalid_argument (not a state), unsupported (a newer version).
[[nodiscard]] Result<OrderState> parse_state(std::string_view json);

}  // namespace millrace::order
