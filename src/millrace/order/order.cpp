// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/order.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "millrace/order/detail/random_stream.h"

namespace millrace::order {
namespace {

using detail::RandomStream;

constexpr int64_t kBlockTokens = 512 * 1024;
constexpr int64_t kBlockSamples = 512;  // when lengths are unknown
constexpr int64_t kBlockWindows = 8;
constexpr int64_t kMaxWindowSamples = 256;
constexpr int64_t kMaxLanes = 32;
constexpr int64_t kMinLaneWindows = 4;
constexpr int64_t kLaneLimit = 65536;  // options may come from a state: no table is sized by an unchecked number
constexpr int64_t kWindowLimit = (int64_t{1} << 32) - 1;  // an order holds 32-bit numbers of them
constexpr int64_t kBlockSampleLimit = int64_t{1} << 31;   // a permutation holds 32-bit numbers

// The purpose of a stream of random numbers; part of its key.
constexpr uint64_t kWindowsStream = 1;
constexpr uint64_t kBlockStream = 2;
constexpr uint64_t kReplacementStream = 3;

Status check_options(const OrderOptions& options) {
  if (options.lanes < 1 || options.lanes > kLaneLimit)
    return fail(ErrorCode::kInvalidArgument, "order: {} lanes; there are 1 to {}", options.lanes, kLaneLimit);
  if (!options.shuffle && options.lanes != 1)
    return fail(ErrorCode::kInvalidArgument, "order: {} lanes without shuffling; the canonical order has one",
                options.lanes);
  if (options.block_windows < 1)
    return fail(ErrorCode::kInvalidArgument, "order: {} windows a block; at least 1", options.block_windows);
  if (options.pack_seq_len < 0)
    return fail(ErrorCode::kInvalidArgument, "order: rows of {} tokens", options.pack_seq_len);
  if (options.best_fit && options.pack_seq_len == 0)
    return fail(ErrorCode::kInvalidArgument, "order: best fit without packing");
  if (options.full && (!options.shuffle || options.pack_seq_len > 0 || options.lanes != 1 ||
                       options.window_samples != 1 || options.block_windows != 1))
    return fail(
        ErrorCode::kInvalidArgument,
        "order: a full permutation is of single samples: not packed, one lane, one sample a window and a block");
  return {};
}

Status check_windows(const WindowTable& windows, const OrderOptions& options) {
  if (windows.size() == 0) return fail(ErrorCode::kInvalidArgument, "order: no windows; the dataset has no samples");
  int64_t tokens = 0;
  for (int64_t i = 0; i < windows.size() && options.pack_seq_len > 0; ++i) {
    const Window window = windows.window(i);
    if (window.tokens < 0 || __builtin_add_overflow(tokens, window.tokens, &tokens) ||
        (options.best_fit && (window.rows < 0 || (window.rows == 0) != (window.tokens == 0))))
      return fail(ErrorCode::kInvalidArgument, "order: a window of shard {} with {} samples and {} tokens",
                  window.shard, window.samples, window.tokens);
  }
  if (options.pack_seq_len > 0 && tokens == 0)
    return fail(ErrorCode::kInvalidArgument, "order: samples cannot be packed, their lengths are unknown or all zero");
  return {};
}

}  // namespace

OrderOptions resolve_options(const OrderOptions& options, int64_t samples, int64_t tokens) {
  OrderOptions resolved = options;
  if (resolved.full) {
    resolved.lanes = resolved.window_samples = resolved.block_windows = 1;
    return resolved;
  }
  if (resolved.block_windows == 0) resolved.block_windows = kBlockWindows;
  if (resolved.window_samples == 0) {
    const int64_t mean_tokens = samples > 0 ? std::max<int64_t>(1, tokens / samples) : 1;
    const int64_t block_samples = tokens > 0 ? kBlockTokens / mean_tokens : kBlockSamples;
    resolved.window_samples = std::clamp<int64_t>(block_samples / resolved.block_windows, 1, kMaxWindowSamples);
  }
  if (!resolved.shuffle) {
    resolved.lanes = 1;
  } else if (resolved.lanes == 0) {
    // A power of two, so that the usual world sizes divide it.
    const int64_t fair = std::clamp<int64_t>(samples / resolved.window_samples / kMinLaneWindows, 1, kMaxLanes);
    resolved.lanes = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fair)));
  }
  return resolved;
}

OrderOptions resolve_options_by_bytes(const OrderOptions& options, int64_t samples, int64_t bytes,
                                      int64_t window_hint) {
  if (options.full) return resolve_options(options, samples, 0);
  if (window_hint > 0) {
    OrderOptions hinted = options;
    if (hinted.window_samples == 0) hinted.window_samples = window_hint;
    if (hinted.block_windows == 0) hinted.block_windows = 1;
    return resolve_options_by_bytes(hinted, samples, bytes);
  }
  if (samples == 0 || bytes == 0) return resolve_options(options, samples, 0);
  constexpr int64_t kWindowBytes = 1 << 20, kBlockBytes = 8 << 20, kLanesBytes = 256 << 20;
  const int64_t mean = std::max<int64_t>(1, bytes / samples);
  OrderOptions sized = options;
  if (sized.window_samples == 0) sized.window_samples = std::clamp<int64_t>(kWindowBytes / mean, 1, kMaxWindowSamples);
  const int64_t window_bytes = sized.window_samples * mean;
  if (sized.block_windows == 0) sized.block_windows = std::clamp<int64_t>(kBlockBytes / window_bytes, 1, kBlockWindows);
  OrderOptions resolved = resolve_options(sized, samples, 0);
  if (options.lanes != 0 || !resolved.shuffle) return resolved;
  const int64_t most = std::max<int64_t>(1, kLanesBytes / (window_bytes * resolved.block_windows));
  resolved.lanes = std::min(resolved.lanes, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most))));
  return resolved;
}

Result<WindowTable> WindowTable::create(std::span<const int64_t> shard_samples, int64_t window_samples,
                                        bool with_lengths, bool with_rows) {
  WindowTable table;
  table.window_samples_ = window_samples;
  table.shard_samples_.assign(shard_samples.begin(), shard_samples.end());
  table.first_windows_.reserve(shard_samples.size() + 1);
  int64_t windows = 0, total = 0;
  for (const int64_t samples : shard_samples) {
    table.first_windows_.push_back(windows);
    const int64_t more = samples / window_samples + (samples % window_samples != 0);
    if (samples < 0 || __builtin_add_overflow(total, samples, &total) || more > kWindowLimit - windows)
      return fail(ErrorCode::kInvalidArgument,
                  "order: a shard of {} samples gives too many windows of {}; an order holds {}", samples,
                  window_samples, kWindowLimit);
    windows += more;
  }
  table.first_windows_.push_back(windows);
  if (with_lengths) table.tokens_.resize(static_cast<size_t>(windows));
  if (with_rows) table.rows_.resize(static_cast<size_t>(windows));
  return table;
}

Window WindowTable::window(int64_t number) const {
  const auto behind = std::upper_bound(first_windows_.begin(), first_windows_.end(), number);
  const auto shard = static_cast<size_t>(behind - first_windows_.begin() - 1);
  const int64_t first = (number - first_windows_[shard]) * window_samples_;
  return {.shard = static_cast<int64_t>(shard),
          .first = first,
          .samples = std::min(window_samples_, shard_samples_[shard] - first),
          .tokens = tokens_.empty() ? 0 : tokens_[static_cast<size_t>(number)],
          .rows = rows_.empty() ? 0 : rows_[static_cast<size_t>(number)]};
}

std::span<int64_t> WindowTable::of_shard(std::vector<int64_t>& numbers, int64_t shard) const {
  const auto at = static_cast<size_t>(shard);
  return std::span(numbers).subspan(static_cast<size_t>(first_windows_[at]),
                                    static_cast<size_t>(first_windows_[at + 1] - first_windows_[at]));
}

std::span<int64_t> WindowTable::shard_tokens(int64_t shard) {
  return of_shard(tokens_, shard);
}

std::span<int64_t> WindowTable::shard_rows(int64_t shard) {
  return of_shard(rows_, shard);
}

Result<EpochOrder> EpochOrder::create(std::shared_ptr<const WindowTable> windows, const OrderOptions& options,
                                      uint64_t epoch) {
  RETURN_IF_ERROR(check_options(options));
  RETURN_IF_ERROR(check_windows(*windows, options));
  EpochOrder order;
  order.options_ = options;
  order.epoch_ = epoch;
  order.windows_ = std::move(windows);
  if (options.full) {
    order.units_ = order.windows_->size();
    order.full_ = Permutation(order.units_, options.seed, epoch);
    return order;
  }
  order.dealt_.resize(static_cast<size_t>(order.windows_->size()));
  std::iota(order.dealt_.begin(), order.dealt_.end(), 0U);
  if (options.shuffle) RandomStream({options.seed, epoch, kWindowsStream}).shuffle(order.dealt_);
  RETURN_IF_ERROR(order.build_blocks());
  order.build_breaks();
  return order;
}

Window EpochOrder::lane_window(int64_t lane, int64_t i) const {
  return windows_->window(dealt_[static_cast<size_t>(i * options_.lanes + lane)]);
}

int64_t EpochOrder::lane_size(int64_t lane) const {
  return (windows_->size() - lane + options_.lanes - 1) / options_.lanes;
}

Status EpochOrder::build_blocks() {
  const auto lanes = static_cast<size_t>(options_.lanes);
  lane_blocks_.resize(lanes);
  lane_units_.resize(lanes);
  for (size_t lane = 0; lane < lanes; ++lane) {
    const int64_t windows = lane_size(static_cast<int64_t>(lane));
    lane_blocks_[lane].reserve(static_cast<size_t>(windows / options_.block_windows + 1));
    for (int64_t first = 0; first < windows;) {
      BlockEntry entry{.first_window = first, .first_row = lane_units_[lane]};
      const int64_t end = first + std::min(windows - first, options_.block_windows);
      for (; first < end; ++first) {
        const Window window = lane_window(static_cast<int64_t>(lane), first);
        entry.samples += window.samples;
        entry.tokens += window.tokens;
        if (options_.best_fit) entry.units += window.rows;
      }
      if (entry.samples > kBlockSampleLimit)
        return fail(ErrorCode::kInvalidArgument, "order: a block of {} samples; at most 2^31", entry.samples);
      const int64_t row = options_.pack_seq_len;
      if (row == 0) entry.units = entry.samples;
      if (row > 0 && !options_.best_fit) entry.units = entry.tokens / row + (entry.tokens % row != 0);
      lane_units_[lane] += entry.units;
      lane_blocks_[lane].push_back(entry);
    }
    units_ += lane_units_[lane];
  }
  return {};
}

// The rows at which the number of lanes with units drops, and row 0.
void EpochOrder::build_breaks() {
  std::vector<int64_t> ends = lane_units_;
  std::sort(ends.begin(), ends.end());
  breaks_.emplace_back(0, 0);
  for (size_t ended = 0; ended < ends.size(); ++ended) {
    const auto [row, before] = breaks_.back();
    if (ends[ended] == row) continue;
    breaks_.emplace_back(ends[ended], before + (ends[ended] - row) * static_cast<int64_t>(ends.size() - ended));
  }
}

std::vector<EpochOrder::Break>::const_iterator EpochOrder::break_after(int64_t position) const {
  return std::upper_bound(breaks_.begin(), breaks_.end(), position,
                          [](int64_t wanted, const Break& entry) { return wanted < entry.second; });
}

EpochOrder::Segment EpochOrder::segment_at(int64_t position) const {
  const auto after = break_after(position);
  Segment found{.row = std::prev(after)->first, .begin = std::prev(after)->second, .end = after->second};
  found.lanes.reserve(lane_units_.size());
  for (size_t lane = 0; lane < lane_units_.size(); ++lane)
    if (lane_units_[lane] > found.row) found.lanes.push_back(static_cast<int64_t>(lane));
  return found;
}

EpochOrder::Place EpochOrder::place(int64_t position) const {
  if (full_) return {.block = position, .row = position};
  const auto after = break_after(position);
  const auto [first, begin] = *std::prev(after);
  const int64_t width = (after->second - begin) / (after->first - first);  // lanes that have units in this segment
  Place place{.lane = (position - begin) % width, .row = first + (position - begin) / width};
  if (width < lanes()) {
    int64_t before = place.lane;
    place.lane = 0;
    while (lane_units_[static_cast<size_t>(place.lane)] <= first || before-- > 0) ++place.lane;
  }
  const auto& blocks = lane_blocks_[static_cast<size_t>(place.lane)];
  // The last block that begins at or before the row; blocks without units begin where the next one does.
  const auto block =
      std::prev(std::upper_bound(blocks.begin(), blocks.end(), place.row,
                                 [](int64_t row, const BlockEntry& entry) { return row < entry.first_row; }));
  place.block = block - blocks.begin();
  place.index = place.row - block->first_row;
  return place;
}

EpochOrder::Block EpochOrder::block(int64_t lane, int64_t number) const {
  if (full_) return {.windows = {windows_->window(full_->at(number))}, .samples = 1, .units = 1, .first_row = number};
  const BlockEntry& entry = lane_blocks_[static_cast<size_t>(lane)][static_cast<size_t>(number)];
  Block block{.samples = entry.samples, .tokens = entry.tokens, .units = entry.units, .first_row = entry.first_row};
  const int64_t end = entry.first_window + std::min(lane_size(lane) - entry.first_window, options_.block_windows);
  for (int64_t i = entry.first_window; i < end; ++i) block.windows.push_back(lane_window(lane, i));
  return block;
}

std::optional<EpochOrder::Place> EpochOrder::replacement(const Place& damaged, int64_t attempt) const {
  if (full_) {
    constexpr int64_t kMost = 128;
    if (attempt >= std::min(kMost, units_ - 1)) return std::nullopt;
    return place((damaged.block + 1 + attempt) % units_);
  }
  constexpr int64_t kBlocksOfLane = 4, kMostBlocks = 16;
  const int64_t in_lane = std::min(kBlocksOfLane, blocks(damaged.lane));
  const int64_t most = std::min(kMostBlocks, in_lane + lanes() - 1);
  const int64_t number = attempt / kReplacementsInBlock;  // of the block, counted from the unit's own
  Place place{.lane = damaged.lane, .block = damaged.block};
  int64_t further = attempt % kReplacementsInBlock;  // units in that block
  if (number >= most) {
    further = attempt - (most - 1) * kReplacementsInBlock;
  } else if (number < in_lane) {
    place.block = (damaged.block + number) % blocks(place.lane);
  } else {
    place.lane = (damaged.lane + number - in_lane + 1) % lanes();
    place.block = blocks(place.lane) == 0 ? 0 : damaged.block % blocks(place.lane);
  }
  const auto& lane = lane_blocks_[static_cast<size_t>(place.lane)];
  const int64_t units = lane.empty() ? 0 : lane[static_cast<size_t>(place.block)].units;
  if (further >= units) {
    return number >= most ? std::nullopt : replacement(damaged, (number + 1) * kReplacementsInBlock);
  }
  RandomStream stream({options_.seed, epoch_, kReplacementStream, static_cast<uint64_t>(damaged.lane),
                       static_cast<uint64_t>(damaged.block), static_cast<uint64_t>(damaged.index)});
  place.index = (static_cast<int64_t>(stream.below(static_cast<uint64_t>(units))) + further) % units;
  place.row = lane[static_cast<size_t>(place.block)].first_row + place.index;
  return place;
}

std::vector<uint32_t> EpochOrder::permutation(int64_t lane, int64_t number) const {
  if (full_) return {0};
  const int64_t samples = lane_blocks_[static_cast<size_t>(lane)][static_cast<size_t>(number)].samples;
  std::vector<uint32_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0U);
  if (options_.shuffle)
    RandomStream({options_.seed, epoch_, kBlockStream, static_cast<uint64_t>(lane), static_cast<uint64_t>(number)})
        .shuffle(order);
  return order;
}

BlockLayout EpochOrder::layout(int64_t lane, int64_t number, std::span<const uint32_t> lengths) const {
  if (!options_.best_fit) return {permutation(lane, number), {}};
  struct Bin {
    std::vector<uint32_t> samples;
  };
  std::vector<Bin> bins;
  BlockLayout layout;
  std::vector<uint32_t> without_tokens;
  uint32_t first = 0;
  for (const Window& window : block(lane, number).windows) {
    const auto of_window = lengths.subspan(first, static_cast<size_t>(window.samples));
    const WindowBins packed = best_fit(of_window, options_.pack_seq_len);
    size_t at = 0;
    for (const uint32_t end : packed.ends) {
      Bin& bin = bins.emplace_back();
      for (; at < end; ++at) bin.samples.push_back(first + packed.samples[at]);
    }
    for (uint32_t i = 0; i < of_window.size(); ++i) {
      if (of_window[i] == 0) without_tokens.push_back(first + i);
    }
    first += static_cast<uint32_t>(of_window.size());
  }
  if (options_.shuffle)
    RandomStream({options_.seed, epoch_, kBlockStream, static_cast<uint64_t>(lane), static_cast<uint64_t>(number)})
        .shuffle(bins);
  int64_t token = 0;
  for (const Bin& bin : bins) {
    int64_t row_end = token + options_.pack_seq_len;
    for (const uint32_t sample : bin.samples) {
      token += lengths[sample];
      for (; row_end < token; row_end += options_.pack_seq_len) layout.row_ends.push_back(row_end);
    }
    layout.row_ends.push_back(token);
    layout.samples.insert(layout.samples.end(), bin.samples.begin(), bin.samples.end());
  }
  layout.samples.insert(layout.samples.end(), without_tokens.begin(), without_tokens.end());
  return layout;
}

std::vector<int64_t> rank_positions(const EpochOrder& order, int64_t begin, int64_t count, int64_t rank,
                                    int64_t world) {
  if (order.full_) {
    std::vector<int64_t> run(static_cast<size_t>((rank + 1) * count / world - rank * count / world));
    std::iota(run.begin(), run.end(), begin + rank * count / world);
    return run;
  }
  std::vector<std::pair<int64_t, int64_t>> by_lane;  // (lane, position): in one lane positions rise with rows
  by_lane.reserve(static_cast<size_t>(count));
  for (int64_t at = begin; at < begin + count;) {
    const EpochOrder::Segment segment = order.segment_at(at);
    const auto width = static_cast<int64_t>(segment.lanes.size());
    for (; at < std::min(begin + count, segment.end); ++at)
      by_lane.emplace_back(segment.lanes[static_cast<size_t>((at - segment.begin) % width)], at);
  }
  std::sort(by_lane.begin(), by_lane.end());
  std::vector<int64_t> positions;
  for (int64_t i = rank * count / world; i < (rank + 1) * count / world; ++i)
    positions.push_back(by_lane[static_cast<size_t>(i)].second);
  return positions;
}

BlockPacking::BlockPacking(std::span<const uint32_t> lengths, int64_t seq_len) : seq_len_(seq_len) {
  ends_.reserve(lengths.size());
  int64_t end = 0;
  for (const uint32_t length : lengths) ends_.push_back(end += length);
}

int64_t BlockPacking::rows() const {
  const int64_t tokens = ends_.empty() ? 0 : ends_.back();
  return tokens / seq_len_ + (tokens % seq_len_ != 0);
}

std::vector<Segment> BlockPacking::row(int64_t number) const {
  std::vector<Segment> segments;
  int64_t at = number * seq_len_;
  const int64_t end = at + std::min(seq_len_, ends_.back() - at);
  auto sample = std::upper_bound(ends_.begin(), ends_.end(), at);
  for (; at < end; ++sample) {
    const int64_t sample_begin = sample == ends_.begin() ? 0 : *std::prev(sample);
    const int64_t stop = std::min(end, *sample);
    if (stop > at)
      segments.push_back({.sample = sample - ends_.begin(), .begin = at - sample_begin, .end = stop - sample_begin});
    at = stop;
  }
  return segments;
}

}  // namespace millrace::order
