// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/block.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "millrace/formats/npy.h"
#include "millrace/loader/detail/record.h"

namespace millrace::loader {

namespace {
constexpr std::string_view kMaskField = "loss_mask.npy";  // uint8 [tokens], 1 where a token is learned
}

Block::Block(std::span<const uint32_t> tokens, order::BlockLayout layout, std::span<const int64_t> run_samples)
    : trained_place_(tokens.size()),
      sample_at_(std::move(layout.samples)),
      starts_(tokens.size() + 1),
      row_ends_(std::move(layout.row_ends)) {
  int64_t first = 0;
  for (const int64_t samples : run_samples) {
    runs_.push_back({.first = first});
    first += samples;
  }
  for (size_t place = 0; place < sample_at_.size(); ++place) {
    const uint32_t sample = sample_at_[place];
    trained_place_[sample] = static_cast<uint32_t>(place);
    starts_[place + 1] = starts_[place] + tokens[sample];
  }
}

namespace {

const order::Field* find_field(const order::Sample& sample, std::string_view name) {
  const auto field =
      std::find_if(sample.fields.begin(), sample.fields.end(), [&](const order::Field& f) { return f.name == name; });
  return field == sample.fields.end() ? nullptr : &*field;
}

Status check_ids(std::span<const uint32_t> ids, int64_t limit, std::string_view shard, std::string_view key) {
  if (limit == 0 || ids.empty()) return {};
  const uint32_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest < limit) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: sample {} holds the id {}, vocab_size is {}", shard, key, largest,
              limit);
}

// Packs the mask of a sample of `tokens` ids into bits, the lowest of a byte first; all ones when it has none, which
// `masked` then says.
Status parse_mask(const order::Sample& sample, size_t tokens, std::string_view shard, uint8_t* bits, bool& masked) {
  const size_t bytes = (tokens + 7) / 8;
  const order::Field* const field = find_field(sample, kMaskField);
  masked = field != nullptr;
  if (!masked) {
    std::fill_n(bits, bytes, uint8_t{0xFF});
    return {};
  }
  const std::string name = fmt::format("{}: sample {}: {}", shard, sample.key, kMaskField);
  ASSIGN_OR_RETURN(const auto mask, formats::npy_u8_view(field->data, name));
  if (mask.size() != tokens) {
    return fail(ErrorCode::kCorruption, "{}: {} values for {} tokens", name, mask.size(), tokens);
  }
  if (const auto bad = std::find_if(mask.begin(), mask.end(), [](uint8_t v) { return v > 1; }); bad != mask.end()) {
    return fail(ErrorCode::kCorruption, "{}: value {} at token {}; a mask is 0 and 1", name, *bad, bad - mask.begin());
  }
  std::fill_n(bits, bytes, uint8_t{0});
  for (size_t i = 0; i < tokens; ++i) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (mask[i] << (i % 8)));
  return {};
}

}  // namespace

// Decodes the samples of one run. `ids` is for those that are not stored as uint32.
struct Block::Decoder {
  Block& block;
  Run& run;
  const Decoding& decoding;
  std::string_view shard;
  std::vector<uint32_t> ids;

  Status take(int64_t index, const order::Sample& sample) {
    if (decoding.fields != nullptr) {
      const size_t place = block.trained_place_[static_cast<size_t>(run.first + index)];
      return write_record(sample, *decoding.fields, block.slot(place), shard);
    }
    const order::Field* const field = find_field(sample, decoding.ids_field);
    if (field == nullptr) {
      return fail(ErrorCode::kCorruption, "{}: sample {} has no field {}", shard, sample.key, decoding.ids_field);
    }
    auto bytes = formats::ids_in_place(decoding.ids_field, field->data);
    if (!bytes) {
      ids.clear();
      RETURN_IF_ERROR(formats::parse_ids(decoding.ids_field, field->data, ids, shard));
      bytes = std::as_bytes(std::span(ids));
    }
    const size_t place = block.trained_place_[static_cast<size_t>(run.first + index)];
    const int64_t expected = block.starts_[place + 1] - block.starts_[place];
    const size_t count = bytes->size() / sizeof(uint32_t);
    if (static_cast<int64_t>(count) != expected) {
      return fail(ErrorCode::kCorruption, "{}: sample {} holds {} ids, its index says {}", shard, sample.key, count,
                  expected);
    }
    // SAFETY: the arena is page-aligned memory that begins with uint32_t.
    auto* const at = reinterpret_cast<uint32_t*>(block.arena_.data()) + block.starts_[place];
    if (count > 0) std::memcpy(at, bytes->data(), bytes->size());
    RETURN_IF_ERROR(check_ids({at, count}, decoding.id_limit, shard, sample.key));
    bool masked = false;
    RETURN_IF_ERROR(parse_mask(sample, count, shard, block.mask_at(place), masked));
    if (masked) run.masked = true;
    return {};
  }
};

void Block::decode(int64_t number, order::SampleRun& run, const Decoding& decoding, Metrics& metrics) {
  Decoder decoder{*this, runs_[static_cast<size_t>(number)], decoding, run.name(), {}};
  if (decoding.fields != nullptr) decoder.run.source = run.name();
  // From the first sample on: what comes before it is reading. One timer a run, as two looks at the clock a sample were
  // 2 % of what packing costs.
  std::optional<MetricTimer> timer;
  decoder.run.status = run.visit([&](int64_t index, const Result<order::Sample>& sample) -> Status {
    if (!timer) timer.emplace(metrics, Metric::kDecodeSeconds);
    Status taken = sample ? decoder.take(index, *sample) : tl::unexpected(sample.error());
    if (!taken) decoder.run.bad_samples.emplace(decoder.run.first + index, std::move(taken).error());
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

// Sample `place` starts at token s, so s / 8 + place bytes hold all masks before it, each rounded up to bytes.
uint8_t* Block::mask_at(size_t place) const {
  // SAFETY: bytes() counts the masks behind the ids; uint8_t may look at any byte.
  return reinterpret_cast<uint8_t*>(arena_.data()) + ids_bytes() + starts_[place] / 8 + static_cast<int64_t>(place);
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
  // SAFETY: as in Decoder::take; every run has been written or has an error.
  const auto* const arena = reinterpret_cast<const uint32_t*>(arena_.data());
  return for_each_segment(index, pack_seq_len, [&](int64_t place, int64_t begin, int64_t end) -> Status {
    RETURN_IF_ERROR(sample_status(place));
    if (begin == end) return {};
    const Run& run = run_of(static_cast<int64_t>(sample_at_[static_cast<size_t>(place)]));
    Piece piece{{arena + starts_[static_cast<size_t>(place)] + begin, static_cast<size_t>(end - begin)}};
    if (run.masked) piece.mask = mask_at(static_cast<size_t>(place));
    piece.mask_begin = static_cast<size_t>(begin);
    out.push_back(piece);
    return {};
  });
}

std::span<std::byte> Block::slot(size_t place) const {
  // SAFETY: bytes() counts what each sample was given.
  auto* const arena = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(arena_.data()));
  return {arena + starts_[place] * static_cast<int64_t>(sizeof(uint32_t)),
          static_cast<size_t>(starts_[place + 1] - starts_[place]) * sizeof(uint32_t)};
}

Block::StoredRecord Block::record(int64_t index) const {
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
