// SPDX-License-Identifier: Apache-2.0
#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/formats/parquet/arrow_file.h"
#include "millrace/formats/parquet/arrow_sink.h"
#include "millrace/formats/parquet/features_metadata.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

using ArrayPointer = std::shared_ptr<arrow::Array>;
using ChunkedPointer = std::shared_ptr<arrow::ChunkedArray>;

// Arrow's own errors are about the file; `file_` knows those of reading it.
class ArrowRows final : public RowSource {
 public:
  explicit ArrowRows(const RandomReader& file) : name_(file.name()), file_(std::make_shared<ArrowFile>(file)) {}

  Status open() {
    return explained([&]() -> arrow::Status {
      ARROW_ASSIGN_OR_RAISE(reader_, parquet::arrow::OpenFile(file_, arrow::default_memory_pool()));
      reader_->set_use_threads(false);
      return {};
    });
  }

  int64_t rows() const override { return reader_->parquet_reader()->metadata()->num_rows(); }
  const std::string& name() const { return name_; }

  Result<std::shared_ptr<arrow::Table>> read(int64_t begin, int64_t end) {
    if (begin < 0 || end > rows()) {
      return fail(ErrorCode::kOutOfRange, "{}: it has {} rows, and no rows [{}, {})", name_, rows(), begin, end);
    }
    if (begin < first_ || kept_ == nullptr || end > first_ + kept_->num_rows()) {
      RETURN_IF_ERROR(explained([&] { return read_groups(begin, end); }));
    }
    return kept_->Slice(begin - first_, end - begin);
  }

  template <class Call>
  Status explained(const Call& call) const {
    const auto message = message_of(call);
    if (!message) return {};
    if (const auto error = file_->error()) return tl::unexpected(*error);
    return fail(ErrorCode::kCorruption, "{}: {}", name_, *message);
  }

 private:
  arrow::Status read_groups(int64_t begin, int64_t end) {
    const auto metadata = reader_->parquet_reader()->metadata();
    std::vector<int> groups;
    int64_t at = 0;
    for (int group = 0; group < metadata->num_row_groups(); ++group) {
      const int64_t after = at + metadata->RowGroup(group)->num_rows();
      if (after > begin && at < end) {
        if (groups.empty()) first_ = at;
        groups.push_back(group);
      }
      at = after;
    }
    kept_.reset();
    // Not ReadRowGroups, whose form is another before Arrow 21.
    ARROW_ASSIGN_OR_RAISE(const auto batches, reader_->GetRecordBatchReader(groups));
    ARROW_ASSIGN_OR_RAISE(kept_, batches->ToTable());
    return {};
  }

  const std::string name_;
  const std::shared_ptr<ArrowFile> file_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Table> kept_;
  int64_t first_ = 0;  // the row that kept_ begins with
};

// ---- new integers

template <class Type>
arrow::Result<ChunkedPointer> changed_integers(const arrow::ChunkedArray& column, const ColumnChange& change) {
  arrow::NumericBuilder<Type> builder;
  int64_t row = 0;
  for (const ArrayPointer& chunk : column.chunks()) {
    const auto& array = static_cast<const typename arrow::TypeTraits<Type>::ArrayType&>(*chunk);
    for (int64_t i = 0; i < array.length(); ++i, ++row) {
      int64_t value = change.first + row * change.step;
      if (!change.for_values.empty()) {
        if (array.IsNull(i)) {
          ARROW_RETURN_NOT_OK(builder.AppendNull());
          continue;
        }
        const auto old = static_cast<int64_t>(array.Value(i));
        if (old < 0 || old >= static_cast<int64_t>(change.for_values.size())) {
          return arrow::Status::IndexError("row ", row, " of ", change.column, " holds ", old, ", of ",
                                           change.for_values.size(), " that there are");
        }
        value = change.for_values[static_cast<size_t>(old)];
      }
      ARROW_RETURN_NOT_OK(builder.Append(static_cast<typename Type::c_type>(value)));
    }
  }
  ARROW_ASSIGN_OR_RAISE(ArrayPointer array, builder.Finish());
  return std::make_shared<arrow::ChunkedArray>(std::move(array));
}

arrow::Result<ChunkedPointer> changed_column(const arrow::ChunkedArray& column, const ColumnChange& change) {
  switch (column.type()->id()) {
    case arrow::Type::INT64:
      return changed_integers<arrow::Int64Type>(column, change);
    case arrow::Type::INT32:
      return changed_integers<arrow::Int32Type>(column, change);
    default:
      return arrow::Status::TypeError("the column ", change.column, " holds ", column.type()->ToString(),
                                      ", not int64 or int32");
  }
}

// ---- other lists

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::FIXED_SIZE_LIST;
}

const arrow::DataType& element_of(const arrow::DataType& type) {
  return *static_cast<const arrow::BaseListType&>(type).value_type();
}

// Lists of any length as lists of `wanted`'s length; null where one has another.
arrow::Result<ArrayPointer> fixed_lists(const arrow::ListArray& lists, const std::shared_ptr<arrow::DataType>& wanted) {
  const int32_t width = static_cast<const arrow::FixedSizeListType&>(*wanted).list_size();
  for (int64_t row = 0; row < lists.length(); ++row) {
    if (lists.IsNull(row) || lists.value_length(row) != width) return ArrayPointer();
  }
  ARROW_ASSIGN_OR_RAISE(const ArrayPointer values, lists.Flatten());
  return arrow::FixedSizeListArray::FromArrays(values, wanted);
}

arrow::Result<ArrayPointer> plain_lists(const arrow::FixedSizeListArray& lists,
                                        const std::shared_ptr<arrow::DataType>& wanted) {
  if (lists.null_count() > 0) return ArrayPointer();
  arrow::Int32Builder offsets;
  for (int64_t row = 0; row <= lists.length(); ++row) {
    ARROW_RETURN_NOT_OK(offsets.Append(static_cast<int32_t>(row * lists.list_type()->list_size())));
  }
  ARROW_ASSIGN_OR_RAISE(const ArrayPointer begins, offsets.Finish());
  ARROW_ASSIGN_OR_RAISE(const ArrayPointer values, lists.Flatten());
  return arrow::ListArray::FromArrays(wanted, *begins, *values);
}

// `column` as `wanted`, with the same values; null where that cannot be.
arrow::Result<ChunkedPointer> fitted(const ChunkedPointer& column, const std::shared_ptr<arrow::DataType>& wanted) {
  const arrow::DataType& type = *column->type();
  if (type.Equals(*wanted)) return column;
  if (!is_list(type) || !is_list(*wanted) || !element_of(type).Equals(element_of(*wanted))) return ChunkedPointer();
  arrow::ArrayVector chunks;
  for (const ArrayPointer& chunk : column->chunks()) {
    const bool to_fixed = type.id() == arrow::Type::LIST && wanted->id() == arrow::Type::FIXED_SIZE_LIST;
    const bool to_plain = type.id() == arrow::Type::FIXED_SIZE_LIST && wanted->id() == arrow::Type::LIST;
    if (!to_fixed && !to_plain) return ChunkedPointer();
    ARROW_ASSIGN_OR_RAISE(ArrayPointer lists,
                          to_fixed ? fixed_lists(static_cast<const arrow::ListArray&>(*chunk), wanted)
                                   : plain_lists(static_cast<const arrow::FixedSizeListArray&>(*chunk), wanted));
    if (lists == nullptr) return ChunkedPointer();
    chunks.push_back(std::move(lists));
  }
  return arrow::ChunkedArray::Make(std::move(chunks), wanted);
}

// ---- one file of many

class ArrowCopier final : public RowCopier {
 public:
  explicit ArrowCopier(ByteSink& out) : sink_(std::make_shared<ArrowSink>(out)) {}

  Status add(RowSource& rows, int64_t first, int64_t end, std::span<const ColumnChange> changes) override {
    if (end <= first) return no_rows();
    // SAFETY: only this library makes RowSources.
    auto& source = static_cast<ArrowRows&>(rows);
    ASSIGN_OR_RETURN(std::shared_ptr<arrow::Table> table, source.read(first, end));
    for (const ColumnChange& change : changes) {
      ASSIGN_OR_RETURN(table, with_change(*table, change, source.name()));
    }
    if (schema_ == nullptr) {
      RETURN_IF_ERROR(begin(*table, source));
    } else if (!schema_->Equals(*table->schema(), /*check_metadata=*/false)) {
      ASSIGN_OR_RETURN(table, as_the_first(*table, source));
    }
    return written(source, [&] { return writer_->WriteTable(*table, table->num_rows()); });
  }

  Status finish() override {
    if (writer_ == nullptr) return no_rows();
    const auto message = message_of([&] { return writer_->Close(); });
    if (!message) return {};
    return sink_->error ? Status(tl::unexpected(*sink_->error))
                        : fail(ErrorCode::kInternal, "Parquet could not be written: {}", *message);
  }

 private:
  static Status no_rows() { return fail(ErrorCode::kInvalidArgument, "there are no rows to copy"); }

  static Result<std::shared_ptr<arrow::Table>> with_change(const arrow::Table& table, const ColumnChange& change,
                                                           const std::string& name) {
    const int place = table.schema()->GetFieldIndex(change.column);
    if (place < 0) return table.Slice(0);
    const auto column = changed_column(*table.column(place), change);
    if (!column.ok()) {
      const bool is_value = column.status().IsIndexError();
      return fail(is_value ? ErrorCode::kOutOfRange : ErrorCode::kUnsupported, "{}: {}", name,
                  column.status().message());
    }
    return *table.SetColumn(place, table.schema()->field(place), *column);
  }

  // The columns in the order of the first file, and with its kinds of lists.
  Result<std::shared_ptr<arrow::Table>> as_the_first(const arrow::Table& table, const ArrowRows& source) const {
    const auto differ = [&](std::string_view what) {
      return fail(ErrorCode::kUnsupported, "{}: its columns are not those of {}: {}", source.name(), first_, what);
    };
    std::vector<ChunkedPointer> columns;
    for (const auto& field : schema_->fields()) {
      const int place = table.schema()->GetFieldIndex(field->name());
      if (place < 0) return differ("it has no " + field->name());
      auto column = fitted(table.column(place), field->type());
      if (!column.ok()) return fail(ErrorCode::kInternal, "{}: {}", source.name(), column.status().message());
      if (*column == nullptr) {
        return differ(field->name() + " holds " + table.column(place)->type()->ToString() + ", not " +
                      field->type()->ToString());
      }
      columns.push_back(*std::move(column));
    }
    for (const auto& field : table.schema()->fields()) {
      if (schema_->GetFieldIndex(field->name()) < 0) return differ(first_ + " has no " + field->name());
    }
    return arrow::Table::Make(schema_, std::move(columns), table.num_rows());
  }

  // What pandas notes says how many rows there were.
  static std::shared_ptr<const arrow::KeyValueMetadata> kept_metadata(const arrow::Schema& schema) {
    auto kept = std::make_shared<arrow::KeyValueMetadata>();
    if (schema.metadata() == nullptr) return kept;
    const int place = schema.metadata()->FindKey("huggingface");
    if (place >= 0) kept->Append("huggingface", features_for_all_versions(schema.metadata()->value(place)));
    return kept;
  }

  Status begin(const arrow::Table& table, const ArrowRows& source) {
    schema_ = table.schema()->WithMetadata(kept_metadata(*table.schema()));
    first_ = source.name();
    return written(source, [&]() -> arrow::Status {
      ARROW_ASSIGN_OR_RAISE(writer_, open_writer(*schema_, sink_));
      return {};
    });
  }

  template <class Call>
  Status written(const ArrowRows& source, const Call& call) const {
    const Status status = source.explained(call);
    return sink_->error ? Status(tl::unexpected(*sink_->error)) : status;
  }

  const std::shared_ptr<ArrowSink> sink_;
  std::shared_ptr<arrow::Schema> schema_;
  std::string first_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
};

Result<std::unique_ptr<RowSource>> open_arrow_rows(const RandomReader& file) {
  auto rows = std::make_unique<ArrowRows>(file);
  RETURN_IF_ERROR(rows->open());
  return rows;
}

}  // namespace
}  // namespace millrace::formats

extern "C" {

[[gnu::visibility("default")]] void millrace_open_rows(
    const millrace::RandomReader& file, millrace::Result<std::unique_ptr<millrace::formats::RowSource>>& source) {
  source = millrace::formats::open_arrow_rows(file);
}

[[gnu::visibility("default")]] millrace::formats::RowCopier* millrace_row_copier(millrace::ByteSink& out) {
  return std::make_unique<millrace::formats::ArrowCopier>(out).release();
}
}
