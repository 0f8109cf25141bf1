// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/id_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/formats/npy.h"

namespace millrace::loader {

namespace {

constexpr std::string_view kMaskField = "loss_mask.npy";  // uint8 [tokens], 1 where a token is learned

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

class IdDecoder final : public SampleDecoder {
 public:
  IdDecoder(std::string field, int64_t id_limit) : field_(std::move(field)), id_limit_(id_limit) {}

  Item item() const override { return {.bytes = sizeof(uint32_t), .has_bit = true}; }

  Result<std::vector<uint32_t>> count_items(const order::SamplePlan& plan) const override {
    if (plan.bytes.empty()) return plan.tokens;
    std::vector<uint32_t> ids;
    for (const int64_t bytes : plan.bytes) ids.push_back(static_cast<uint32_t>(bytes / int64_t{sizeof(uint32_t)}));
    return ids;
  }

  Status decode(const order::Sample& sample, std::string_view name, Slot& slot,
                std::vector<uint32_t>& scratch) const override {
    const order::Field* const field = find_field(sample, field_);
    if (field == nullptr) {
      return fail(ErrorCode::kCorruption, "{}: sample {} has no field {}", name, sample.key, field_);
    }
    auto bytes = formats::ids_in_place(field_, field->data);
    if (!bytes) {
      scratch.clear();
      RETURN_IF_ERROR(formats::parse_ids(field_, field->data, scratch, name));
      bytes = std::as_bytes(std::span(scratch));
    }
    const size_t count = bytes->size() / sizeof(uint32_t);
    if (bytes->size() != slot.data.size()) {
      return fail(ErrorCode::kCorruption, "{}: sample {} holds {} ids, its index says {}", name, sample.key, count,
                  slot.data.size() / sizeof(uint32_t));
    }
    if (count > 0) std::memcpy(slot.data.data(), bytes->data(), bytes->size());
    // SAFETY: a slot is aligned to its items.
    RETURN_IF_ERROR(
        check_ids({reinterpret_cast<const uint32_t*>(slot.data.data()), count}, id_limit_, name, sample.key));
    return parse_mask(sample, count, name, slot.bits, slot.is_masked);
  }

 private:
  const std::string field_;
  const int64_t id_limit_;
};

}  // namespace

std::unique_ptr<SampleDecoder> make_id_decoder(std::string field, int64_t id_limit) {
  return std::make_unique<IdDecoder>(std::move(field), id_limit);
}

}  // namespace millrace::loader
