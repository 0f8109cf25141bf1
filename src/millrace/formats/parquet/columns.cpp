// SPDX-License-Identifier: Apache-2.0
#include <arrow/api.h>
#include <arrow/util/float16.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/metadata.h>
#include <parquet/statistics.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "millrace/formats/parquet/arrow_file.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

constexpr int kMostNesting = 16;
// A recorder writes a row group an episode, of some kilobytes: from an object store many are read at once.
constexpr int64_t kReadAhead = 32 << 20;

ColumnKind kind_of(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::BOOL:
      return ColumnKind::kBool;
    case arrow::Type::HALF_FLOAT:
    case arrow::Type::FLOAT:
    case arrow::Type::DOUBLE:
      return ColumnKind::kFloat;
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
      return ColumnKind::kText;
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
      return ColumnKind::kList;
    case arrow::Type::STRUCT:
      return ColumnKind::kStruct;
    default:
      return arrow::is_integer(type.id()) ? ColumnKind::kInteger : ColumnKind::kOther;
  }
}

// What an extension or a dictionary holds.
std::shared_ptr<arrow::DataType> plain_type(std::shared_ptr<arrow::DataType> type) {
  for (;;) {
    if (type->id() == arrow::Type::EXTENSION) {
      type = static_cast<const arrow::ExtensionType&>(*type).storage_type();
    } else if (type->id() == arrow::Type::DICTIONARY) {
      type = static_cast<const arrow::DictionaryType&>(*type).value_type();
    } else {
      return type;
    }
  }
}

ColumnType column_type(const arrow::Field& field, int depth = 0) {
  const auto type = plain_type(field.type());
  ColumnType out{.name = field.name(), .arrow = field.type()->ToString(), .kind = kind_of(*type)};
  if (out.kind == ColumnKind::kInteger || out.kind == ColumnKind::kFloat) {
    out.bits = static_cast<const arrow::FixedWidthType&>(*type).bit_width();
    out.is_unsigned = arrow::is_unsigned_integer(type->id());
  }
  if (type->id() == arrow::Type::FIXED_SIZE_LIST) {
    out.fixed_size = static_cast<const arrow::FixedSizeListType&>(*type).list_size();
  }
  const bool has_fields = out.kind == ColumnKind::kList || out.kind == ColumnKind::kStruct;
  if (has_fields && depth < kMostNesting) {
    for (const auto& inner : type->fields()) out.fields.push_back(column_type(*inner, depth + 1));
  }
  return out;
}

template <class Array, class Out>
void copy_numbers(const arrow::Array& array, std::vector<Out>& out) {
  const auto& numbers = static_cast<const Array&>(array);
  out.resize(static_cast<size_t>(array.length()));
  if (array.null_count() == 0) {
    for (int64_t i = 0; i < array.length(); ++i) out[static_cast<size_t>(i)] = static_cast<Out>(numbers.Value(i));
    return;
  }
  for (int64_t i = 0; i < array.length(); ++i) {
    out[static_cast<size_t>(i)] = array.IsNull(i) ? Out{} : static_cast<Out>(numbers.Value(i));
  }
}

void copy_integers(const arrow::Array& array, std::vector<int64_t>& out) {
  switch (array.type_id()) {
    case arrow::Type::INT8:
      return copy_numbers<arrow::Int8Array>(array, out);
    case arrow::Type::INT16:
      return copy_numbers<arrow::Int16Array>(array, out);
    case arrow::Type::INT32:
      return copy_numbers<arrow::Int32Array>(array, out);
    case arrow::Type::UINT8:
      return copy_numbers<arrow::UInt8Array>(array, out);
    case arrow::Type::UINT16:
      return copy_numbers<arrow::UInt16Array>(array, out);
    case arrow::Type::UINT32:
      return copy_numbers<arrow::UInt32Array>(array, out);
    case arrow::Type::UINT64:
      return copy_numbers<arrow::UInt64Array>(array, out);
    case arrow::Type::BOOL:
      return copy_numbers<arrow::BooleanArray>(array, out);
    default:
      return copy_numbers<arrow::Int64Array>(array, out);
  }
}

void copy_reals(const arrow::Array& array, std::vector<double>& out) {
  if (array.type_id() == arrow::Type::DOUBLE) return copy_numbers<arrow::DoubleArray>(array, out);
  if (array.type_id() == arrow::Type::FLOAT) return copy_numbers<arrow::FloatArray>(array, out);
  std::vector<uint16_t> halves;
  copy_numbers<arrow::HalfFloatArray>(array, halves);
  out.clear();
  for (const uint16_t bits : halves) out.push_back(arrow::util::Float16::FromBits(bits).ToDouble());
}

template <class Array>
void copy_texts(const arrow::Array& array, std::vector<std::string>& out) {
  const auto& texts = static_cast<const Array&>(array);
  out.reserve(static_cast<size_t>(array.length()));
  for (int64_t i = 0; i < array.length(); ++i)
    out.emplace_back(array.IsNull(i) ? std::string_view() : texts.GetView(i));
}

arrow::Result<ColumnValues> values_of(std::shared_ptr<arrow::Array> array, int depth = 0);

// Null lists become empty ones, whatever lies behind them; a fixed list has its length in each row that is not null.
template <class Array>
arrow::Status copy_list(const arrow::Array& array, int depth, ColumnValues& out) {
  const auto& lists = static_cast<const Array&>(array);
  ARROW_ASSIGN_OR_RAISE(auto elements, lists.Flatten());
  ARROW_ASSIGN_OR_RAISE(ColumnValues inner, values_of(std::move(elements), depth + 1));
  out.fields.push_back(std::move(inner));
  out.offsets.reserve(static_cast<size_t>(array.length()) + 1);
  out.offsets.push_back(0);
  for (int64_t i = 0; i < array.length(); ++i) {
    out.offsets.push_back(out.offsets.back() + (array.IsNull(i) ? 0 : lists.value_length(i)));
  }
  return {};
}

arrow::Status copy_any_list(const arrow::Array& array, int depth, ColumnValues& out) {
  if (array.type_id() == arrow::Type::LIST) return copy_list<arrow::ListArray>(array, depth, out);
  if (array.type_id() == arrow::Type::LARGE_LIST) return copy_list<arrow::LargeListArray>(array, depth, out);
  return copy_list<arrow::FixedSizeListArray>(array, depth, out);
}

arrow::Status copy_struct(const arrow::Array& array, int depth, ColumnValues& out) {
  const auto& structs = static_cast<const arrow::StructArray&>(array);
  for (int i = 0; i < structs.num_fields(); ++i) {
    ARROW_ASSIGN_OR_RAISE(auto field, structs.GetFlattenedField(i));
    ARROW_ASSIGN_OR_RAISE(ColumnValues inner, values_of(std::move(field), depth + 1));
    out.fields.push_back(std::move(inner));
  }
  return {};
}

arrow::Result<std::shared_ptr<arrow::Array>> plain_array(std::shared_ptr<arrow::Array> array) {
  while (array->type_id() == arrow::Type::EXTENSION) {
    array = static_cast<const arrow::ExtensionArray&>(*array).storage();
  }
  if (array->type_id() != arrow::Type::DICTIONARY) return array;
  const auto& dictionary = static_cast<const arrow::DictionaryArray&>(*array);
  std::unique_ptr<arrow::ArrayBuilder> builder;
  ARROW_RETURN_NOT_OK(arrow::MakeBuilder(arrow::default_memory_pool(), dictionary.dictionary()->type(), &builder));
  const arrow::ArraySpan words(*dictionary.dictionary()->data());
  for (int64_t i = 0; i < array->length(); ++i) {
    ARROW_RETURN_NOT_OK(array->IsNull(i) ? builder->AppendNull()
                                         : builder->AppendArraySlice(words, dictionary.GetValueIndex(i), 1));
  }
  return builder->Finish();
}

arrow::Result<ColumnValues> values_of(std::shared_ptr<arrow::Array> given, int depth) {
  if (depth > kMostNesting) return arrow::Status::Invalid("lists and structs inside one another, more than 16 deep");
  ARROW_ASSIGN_OR_RAISE(const auto array, plain_array(std::move(given)));
  ColumnValues out{.kind = kind_of(*array->type()), .rows = array->length()};
  if (array->null_count() > 0) {
    out.nulls.resize(static_cast<size_t>(array->length()));
    for (int64_t i = 0; i < array->length(); ++i) out.nulls[static_cast<size_t>(i)] = array->IsNull(i) ? 1 : 0;
  }
  switch (out.kind) {
    case ColumnKind::kBool:
    case ColumnKind::kInteger:
      copy_integers(*array, out.integers);
      break;
    case ColumnKind::kFloat:
      copy_reals(*array, out.reals);
      break;
    case ColumnKind::kText:
      if (array->type_id() == arrow::Type::LARGE_STRING || array->type_id() == arrow::Type::LARGE_BINARY) {
        copy_texts<arrow::LargeBinaryArray>(*array, out.texts);
      } else {
        copy_texts<arrow::BinaryArray>(*array, out.texts);
      }
      break;
    case ColumnKind::kList:
      ARROW_RETURN_NOT_OK(copy_any_list(*array, depth, out));
      break;
    case ColumnKind::kStruct:
      ARROW_RETURN_NOT_OK(copy_struct(*array, depth, out));
      break;
    case ColumnKind::kOther:
      break;
  }
  return out;
}

class Columns final : public ColumnTable {
 public:
  explicit Columns(const RandomReader& file) : name_(file.name()), file_(std::make_shared<ArrowFile>(file)) {}

  Status open() {
    return guarded([&]() -> Status {
      auto properties = parquet::ReaderProperties(arrow::default_memory_pool());
      properties.set_page_checksum_verification(true);
      parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
      // Few and long reads: for a file in an object store each is a request.
      arrow_properties.set_pre_buffer(true);
      parquet::arrow::FileReaderBuilder builder;
      if (auto opened = builder.Open(file_, properties); !opened.ok()) return tl::unexpected(explained(opened));
      auto built = builder.properties(arrow_properties)->Build();
      if (!built.ok()) return tl::unexpected(explained(built.status()));
      reader_ = std::move(*built);
      return read_footer();
    });
  }

  const TableFooter& footer() const override { return footer_; }

  Status scan(std::span<const std::string> columns, int64_t batch_rows,
              const std::function<Status(int64_t, std::span<const ColumnValues>)>& visit) override {
    return guarded([&]() -> Status {
      std::vector<int> leaves;
      for (const std::string& column : columns) RETURN_IF_ERROR(add_leaves(column, leaves));
      reader_->set_batch_size(batch_rows);
      int64_t row = 0;
      for (size_t group = 0; group < footer_.groups.size();) {
        const std::vector<int> together = next_groups(group);
        group += together.size();
        RETURN_IF_ERROR(scan_groups(together, leaves, columns, row, visit));
      }
      if (row == footer_.rows) return {};
      return fail(ErrorCode::kCorruption, "{}: {} rows can be read of {}", name_, row, footer_.rows);
    });
  }

  Status scan_group(size_t group, std::span<const std::string> columns, int64_t batch_rows,
                    const std::function<Status(int64_t, std::span<const ColumnValues>)>& visit) override {
    return guarded([&]() -> Status {
      std::vector<int> leaves;
      for (const std::string& column : columns) RETURN_IF_ERROR(add_leaves(column, leaves));
      reader_->set_batch_size(batch_rows);
      int64_t row = 0;
      for (size_t before = 0; before < group; ++before) row += footer_.groups[before].rows;
      const int64_t end = row + footer_.groups[group].rows;
      RETURN_IF_ERROR(scan_groups({static_cast<int>(group)}, leaves, columns, row, visit));
      if (row == end) return {};
      return fail(ErrorCode::kCorruption, "{}: row group {} has fewer rows than its footer says", name_, group);
    });
  }

 private:
  // Arrow's Parquet answers some errors and throws others.
  template <class Function>
  auto guarded(Function&& function) -> decltype(function()) {
    try {
      return function();
    } catch (const std::exception& thrown) {
      return tl::unexpected(explained(arrow::Status::IOError(thrown.what())));
    }
  }

  Error explained(const arrow::Status& status) const {
    if (auto error = file_->error()) return *std::move(error);
    return Error(ErrorCode::kCorruption, fmt::format("{}: {}", name_, status.message()));
  }

  Status read_footer() {
    std::shared_ptr<arrow::Schema> schema;
    if (const auto read = reader_->GetSchema(&schema); !read.ok()) return tl::unexpected(explained(read));
    for (const auto& field : schema->fields()) footer_.columns.push_back(column_type(*field));
    const parquet::FileMetaData& metadata = *reader_->parquet_reader()->metadata();
    footer_.rows = metadata.num_rows();
    if (const auto& pairs = metadata.key_value_metadata(); pairs != nullptr) {
      for (int64_t i = 0; i < pairs->size(); ++i) footer_.metadata.emplace_back(pairs->key(i), pairs->value(i));
    }
    for (int i = 0; i < metadata.num_row_groups(); ++i) footer_.groups.push_back(row_group(*metadata.RowGroup(i)));
    return {};
  }

  static RowGroup row_group(const parquet::RowGroupMetaData& metadata) {
    RowGroup out{.rows = metadata.num_rows(), .ranges = {}};
    for (int i = 0; i < metadata.num_columns(); ++i) {
      const auto& column = *metadata.schema()->Column(i);
      const bool is_integer = column.physical_type() == parquet::Type::INT64 && column.max_repetition_level() == 0;
      if (!is_integer) continue;
      const auto statistics = metadata.ColumnChunk(i)->statistics();
      if (statistics == nullptr || !statistics->HasMinMax()) continue;
      const auto& typed = static_cast<const parquet::Int64Statistics&>(*statistics);
      out.ranges.push_back({column.path()->ToDotString(), typed.min(), typed.max()});
    }
    return out;
  }

  // The leaves below a column of the table, in the order in which Parquet stores them.
  Status add_leaves(const std::string& column, std::vector<int>& leaves) const {
    const parquet::SchemaDescriptor& schema = *reader_->parquet_reader()->metadata()->schema();
    const size_t before = leaves.size();
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (schema.GetColumnRoot(i)->name() == column) leaves.push_back(i);
    }
    if (leaves.size() > before) return {};
    return fail(ErrorCode::kNotFound, "{}: it has no column {}", name_, column);
  }

  // Those from `group` on that are read ahead together.
  std::vector<int> next_groups(size_t group) const {
    std::vector<int> together;
    int64_t bytes = 0;
    for (; group < footer_.groups.size() && (together.empty() || bytes < kReadAhead); ++group) {
      together.push_back(static_cast<int>(group));
      bytes += reader_->parquet_reader()->metadata()->RowGroup(together.back())->total_compressed_size();
    }
    return together;
  }

  Status scan_groups(const std::vector<int>& groups, const std::vector<int>& leaves,
                     std::span<const std::string> columns, int64_t& row,
                     const std::function<Status(int64_t, std::span<const ColumnValues>)>& visit) {
    auto opened = reader_->GetRecordBatchReader(groups, leaves);
    if (!opened.ok()) return tl::unexpected(explained(opened.status()));
    std::shared_ptr<arrow::RecordBatch> batch;
    for (;;) {
      if (const auto read = (*opened)->ReadNext(&batch); !read.ok()) return tl::unexpected(explained(read));
      if (batch == nullptr) return {};
      RETURN_IF_ERROR(visit_batch(*batch, columns, row, visit));
      row += batch->num_rows();
    }
  }

  Status visit_batch(const arrow::RecordBatch& batch, std::span<const std::string> columns, int64_t row,
                     const std::function<Status(int64_t, std::span<const ColumnValues>)>& visit) const {
    std::vector<ColumnValues> values;
    for (const std::string& column : columns) {
      auto array = batch.GetColumnByName(column);
      if (array == nullptr) return fail(ErrorCode::kCorruption, "{}: two columns are called {}", name_, column);
      auto read = values_of(std::move(array));
      if (!read.ok()) return tl::unexpected(explained(read.status()));
      values.push_back(std::move(*read));
    }
    return visit(row, values);
  }

  const std::string name_;
  const std::shared_ptr<ArrowFile> file_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  TableFooter footer_;
};

}  // namespace
}  // namespace millrace::formats

extern "C" {

[[gnu::visibility("default")]] void millrace_open_columns(
    const millrace::RandomReader& file, millrace::Result<std::unique_ptr<millrace::formats::ColumnTable>>& table) {
  auto columns = std::make_unique<millrace::formats::Columns>(file);
  if (auto opened = columns->open(); !opened) {
    table = tl::unexpected(std::move(opened).error());
  } else {
    table = std::move(columns);
  }
}
}
