// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/packed_batch.h"

#include <cstring>
#include <span>
#include <utility>

#include "millrace/loader/batch_ring.h"

namespace millrace::loader {

namespace {

constexpr std::string_view kInt32 = "int32", kInt64 = "int64", kBool = "bool";

int64_t aligned(int64_t bytes) {
  return (bytes + BatchRing::kAlignment - 1) / BatchRing::kAlignment * BatchRing::kAlignment;
}

// A field whose values are copied behind the arrays of the batch.
struct AddedField {
  PackedBatch::Field field;
  std::span<const std::byte> bytes;
};

class AddedFields {
 public:
  explicit AddedFields(int64_t begin) : end_(begin) {}

  template <class T>
  void add(std::string_view name, std::string_view dtype, std::span<const T> values, std::vector<int64_t> shape) {
    fields_.push_back({{name, dtype, std::move(shape), end_}, std::as_bytes(values)});
    end_ += aligned(static_cast<int64_t>(values.size_bytes()));
  }
  int64_t end() const { return end_; }
  std::vector<AddedField>& all() { return fields_; }

 private:
  std::vector<AddedField> fields_;
  int64_t end_;
};

}  // namespace

int64_t array_stride(const LoaderOptions& options, int64_t rows) {
  return aligned(rows * options.array_row_bytes());
}

int64_t packed_bytes(const LoaderOptions& options, int64_t rows) {
  int64_t bytes = array_stride(options, rows) * std::ssize(batch_arrays(options.collate, options.documents));
  // A document has one token at least.
  if (options.documents) bytes += aligned((rows * options.seq_len + 1) * 4) + aligned(4);
  return bytes + aligned(rows) + aligned(rows * 8) + aligned(2 * 8);  // row_mask, source, loader_state
}

PackedBatch pack_batch(Batch batch, const LoaderOptions& options, const PackedFields& wanted) {
  const int64_t stride = array_stride(options, batch.rows);
  AddedFields added(stride * std::ssize(batch.arrays));
  if (!batch.cu_seqlens.empty()) {
    added.add<int32_t>("cu_seqlens", kInt32, batch.cu_seqlens, {std::ssize(batch.cu_seqlens)});
    added.add<int32_t>("max_seqlen", kInt32, std::span(&batch.max_seqlen, 1), {});
  }
  if (options.fill_last != FillLast::kNothing) {
    added.add<uint8_t>("row_mask", kBool, batch.row_mask, {std::ssize(batch.row_mask)});
  }
  if (wanted.sources) added.add<int64_t>("source", kInt64, batch.sources, {std::ssize(batch.sources)});
  const int64_t state[2] = {static_cast<int64_t>(batch.epoch), batch.next_position};
  if (wanted.state) added.add<int64_t>("loader_state", kInt64, state, {2});

  PackedBatch packed{.data = batch.arrays.front().data, .bytes = added.end(), .memory = std::move(batch.memory)};
  if (batch.space_bytes < packed.bytes) {
    const auto owner = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(packed.bytes));
    std::memcpy(owner->data(), packed.data, static_cast<size_t>(stride * std::ssize(batch.arrays)));
    packed.data = owner->data();
    packed.memory = owner;
  }
  const std::string_view dtype = batch.type == IdType::kInt64 ? kInt64 : kInt32;
  for (size_t i = 0; i < batch.arrays.size(); ++i) {
    packed.fields.push_back(
        {batch.arrays[i].name, dtype, {batch.rows, batch.seq_len}, static_cast<int64_t>(i) * stride});
  }
  for (auto& [field, bytes] : added.all()) {
    if (!bytes.empty()) std::memcpy(packed.data + field.offset, bytes.data(), bytes.size());
    packed.fields.push_back(std::move(field));
  }
  return packed;
}

}  // namespace millrace::loader
