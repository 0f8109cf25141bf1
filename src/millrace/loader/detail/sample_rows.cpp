// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/sample_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "millrace/loader/detail/record.h"
#include "millrace/loader/typed_value.h"

namespace millrace::loader {

namespace {

// A cell of a column; no value: a gap, or a row of padding.
struct Cell {
  const DecodedSample* sample = nullptr;
  const Value* value = nullptr;
};

int64_t items_of(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

tl::unexpected<Error> differs(const FieldSpec& spec, const Cell& first, const Cell& other, std::string_view way_out) {
  return fail(ErrorCode::kInvalidArgument, "field {}: {} {} in sample {} of {}, {} {} in sample {} of {}: {}",
              spec.name, first.value->dtype, shape_text(first.value->shape), first.sample->key, first.sample->source,
              other.value->dtype, shape_text(other.value->shape), other.sample->key, other.sample->source, way_out);
}

// Writes `value` as an item of this dtype; false where the dtype has no numbers.
bool write_number(std::string_view dtype, double value, std::byte* out) {
  const auto put = [&](auto number) {
    std::memcpy(out, &number, sizeof number);
    return true;
  };
  const std::string_view kind = dtype.substr(1);
  if (dtype[0] == '>') return false;
  if (kind == "u1") return put(static_cast<uint8_t>(value));
  if (kind == "b1") return put(static_cast<uint8_t>(value != 0));
  if (kind == "i1") return put(static_cast<int8_t>(value));
  if (kind == "u2") return put(static_cast<uint16_t>(value));
  if (kind == "i2") return put(static_cast<int16_t>(value));
  if (kind == "u4") return put(static_cast<uint32_t>(value));
  if (kind == "i4") return put(static_cast<int32_t>(value));
  if (kind == "u8") return put(static_cast<uint64_t>(value));
  if (kind == "i8") return put(static_cast<int64_t>(value));
  if (kind == "f4") return put(static_cast<float>(value));
  if (kind == "f8") return put(value);
  return false;
}

void fill(std::span<std::byte> out, std::string_view dtype, int64_t item, double value) {
  std::byte one[8] = {};
  if (value == 0 || item > 8 || !write_number(dtype, value, one)) {
    std::ranges::fill(out, std::byte{0});
    return;
  }
  for (size_t at = 0; at < out.size(); at += static_cast<size_t>(item)) {
    std::memcpy(out.data() + at, one, static_cast<size_t>(item));
  }
}

// Copies an array to C order.
void copy_array(const Value& value, int64_t item, std::byte* out) {
  if (!value.fortran_order) {
    if (!value.data.empty()) std::memcpy(out, value.data.data(), value.data.size());
    return;
  }
  const size_t dimensions = value.shape.size();
  std::vector<int64_t> at(dimensions, 0);
  const int64_t items = items_of(value.shape);
  for (int64_t i = 0; i < items; ++i) {
    int64_t from = 0, stride = 1;
    for (size_t d = 0; d < dimensions; ++d) {
      from += at[d] * stride;
      stride *= value.shape[d];
    }
    std::memcpy(out + i * item, value.data.data() + from * item, static_cast<size_t>(item));
    for (size_t d = dimensions; d-- > 0;) {
      if (++at[d] < value.shape[d]) break;
      at[d] = 0;
    }
  }
}

struct Plan {
  std::vector<int64_t> row_shape;
  std::string dtype;
  int64_t item = 1;
  int64_t row_bytes = 0;
};

// What all rows of a stacked or padded column have in common.
Result<Plan> plan_of(const FieldSpec& spec, std::span<const Cell> cells) {
  const Cell* first = nullptr;
  Plan plan;
  int64_t longest = 0;
  for (const Cell& cell : cells) {
    if (cell.value == nullptr) continue;
    const Value& value = *cell.value;
    if (first == nullptr) {
      first = &cell;
      plan.row_shape = value.shape;
      plan.dtype = value.dtype;
    }
    const Value& model = *first->value;
    if (value.dtype != model.dtype) return differs(spec, *first, cell, "one dtype is needed, or batch='list'");
    if (spec.batch == FieldBatch::kStack) {
      if (value.shape != model.shape) return differs(spec, *first, cell, "give batch='pad' or batch='list'");
      continue;
    }
    if (value.shape.empty() || value.shape.size() != model.shape.size() ||
        !std::equal(value.shape.begin() + 1, value.shape.end(), model.shape.begin() + 1)) {
      return differs(spec, *first, cell, "only the first dimension is padded; give batch='list'");
    }
    longest = std::max(longest, value.shape[0]);
  }
  if (first == nullptr) {  // padding alone: what is known without a sample
    plan.dtype = spec.kind == FieldKind::kImage ? (spec.as_float ? "<f4" : "|u1")
                 : !spec.dtype.empty()          ? spec.dtype
                                                : "<i8";
    if (spec.kind == FieldKind::kImage) {
      const int64_t h = spec.image.height, w = spec.image.width, c = static_cast<int64_t>(spec.image.colour);
      plan.row_shape = spec.channels_first ? std::vector{c, h, w} : std::vector{h, w, c};
      if (c == 1 && !spec.channels_first) plan.row_shape = {h, w};
    }
    if (spec.kind == FieldKind::kRaw || spec.kind == FieldKind::kNpy) plan.row_shape = spec.shape;
    if (spec.batch == FieldBatch::kPad && plan.row_shape.empty()) plan.row_shape = {0};
    std::ranges::replace(plan.row_shape, -1, 0);
  }
  if (spec.batch == FieldBatch::kPad) plan.row_shape[0] = spec.length > 0 ? spec.length : longest;
  plan.item = dtype_bytes(plan.dtype).value();
  plan.row_bytes = items_of(plan.row_shape) * plan.item;
  return plan;
}

Status lay_together(const FieldSpec& spec, std::span<const Cell> cells, const TakeMemory& take_memory,
                    Batch::Column& column) {
  ASSIGN_OR_RETURN(const Plan plan, plan_of(spec, cells));
  column.form = Batch::Column::Form::kArray;
  column.dtype = plan.dtype;
  column.shape = plan.row_shape;
  column.shape.insert(column.shape.begin(), std::ssize(cells));
  std::tie(column.data, column.memory) = take_memory(std::max<int64_t>(plan.row_bytes * std::ssize(cells), 1));
  const bool is_padded = spec.batch == FieldBatch::kPad;
  for (size_t row = 0; row < cells.size(); ++row) {
    const std::span<std::byte> out(column.data + static_cast<int64_t>(row) * plan.row_bytes,
                                   static_cast<size_t>(plan.row_bytes));
    const Value* const value = cells[row].value;
    if (spec.with_mask) column.mask.push_back(value != nullptr && value->nulls.empty() ? 1 : 0);
    if (value == nullptr) {
      const bool is_gap = cells[row].sample != nullptr;  // else it is a row of padding
      fill(out, plan.dtype, plan.item, is_padded ? spec.pad_value : is_gap ? spec.fill.value_or(0) : 0);
      if (is_padded) column.lengths.push_back(0);
      continue;
    }
    if (!is_padded) {
      copy_array(*value, plan.item, out.data());
      continue;
    }
    std::vector<std::byte> c_order;
    std::span<const std::byte> data = value->data;
    if (value->fortran_order) {
      c_order.resize(data.size());
      copy_array(*value, plan.item, c_order.data());
      data = c_order;
    }
    const size_t size = std::min(data.size(), out.size());
    if (size > 0) std::memcpy(out.data(), data.data(), size);
    fill(out.subspan(size), plan.dtype, plan.item, spec.pad_value);
    column.lengths.push_back(std::min(value->shape[0], plan.row_shape[0]));
  }
  return {};
}

Batch::Column list_of(const FieldSpec& spec, std::span<const Cell> cells, const TakeMemory& take_memory) {
  Batch::Column column{.name = spec.name};
  column.form = Batch::Column::Form::kList;
  int64_t bytes = 0;
  const auto rounded = [](size_t size) { return static_cast<int64_t>((size + 63) / 64 * 64); };
  for (const Cell& cell : cells) {
    Batch::Column::Item& item = column.items.emplace_back();
    if (cell.value == nullptr) continue;
    item.form = cell.value->form;
    item.dtype = cell.value->dtype;
    item.shape = cell.value->shape;
    item.offset = bytes;
    item.size = std::ssize(cell.value->data);
    bytes += rounded(cell.value->data.size());
  }
  std::tie(column.data, column.memory) = take_memory(std::max<int64_t>(bytes, 1));
  for (size_t row = 0; row < cells.size(); ++row) {
    if (cells[row].value == nullptr) continue;
    const Value& value = *cells[row].value;
    copy_array(value, value.is_array() ? dtype_bytes(value.dtype).value() : 1, column.data + column.items[row].offset);
  }
  return column;
}

bool is_number(const Value& value) {
  return value.is_array() && std::string_view("biuf").find(value.dtype[1]) != std::string_view::npos;
}

// Returns whether all rows that are not padding have arrays of one dtype and shape. Errors: invalid_argument (numbers
// of several dtypes: a batch whose type depended on the rows in it would be a trap).
Result<bool> are_alike(const FieldSpec& spec, std::span<const Cell> cells) {
  const Cell* first = nullptr;
  bool alike = true;
  for (const Cell& cell : cells) {
    if (cell.sample == nullptr) continue;
    if (cell.value == nullptr || !cell.value->is_array()) {
      alike = false;
      continue;
    }
    if (first == nullptr) first = &cell;
    if (cell.value->dtype != first->value->dtype && is_number(*cell.value) && is_number(*first->value)) {
      return differs(spec, *first, cell, "give the type: mr.number(dtype) or mr.array(dtype=...)");
    }
    alike = alike && cell.value->dtype == first->value->dtype && cell.value->shape == first->value->shape;
  }
  return alike && first != nullptr;
}

Status add_column(const FieldSpec& spec, std::span<const Cell> cells, const TakeMemory& take_memory, Batch& batch) {
  bool is_list = spec.kind == FieldKind::kText || spec.kind == FieldKind::kJson || spec.kind == FieldKind::kNpz ||
                 !spec.is_required || spec.batch == FieldBatch::kList;
  is_list = is_list || std::ranges::any_of(cells, [](const Cell& c) { return c.sample != nullptr && !c.value; });
  if (spec.kind == FieldKind::kNumber && (spec.fill || spec.with_mask)) is_list = false;
  if (spec.kind == FieldKind::kBytes && spec.batch != FieldBatch::kList) {
    ASSIGN_OR_RETURN(const bool alike, are_alike(spec, cells));
    is_list = !alike;
  }
  if (is_list) {
    batch.columns.push_back(list_of(spec, cells, take_memory));
    return {};
  }
  Batch::Column column{.name = spec.name};
  RETURN_IF_ERROR(lay_together(spec, cells, take_memory, column));
  batch.columns.push_back(std::move(column));
  return {};
}

// The fields of samples whose specs nobody gave: those of the first, which all must have. Rows may have gaps, and then
// it is those of all.
Status add_found_columns(std::span<const DecodedSample* const> rows, bool may_differ, const TakeMemory& take_memory,
                         Batch& batch) {
  const DecodedSample* first = nullptr;
  std::vector<const FieldSpec*> specs;
  for (const DecodedSample* row : rows) {
    if (row == nullptr) continue;
    if (first == nullptr) first = row;
    const auto is_known = [&](const std::string& name) {
      return std::ranges::any_of(specs, [&](const FieldSpec* spec) { return spec->name == name; });
    };
    for (const auto& found : row->found) {
      if (!is_known(found.first.name)) specs.push_back(&found.first);
    }
    if (may_differ || row->is_typed ||
        (row->found.size() == first->found.size() && specs.size() == first->found.size()))
      continue;
    return fail(ErrorCode::kCorruption,
                "{}: sample {} has other fields than sample {} of {}; name the fields that are to be read, and which "
                "of them may be missing",
                row->source, row->key, first->key, first->source);
  }
  for (const FieldSpec* spec : specs) {
    std::vector<Cell> cells;
    for (const DecodedSample* row : rows) {
      Cell& cell = cells.emplace_back(Cell{row});
      if (row == nullptr) continue;
      const auto has = std::ranges::find_if(row->found, [&](const auto& f) { return f.first.name == spec->name; });
      if (has != row->found.end()) cell.value = &has->second;
    }
    RETURN_IF_ERROR(add_column(*spec, cells, take_memory, batch));
  }
  return {};
}

}  // namespace

Result<DecodedSample> decode_sample(std::span<const std::byte> bytes, std::string_view source,
                                    const SampleFields& fields) {
  const Record record = read_record(bytes);
  DecodedSample sample{.key = std::string(record.key), .source = std::string(source)};
  const auto where = [&](std::string_view field) {
    return fmt::format("{}: sample {}: {}", source, record.key, field);
  };
  sample.values.resize(fields.specs.size());
  const auto value_of = [&](const FieldSpec& spec, const Record::Field& field) -> Result<Value> {
    if (!field.is_typed && is_gzip(field.name) && (fields.decodes || !fields.takes_all())) {
      ASSIGN_OR_RETURN(const auto unpacked, unpack_field(field.data, where(field.name)));
      ASSIGN_OR_RETURN(Value value, decode_field(spec, *unpacked, where(field.name)));
      if (value.memory == nullptr) value.memory = unpacked;
      return value;
    }
    if (!field.is_typed) return decode_field(spec, field.data, where(field.name));
    ASSIGN_OR_RETURN(Value value, parse_typed_value(field.data, where(field.name)));
    return convert_value(spec, std::move(value), where(field.name));
  };
  for (const Record::Field& field : record.fields) {
    if (fields.takes_all()) {
      FieldSpec spec = spec_of_extension(field.name, fields);
      sample.is_typed = sample.is_typed || field.is_typed;
      if (field.is_typed) spec = {.name = spec.name, .sources = spec.sources};
      ASSIGN_OR_RETURN(Value value, value_of(spec, field));
      sample.bytes += std::ssize(value.data);
      sample.found.emplace_back(std::move(spec), std::move(value));
      continue;
    }
    const FieldSpec& spec = fields.specs[field.spec];
    ASSIGN_OR_RETURN(Value value, value_of(spec, field));
    // A column whose kind was not named may have gaps.
    if (value.form == Value::Form::kNothing && spec.kind != FieldKind::kBytes) continue;
    sample.bytes += std::ssize(value.data);
    sample.values[field.spec] = std::move(value);
  }
  for (size_t i = 0; i < fields.specs.size(); ++i) {
    if (sample.values[i] || !fields.specs[i].is_required) continue;
    return fail(ErrorCode::kCorruption, "{}: sample {} has no field {}", source, record.key,
                fmt::join(fields.specs[i].sources, " or "));
  }
  return sample;
}

Status collate_samples(std::span<const DecodedSample* const> rows, const SampleFields& fields,
                       const TakeMemory& take_memory, Batch& batch) {
  batch.rows = std::ssize(rows);
  for (const DecodedSample* row : rows) {
    batch.keys.push_back(row == nullptr ? "" : row->key);
    if (fields.with_sources) batch.sample_sources.push_back(row == nullptr ? "" : row->source);
  }
  if (fields.takes_all()) return add_found_columns(rows, fields.may_differ, take_memory, batch);
  for (size_t i = 0; i < fields.specs.size(); ++i) {
    std::vector<Cell> cells;
    for (const DecodedSample* row : rows) {
      cells.push_back({row, row != nullptr && row->values[i] ? &*row->values[i] : nullptr});
    }
    RETURN_IF_ERROR(add_column(fields.specs[i], cells, take_memory, batch));
  }
  return {};
}

}  // namespace millrace::loader
