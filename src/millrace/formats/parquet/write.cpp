// SPDX-License-Identifier: Apache-2.0
#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "millrace/formats/parquet/arrow_file.h"
#include "millrace/formats/parquet/arrow_sink.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

template <class Builder, class T>
arrow::Result<std::shared_ptr<arrow::Array>> array_of(const std::vector<T>& values) {
  Builder builder;
  ARROW_RETURN_NOT_OK(builder.AppendValues(values));
  return builder.Finish();
}

arrow::Result<std::shared_ptr<arrow::Array>> flat_array(const ColumnToWrite& column) {
  if (const auto* whole = std::get_if<std::vector<int64_t>>(&column.values)) {
    return array_of<arrow::Int64Builder>(*whole);
  }
  if (const auto* single = std::get_if<std::vector<float>>(&column.values)) {
    return array_of<arrow::FloatBuilder>(*single);
  }
  if (const auto* twice = std::get_if<std::vector<double>>(&column.values)) {
    return array_of<arrow::DoubleBuilder>(*twice);
  }
  return array_of<arrow::StringBuilder>(std::get<std::vector<std::string>>(column.values));
}

arrow::Result<std::shared_ptr<arrow::Array>> column_array(const ColumnToWrite& column) {
  ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Array> array, flat_array(column));
  if (column.width > 0) {
    return arrow::FixedSizeListArray::FromArrays(array, arrow::fixed_size_list(array->type(), column.width));
  }
  for (size_t level = column.offsets.size(); level-- > 0;) {
    ARROW_ASSIGN_OR_RAISE(const auto offsets, array_of<arrow::Int32Builder>(column.offsets[level]));
    ARROW_ASSIGN_OR_RAISE(array, arrow::ListArray::FromArrays(*offsets, *array));
  }
  return array;
}

arrow::Result<std::shared_ptr<arrow::Table>> arrow_table(const TableToWrite& table) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const ColumnToWrite& column : table.columns) {
    ARROW_ASSIGN_OR_RAISE(arrays.emplace_back(), column_array(column));
    fields.push_back(arrow::field(column.name, arrays.back()->type()));
  }
  std::vector<std::string> keys, values;
  for (const auto& [key, value] : table.metadata) {
    keys.push_back(key);
    values.push_back(value);
  }
  return arrow::Table::Make(arrow::schema(fields, arrow::key_value_metadata(keys, values)), arrays);
}

arrow::Status write_groups(const TableToWrite& table, const std::shared_ptr<ArrowSink>& out) {
  ARROW_ASSIGN_OR_RAISE(const auto rows, arrow_table(table));
  ARROW_ASSIGN_OR_RAISE(const auto writer, open_writer(*rows->schema(), out));
  if (table.row_groups.empty()) {
    ARROW_RETURN_NOT_OK(writer->WriteTable(*rows, std::numeric_limits<int64_t>::max()));
  }
  int64_t begin = 0;
  for (const int64_t count : table.row_groups) {
    ARROW_RETURN_NOT_OK(writer->WriteTable(*rows->Slice(begin, count), count));
    begin += count;
  }
  return writer->Close();
}

Status write_arrow_table(const TableToWrite& table, ByteSink& out) {
  const auto sink = std::make_shared<ArrowSink>(out);
  const auto message = message_of([&] { return write_groups(table, sink); });
  if (!message) return {};
  if (sink->error) return tl::unexpected(*sink->error);
  return fail(ErrorCode::kInternal, "Parquet could not be written: {}", *message);
}

arrow::Result<std::shared_ptr<arrow::Table>> with_columns(std::shared_ptr<arrow::Table> table,
                                                          std::span<const ColumnToWrite> columns) {
  for (const ColumnToWrite& column : columns) {
    ARROW_ASSIGN_OR_RAISE(const auto array, column_array(column));
    const int place = table->schema()->GetFieldIndex(column.name);
    const auto field = arrow::field(column.name, array->type());
    const auto values = std::make_shared<arrow::ChunkedArray>(array);
    if (place >= 0) {
      ARROW_ASSIGN_OR_RAISE(table, table->SetColumn(place, field, values));
    } else {
      ARROW_ASSIGN_OR_RAISE(table, table->AddColumn(table->num_columns(), field, values));
    }
  }
  return table;
}

arrow::Status copy_with_columns(const std::shared_ptr<ArrowFile>& file, std::span<const ColumnToWrite> columns,
                                const std::shared_ptr<ArrowSink>& out) {
  ARROW_ASSIGN_OR_RAISE(const auto reader, parquet::arrow::OpenFile(file, arrow::default_memory_pool()));
  reader->set_use_threads(false);
  const auto metadata = reader->parquet_reader()->metadata();
  std::vector<int> groups(static_cast<size_t>(metadata->num_row_groups()));
  std::iota(groups.begin(), groups.end(), 0);
  ARROW_ASSIGN_OR_RAISE(const auto batches, reader->GetRecordBatchReader(groups));
  ARROW_ASSIGN_OR_RAISE(auto table, batches->ToTable());
  ARROW_ASSIGN_OR_RAISE(table, with_columns(std::move(table), columns));
  ARROW_ASSIGN_OR_RAISE(const auto writer, open_writer(*table->schema(), out));
  int64_t begin = 0;
  for (const int group : groups) {
    const int64_t rows = metadata->RowGroup(group)->num_rows();
    ARROW_RETURN_NOT_OK(writer->WriteTable(*table->Slice(begin, rows), rows));
    begin += rows;
  }
  return writer->Close();
}

Status replace_arrow_columns(const RandomReader& reader, std::span<const ColumnToWrite> columns, ByteSink& out) {
  const auto file = std::make_shared<ArrowFile>(reader);
  const auto sink = std::make_shared<ArrowSink>(out);
  const auto message = message_of([&] { return copy_with_columns(file, columns, sink); });
  if (!message) return {};
  if (sink->error) return tl::unexpected(*sink->error);
  if (const auto error = file->error()) return tl::unexpected(*error);
  return fail(ErrorCode::kCorruption, "{}: {}", reader.name(), *message);
}

}  // namespace
}  // namespace millrace::formats

extern "C" {

[[gnu::visibility("default")]] void millrace_replace_columns(const millrace::RandomReader& file,
                                                             std::span<const millrace::formats::ColumnToWrite> columns,
                                                             millrace::ByteSink& out, millrace::Status& status) {
  status = millrace::formats::replace_arrow_columns(file, columns, out);
}

[[gnu::visibility("default")]] void millrace_write_table(const millrace::formats::TableToWrite& table,
                                                         millrace::ByteSink& out, millrace::Status& status) {
  status = millrace::formats::write_arrow_table(table, out);
}
}
