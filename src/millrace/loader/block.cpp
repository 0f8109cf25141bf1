// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/block.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "millrace/formats/npy.h"

namespace millrace::loader {

namespace {
constexpr std::string_view kMaskField = "loss_mask.npy";  // uint8 [tokens], 1 where a token is learned
}

Result<std::unique_ptr<Block>> Block::plan(order::SampleSource& source, order::EpochOrder::Block block,
                                           std::span<const uint32_t> trained_order) {
  auto planned = std::make_unique<Block>();
  const auto samples = static_cast<size_t>(block.samples);
  int64_t first = 0;
  for (const order::Window& window : block.windows) {
    planned->first_in_window_.push_back(first);
    first += window.samples;
  }
  ASSIGN_OR_RETURN(const std::vector<uint32_t> lengths, source.lengths(block.windows));
  planned->trained_place_.resize(samples);
  planned->starts_.resize(samples + 1);
  for (size_t place = 0; place < samples; ++place) {
    const uint32_t sample = trained_order[place];
    planned->trained_place_[sample] = static_cast<uint32_t>(place);
    planned->starts_[place + 1] = planned->starts_[place] + lengths[sample];
  }
  planned->sample_at_.assign(trained_order.begin(), trained_order.end());
  planned->window_status_.resize(block.windows.size());
  planned->window_masked_.resize(block.windows.size());
  planned->block_ = std::move(block);
  return planned;
}

namespace {

const order::Field* find_field(const order::Sample& sample, std::string_view name) {
  const auto field =
      std::find_if(sample.fields.begin(), sample.fields.end(), [&](const order::Field& f) { return f.name == name; });
  return field == sample.fields.end() ? nullptr : &*field;
}

Status parse_ids(const order::Sample& sample, std::string_view ids_field, std::string_view shard,
                 std::vector<uint32_t>& ids) {
  const order::Field* const field = find_field(sample, ids_field);
  if (field == nullptr) {
    return fail(ErrorCode::kCorruption, "{}: sample {} has no field {}", shard, sample.key, ids_field);
  }
  return formats::parse_ids(ids_field, field->data, ids, shard);
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
Status parse_mask(const order::Sample& sample, size_t tokens, const std::string& shard, uint8_t* bits, bool& masked) {
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

void Block::decode_window(order::SampleSource& source, int64_t number, std::string_view ids_field, std::stop_token stop,
                          Metrics& metrics) {
  window_status_[static_cast<size_t>(number)] = read_window(source, number, ids_field, stop, metrics);
}

Status Block::read_window(order::SampleSource& source, int64_t number, std::string_view ids_field, std::stop_token stop,
                          Metrics& metrics) {
  const order::Window& window = block_.windows[static_cast<size_t>(number)];
  const int64_t first = first_in_window_[static_cast<size_t>(number)];
  const std::string shard = source.shard_name(window.shard);
  std::vector<uint32_t> ids;
  // SAFETY: the arena is page-aligned memory that holds uint32_t only.
  auto* const arena = reinterpret_cast<uint32_t*>(arena_.data());
  return source.read(window.shard, window.first, window.samples, stop,
                     [&](int64_t index, const order::Sample& sample) -> Status {
                       MetricTimer timer(metrics, Metric::kDecodeSeconds);
                       ids.clear();
                       RETURN_IF_ERROR(parse_ids(sample, ids_field, shard, ids));
                       const size_t place = trained_place_[static_cast<size_t>(first + index)];
                       const int64_t expected = starts_[place + 1] - starts_[place];
                       if (static_cast<int64_t>(ids.size()) != expected) {
                         return fail(ErrorCode::kCorruption, "{}: sample {} holds {} ids, its index says {}", shard,
                                     sample.key, ids.size(), expected);
                       }
                       RETURN_IF_ERROR(check_ids(ids, id_limit_, shard, sample.key));
                       if (!ids.empty()) std::memcpy(arena + starts_[place], ids.data(), ids.size() * sizeof ids[0]);
                       bool masked = false;
                       RETURN_IF_ERROR(parse_mask(sample, ids.size(), shard, mask_at(place), masked));
                       if (masked) window_masked_[static_cast<size_t>(number)] = 1;
                       return {};
                     });
}

size_t Block::window_of(int64_t place) const {
  const auto sample = static_cast<int64_t>(sample_at_[static_cast<size_t>(place)]);
  const auto behind = std::upper_bound(first_in_window_.begin(), first_in_window_.end(), sample);
  return static_cast<size_t>(behind - first_in_window_.begin() - 1);
}

// Sample `place` starts at token s, so s / 8 + place bytes hold all masks before it, each rounded up to bytes.
uint8_t* Block::mask_at(size_t place) const {
  // SAFETY: bytes() counts the masks behind the ids; uint8_t may look at any byte.
  return reinterpret_cast<uint8_t*>(arena_.data()) + id_bytes() + starts_[place] / 8 + static_cast<int64_t>(place);
}

Status Block::pieces(int64_t index, int64_t pack_seq_len, std::vector<Piece>& out) const {
  const bool packed = pack_seq_len > 0;
  const int64_t begin = packed ? index * pack_seq_len : starts_[static_cast<size_t>(index)];
  const int64_t end = packed ? std::min(begin + pack_seq_len, starts_.back()) : starts_[static_cast<size_t>(index) + 1];
  int64_t place = packed ? std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1 : index;
  // SAFETY: as in read_window; every window has been written or has an error.
  const auto* const arena = reinterpret_cast<const uint32_t*>(arena_.data());
  for (int64_t at = begin; at < end || (!packed && place == index); ++place) {
    const size_t window = window_of(place);
    if (const Status& status = window_status_[window]; !status) return status;
    const int64_t sample_begin = starts_[static_cast<size_t>(place)];
    const int64_t piece_end = std::min(starts_[static_cast<size_t>(place) + 1], end);
    if (piece_end > at) {
      Piece piece{{arena + at, static_cast<size_t>(piece_end - at)}};
      if (window_masked_[window] != 0) piece.mask = mask_at(static_cast<size_t>(place));
      piece.mask_begin = static_cast<size_t>(at - sample_begin);
      out.push_back(piece);
    }
    at = piece_end;
  }
  return {};
}

}  // namespace millrace::loader
