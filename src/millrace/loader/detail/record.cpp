// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/record.h"

#include <cstring>

#include "millrace/base/io/io.h"

// Its layout: the key's size and how many fields follow, the key, then for each field its number, the sizes of its name
// and of its data, and these two.

namespace millrace::loader {

namespace {

struct Head {
  uint32_t key_bytes = 0;
  uint32_t fields = 0;
};
struct FieldHead {
  uint32_t spec = 0;
  uint32_t is_typed : 1 = 0;
  uint32_t name_bytes : 31 = 0;
  uint64_t data_bytes = 0;
};
// What order::record_bytes() counts.
static_assert(sizeof(Head) <= order::kRecordBytes && sizeof(FieldHead) <= order::kRecordFieldBytes);

class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}
  bool add(const void* data, size_t size) {
    if (size > out_.size()) return false;
    if (size > 0) std::memcpy(out_.data(), data, size);
    out_ = out_.subspan(size);
    return true;
  }

 private:
  std::span<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  T value() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take(size_t size) {
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

 private:
  std::span<const std::byte> rest_;
};

const order::Field* find(const order::Sample& sample, std::string_view name) {
  for (const order::Field& field : sample.fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

// The fields that are taken, each with its number.
std::vector<std::pair<uint32_t, const order::Field*>> wanted(const order::Sample& sample, const SampleFields& fields) {
  std::vector<std::pair<uint32_t, const order::Field*>> taken;
  if (fields.takes_all()) {
    for (const order::Field& field : sample.fields) taken.emplace_back(taken.size(), &field);
    return taken;
  }
  for (size_t i = 0; i < fields.specs.size(); ++i) {
    for (const std::string& source : fields.specs[i].sources) {
      const order::Field* const field = find(sample, source);
      if (field == nullptr) continue;
      taken.emplace_back(static_cast<uint32_t>(i), field);
      break;
    }
  }
  return taken;
}

Status write_record(const order::Sample& sample, const SampleFields& fields, std::span<std::byte> out,
                    std::string_view source) {
  const auto taken = wanted(sample, fields);
  const Head head{static_cast<uint32_t>(sample.key.size()), static_cast<uint32_t>(taken.size())};
  Writer writer(out);
  bool fits = writer.add(&head, sizeof head) && writer.add(sample.key.data(), sample.key.size());
  for (const auto& [spec, field] : taken) {
    const FieldHead field_head{spec, field->is_typed, static_cast<uint32_t>(field->name.size()) & 0x7FFFFFFF,
                               field->data.size()};
    fits = fits && writer.add(&field_head, sizeof field_head) && writer.add(field->name.data(), field->name.size()) &&
           writer.add(field->data.data(), field->data.size());
  }
  if (fits) return {};
  return fail(ErrorCode::kInternal, "{}: sample {} takes more than the {} bytes that were counted for it", source,
              sample.key, out.size());
}

class RecordDecoder final : public SampleDecoder {
 public:
  explicit RecordDecoder(const SampleFields& fields) : fields_(fields) {}

  // Records begin at multiples of 4 bytes, and so a row of 4 GiB has a count of 32 bits.
  Item item() const override { return {.bytes = 4}; }

  Result<std::vector<uint32_t>> count_items(const order::SamplePlan& plan) const override {
    constexpr int64_t kMost = int64_t{4} << 30;
    std::vector<uint32_t> items;
    for (const int64_t size : plan.bytes) {
      if (size > kMost) return fail(ErrorCode::kUnsupported, "a sample of {} bytes; {} are read at most", size, kMost);
      items.push_back(static_cast<uint32_t>((size + item().bytes - 1) / item().bytes));
    }
    return items;
  }

  Status decode(const order::Sample& sample, std::string_view name, Slot& slot,
                std::vector<uint32_t>& /*scratch*/) const override {
    return write_record(sample, fields_, slot.data, name);
  }

 private:
  const SampleFields& fields_;
};

}  // namespace

std::unique_ptr<SampleDecoder> make_record_decoder(const SampleFields& fields) {
  return std::make_unique<RecordDecoder>(fields);
}

Record read_record(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const Head head = reader.value<Head>();
  Record record{.key = as_text(reader.take(head.key_bytes)), .fields = {}};
  for (uint32_t i = 0; i < head.fields; ++i) {
    const FieldHead field = reader.value<FieldHead>();
    const std::string_view name = as_text(reader.take(field.name_bytes));
    record.fields.push_back({field.spec, name, reader.take(field.data_bytes), field.is_typed != 0});
  }
  return record;
}

}  // namespace millrace::loader
