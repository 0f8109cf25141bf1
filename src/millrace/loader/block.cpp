// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/block.h"

#include <algorithm>
#include <cstring>

#include "millrace/formats/npy.h"

namespace millrace::loader {

Result<std::unique_ptr<Block>> Block::plan(order::SampleSource& source, order::EpochOrder::Block block,
                                           std::span<const uint32_t> trained_order) {
  auto planned = std::make_unique<Block>();
  const auto samples = static_cast<size_t>(block.samples);
  std::vector<uint32_t> lengths;
  lengths.reserve(samples);
  for (const order::Window& window : block.windows) {
    planned->first_in_window_.push_back(static_cast<int64_t>(lengths.size()));
    ASSIGN_OR_RETURN(const auto part, source.lengths(window.shard, window.first, window.samples));
    lengths.insert(lengths.end(), part.begin(), part.end());
  }
  planned->trained_place_.resize(samples);
  planned->starts_.resize(samples + 1);
  for (size_t place = 0; place < samples; ++place) {
    const uint32_t sample = trained_order[place];
    planned->trained_place_[sample] = static_cast<uint32_t>(place);
    planned->starts_[place + 1] = planned->starts_[place] + lengths[sample];
  }
  planned->sample_at_.assign(trained_order.begin(), trained_order.end());
  planned->window_status_.resize(block.windows.size());
  planned->block_ = std::move(block);
  return planned;
}

namespace {

Status parse_ids(const order::Sample& sample, std::string_view ids_field, std::string_view shard,
                 std::vector<uint32_t>& ids) {
  const auto field = std::find_if(sample.fields.begin(), sample.fields.end(),
                                  [&](const order::Field& f) { return f.name == ids_field; });
  if (field == sample.fields.end()) {
    return fail(ErrorCode::kCorruption, "{}: sample {} has no field {}", shard, sample.key, ids_field);
  }
  return formats::parse_ids(ids_field, field->data, ids, shard);
}

}  // namespace

void Block::decode_window(order::SampleSource& source, int64_t number, std::string_view ids_field, std::stop_token stop,
                          Metrics& metrics) {
  window_status_[static_cast<size_t>(number)] = read_window(source, number, ids_field, stop, metrics);
}

Status Block::read_window(order::SampleSource& source, int64_t number, std::string_view ids_field, std::stop_token stop,
                          Metrics& metrics) {
  const order::Window& window = block_.windows[static_cast<size_t>(number)];
  const int64_t first = first_in_window_[static_cast<size_t>(number)];
  std::vector<uint32_t> ids;
  // SAFETY: the arena is page-aligned memory that holds uint32_t only.
  auto* const arena = reinterpret_cast<uint32_t*>(arena_.data());
  return source.read(window.shard, window.first, window.samples, stop,
                     [&](int64_t index, const order::Sample& sample) -> Status {
                       MetricTimer timer(metrics, Metric::kDecodeSeconds);
                       ids.clear();
                       RETURN_IF_ERROR(parse_ids(sample, ids_field, source.name(), ids));
                       const size_t place = trained_place_[static_cast<size_t>(first + index)];
                       const int64_t expected = starts_[place + 1] - starts_[place];
                       if (static_cast<int64_t>(ids.size()) != expected) {
                         return fail(ErrorCode::kCorruption, "{}: sample {} holds {} ids, its index says {}",
                                     source.name(), sample.key, ids.size(), expected);
                       }
                       if (!ids.empty()) std::memcpy(arena + starts_[place], ids.data(), ids.size() * sizeof ids[0]);
                       return {};
                     });
}

Status Block::window_status(int64_t place) const {
  const auto sample = static_cast<int64_t>(sample_at_[static_cast<size_t>(place)]);
  const auto behind = std::upper_bound(first_in_window_.begin(), first_in_window_.end(), sample);
  return window_status_[static_cast<size_t>(behind - first_in_window_.begin() - 1)];
}

Status Block::pieces(int64_t index, int64_t pack_seq_len, std::vector<Piece>& out) const {
  const bool packed = pack_seq_len > 0;
  const int64_t begin = packed ? index * pack_seq_len : starts_[static_cast<size_t>(index)];
  const int64_t end = packed ? std::min(begin + pack_seq_len, starts_.back()) : starts_[static_cast<size_t>(index) + 1];
  int64_t place = packed ? std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1 : index;
  // SAFETY: as in read_window; every window has been written or has an error.
  const auto* const arena = reinterpret_cast<const uint32_t*>(arena_.data());
  for (int64_t at = begin; at < end || (!packed && place == index); ++place) {
    RETURN_IF_ERROR(window_status(place));
    const int64_t piece_end = std::min(starts_[static_cast<size_t>(place) + 1], end);
    if (piece_end > at) out.push_back({{arena + at, static_cast<size_t>(piece_end - at)}});
    at = piece_end;
  }
  return {};
}

}  // namespace millrace::loader
