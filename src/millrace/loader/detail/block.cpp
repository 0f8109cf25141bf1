// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/block.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace millrace::loader {

Block::Block(SampleDecoder::Item item, std::span<const uint32_t> items, order::BlockLayout layout,
             std::span<const int64_t> run_samples)
    : item_(item),
      trained_place_(items.size()),
      sample_at_(std::move(layout.samples)),
      starts_(items.size() + 1),
      row_ends_(std::move(layout.row_ends)) {
  int64_t first = 0;
  for (const int64_t samples : run_samples) {
    runs_.push_back({.first = first});
    first += samples;
  }
  for (size_t place = 0; place < sample_at_.size(); ++place) {
    const uint32_t sample = sample_at_[place];
    trained_place_[sample] = static_cast<uint32_t>(place);
    starts_[place + 1] = starts_[place] + items[sample];
  }
}

int64_t Block::bytes() const {
  if (!item_.has_bit) return rows_bytes();
  return rows_bytes() + starts_.back() / 8 + static_cast<int64_t>(sample_at_.size());
}

void Block::decode(int64_t number, order::SampleRun& run, const SampleDecoder& decoder, Metrics& metrics) {
  Run& ours = runs_[static_cast<size_t>(number)];
  ours.source = run.name();
  std::vector<uint32_t> scratch;
  // From the first sample on: what comes before it is reading. One timer a run, as two looks at the clock a sample were
  // 2 % of what packing costs.
  std::optional<MetricTimer> timer;
  ours.status = run.visit([&](int64_t index, const Result<order::Sample>& sample) -> Status {
    if (!timer) timer.emplace(metrics, Metric::kDecodeSeconds);
    const size_t place = trained_place_[static_cast<size_t>(ours.first + index)];
    SampleDecoder::Slot to{.data = slot(place), .bits = item_.has_bit ? bits_at(place) : nullptr};
    Status decoded =
        sample ? decoder.decode(*sample, ours.source, to, scratch) : Status(tl::unexpected(sample.error()));
    if (!decoded) ours.bad_samples.emplace(ours.first + index, std::move(decoded).error());
    if (to.is_masked) ours.masked = true;
    return {};
  });
}

void Block::set_failed(int64_t number, Error error) {
  runs_[static_cast<size_t>(number)].status = tl::unexpected(std::move(error));
}

const Block::Run& Block::run_of(int64_t sample) const {
  const auto behind =
      std::upper_bound(runs_.begin(), runs_.end(), sample, [](int64_t s, const Run& run) { return s < run.first; });
  return *std::prev(behind);
}

Status Block::sample_status(int64_t place) const {
  const auto sample = static_cast<int64_t>(sample_at_[static_cast<size_t>(place)]);
  const Run& run = run_of(sample);
  if (!run.status || run.bad_samples.empty()) return run.status;
  const auto bad = run.bad_samples.find(sample);
  return bad == run.bad_samples.end() ? Status() : tl::unexpected(bad->second);
}

// Sample `place` starts at item s, so s / 8 + place bytes hold all bits before it, each sample's rounded up to bytes.
uint8_t* Block::bits_at(size_t place) const {
  // SAFETY: bytes() counts the bits behind the rows; uint8_t may look at any byte.
  return reinterpret_cast<uint8_t*>(arena_.data()) + rows_bytes() + starts_[place] / 8 + static_cast<int64_t>(place);
}

template <class Visit>
Status Block::for_each_segment(int64_t index, int64_t pack_seq_len, const Visit& visit) const {
  const auto start = [&](int64_t place) { return starts_[static_cast<size_t>(place)]; };
  if (pack_seq_len == 0) return visit(index, int64_t{0}, start(index + 1) - start(index));
  const auto at_index = static_cast<size_t>(index);
  int64_t at = index * pack_seq_len, end = std::min(at + pack_seq_len, starts_.back());
  if (!row_ends_.empty()) {
    at = index == 0 ? 0 : row_ends_[at_index - 1];
    end = row_ends_[at_index];
  }
  for (int64_t place = std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1; at < end; ++place) {
    const int64_t part_end = std::min(start(place + 1), end);
    RETURN_IF_ERROR(visit(place, at - start(place), part_end - start(place)));
    at = part_end;
  }
  return {};
}

bool Block::is_damaged() const {
  return std::ranges::any_of(runs_, [](const Run& run) { return !run.status || !run.bad_samples.empty(); });
}

Status Block::check(int64_t index, int64_t pack_seq_len) const {
  return for_each_segment(index, pack_seq_len, [&](int64_t place, int64_t, int64_t) { return sample_status(place); });
}

Status Block::pieces(int64_t index, int64_t pack_seq_len, std::vector<Piece>& out) const {
  // SAFETY: the arena is page-aligned memory that begins with uint32_t; every run has been written or has an error.
  const auto* const arena = reinterpret_cast<const uint32_t*>(arena_.data());
  return for_each_segment(index, pack_seq_len, [&](int64_t place, int64_t begin, int64_t end) -> Status {
    RETURN_IF_ERROR(sample_status(place));
    if (begin == end) return {};
    const Run& run = run_of(static_cast<int64_t>(sample_at_[static_cast<size_t>(place)]));
    Piece piece{{arena + starts_[static_cast<size_t>(place)] + begin, static_cast<size_t>(end - begin)}};
    if (run.masked) piece.mask = bits_at(static_cast<size_t>(place));
    piece.mask_begin = static_cast<size_t>(begin);
    out.push_back(piece);
    return {};
  });
}

std::span<std::byte> Block::slot(size_t place) const {
  // SAFETY: bytes() counts what each sample was given.
  auto* const arena = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(arena_.data()));
  return {arena + starts_[place] * item_.bytes,
          static_cast<size_t>((starts_[place + 1] - starts_[place]) * item_.bytes)};
}

Block::Row Block::row(int64_t index) const {
  const auto place = static_cast<size_t>(index);
  return {slot(place), run_of(static_cast<int64_t>(sample_at_[place])).source};
}

std::vector<Block::Segment> Block::segments(int64_t index, int64_t pack_seq_len) const {
  std::vector<Segment> segments;
  static_cast<void>(for_each_segment(index, pack_seq_len, [&](int64_t place, int64_t begin, int64_t end) -> Status {
    if (begin < end || pack_seq_len == 0) {
      segments.push_back({static_cast<int64_t>(sample_at_[static_cast<size_t>(place)]), begin, end});
    }
    return {};
  }));
  return segments;
}

}  // namespace millrace::loader
