// SPDX-License-Identifier: Apache-2.0
#include <arrow/api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "millrace/formats/parquet/arrow_file.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

constexpr int64_t kMaxBatchRows = 1024;
constexpr std::string_view kWhitespace = " \t\n\r\v\f";

class Table final : public DocumentSource {
 public:
  Table(const RandomReader& file, const DocumentOptions& options, int64_t begin_row)
      : name_(file.name()), options_(options), row_(begin_row), file_(std::make_shared<ArrowFile>(file)) {}

  // Arrow's Parquet answers some errors and throws others.
  template <class Function>
  auto guarded(Function&& function) -> decltype(function()) {
    try {
      return function();
    } catch (const std::exception& thrown) {
      return tl::unexpected(explained(arrow::Status::IOError(thrown.what())));
    }
  }

  Status open() {
    return guarded([&]() -> Status {
      auto properties = parquet::ReaderProperties(arrow::default_memory_pool());
      properties.enable_buffered_stream();              // page by page, not whole columns
      properties.set_page_checksum_verification(true);  // where the writer left one
      parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
      parquet::arrow::FileReaderBuilder builder;
      if (auto opened = builder.Open(file_, properties); !opened.ok()) return tl::unexpected(explained(opened));
      auto built = builder.properties(arrow_properties)->Build();
      if (!built.ok()) return tl::unexpected(explained(built.status()));
      reader_ = std::move(*built);
      RETURN_IF_ERROR(find_column());
      reader_->set_batch_size(batch_size());
      return move_to_row();
    });
  }

  Result<std::optional<DocumentChunk>> next() override {
    return guarded([&]() -> Result<std::optional<DocumentChunk>> {
      DocumentChunk chunk;
      chunk.offset = row_;
      chunk.first_line = row_ + 1;
      while (static_cast<int64_t>(chunk.text.size()) < options_.chunk_bytes && !chunk.left_out) {
        if (at_ == rows_) {
          ASSIGN_OR_RETURN(const bool more, next_batch());
          if (!more) break;
          continue;
        }
        RETURN_IF_ERROR(add_row(chunk));
      }
      chunk.end = row_;
      chunk.file_bytes = file_bytes();
      if (chunk.end == chunk.offset) return std::nullopt;
      return std::optional(std::move(chunk));
    });
  }

 private:
  const parquet::FileMetaData& metadata() const { return *reader_->parquet_reader()->metadata(); }

  Error explained(const arrow::Status& status) const {
    if (auto error = file_->error()) return *std::move(error);
    return Error(ErrorCode::kCorruption, fmt::format("{}: {}", name_, status.message()));
  }

  Status find_column() {
    const parquet::SchemaDescriptor& schema = *metadata().schema();
    std::vector<std::string> names;
    for (int i = 0; i < schema.num_columns(); ++i) {
      const parquet::ColumnDescriptor& column = *schema.Column(i);
      names.push_back(column.path()->ToDotString());
      if (names.back() != options_.text_field) continue;
      if (column.physical_type() != parquet::Type::BYTE_ARRAY || column.max_repetition_level() > 0) {
        return fail(ErrorCode::kUnsupported, "{}: the column {} holds no strings", name_, names.back());
      }
      column_ = i;
      depth_ = column.path()->ToDotVector().size();
      return {};
    }
    return fail(ErrorCode::kNotFound, "{}: no column is called {}; there are {}", name_, options_.text_field,
                fmt::join(names, ", "));
  }

  // As many rows as make up about a chunk: rows may be large.
  int64_t batch_size() const {
    int64_t bytes = 0;
    for (int i = 0; i < metadata().num_row_groups(); ++i) {
      bytes += metadata().RowGroup(i)->ColumnChunk(column_)->total_uncompressed_size();
    }
    return std::clamp<int64_t>(options_.chunk_bytes * metadata().num_rows() / std::max<int64_t>(bytes, 1), 1,
                               kMaxBatchRows);
  }

  // The row group of row_, and the number of its rows before row_.
  Status move_to_row() {
    const int64_t rows = metadata().num_rows();
    if (row_ > rows) return fail(ErrorCode::kOutOfRange, "{}: it ends before row {}", name_, row_);
    int64_t left = row_;
    while (group_ < metadata().num_row_groups() && left >= metadata().RowGroup(group_)->num_rows()) {
      left -= metadata().RowGroup(group_)->num_rows();
      ++group_;
    }
    while (left > 0) {
      ASSIGN_OR_RETURN(const bool more, next_batch());
      if (!more) return fail(ErrorCode::kCorruption, "{}: a row group is shorter than it says", name_);
      at_ = std::min(left, rows_);
      left -= at_;
    }
    return {};
  }

  // The next rows into values_. False at the table's end.
  Result<bool> next_batch() {
    for (;;) {
      if (batches_ == nullptr) {
        if (group_ == metadata().num_row_groups()) return false;
        auto opened = reader_->GetRecordBatchReader({group_}, {column_});
        if (!opened.ok()) return tl::unexpected(explained(opened.status()));
        batches_ = std::move(*opened);
      }
      std::shared_ptr<arrow::RecordBatch> batch;
      if (const auto read = batches_->ReadNext(&batch); !read.ok()) return tl::unexpected(explained(read));
      if (batch == nullptr) {
        batches_.reset();
        ++group_;
        continue;
      }
      return take_values(*batch);
    }
  }

  Result<bool> take_values(const arrow::RecordBatch& batch) {
    std::shared_ptr<arrow::Array> values = batch.column(0);
    for (size_t i = 1; i < depth_; ++i) {
      // Flattened, so that what is inside a null is null.
      auto inner = static_cast<const arrow::StructArray&>(*values).GetFlattenedField(0);
      if (!inner.ok()) return tl::unexpected(explained(inner.status()));
      values = std::move(*inner);
    }
    indices_.reset();
    if (values->type_id() == arrow::Type::DICTIONARY) {
      indices_ = std::static_pointer_cast<arrow::DictionaryArray>(values);
      values = indices_->dictionary();
    }
    rows_ = indices_ ? indices_->length() : values->length();
    switch (values->type_id()) {
      case arrow::Type::STRING:
      case arrow::Type::BINARY:
      case arrow::Type::LARGE_STRING:
      case arrow::Type::LARGE_BINARY:
        break;
      default:
        return fail(ErrorCode::kUnsupported, "{}: the column {} is of type {}, not a string", name_,
                    options_.text_field, values->type()->ToString());
    }
    values_ = std::move(values);
    at_ = 0;
    return true;
  }

  bool is_null() const { return indices_ ? indices_->IsNull(at_) : values_->IsNull(at_); }

  std::string_view value() const {
    const int64_t at = indices_ ? indices_->GetValueIndex(at_) : at_;
    const bool large =
        values_->type_id() == arrow::Type::LARGE_STRING || values_->type_id() == arrow::Type::LARGE_BINARY;
    return large ? static_cast<const arrow::LargeBinaryArray&>(*values_).GetView(at)
                 : static_cast<const arrow::BinaryArray&>(*values_).GetView(at);
  }

  Status add_row(DocumentChunk& chunk) {
    const int64_t row = row_;
    const std::string_view text = is_null() ? std::string_view() : value();
    if (static_cast<int64_t>(text.size()) > options_.max_document_bytes) {
      const auto reason = fmt::format("longer than {} bytes", options_.max_document_bytes);
      if (!options_.leave_out_long) {
        return fail(ErrorCode::kResourceExhausted, "{}: the document in row {} is {}", name_, row, reason);
      }
      chunk.left_out = LeftOut{row, row + 1, reason};
    } else if (!options_.keep_empty && text.find_first_not_of(kWhitespace) == std::string_view::npos) {
      const size_t before = chunk.documents.size();
      if (chunk.empties.empty() || chunk.empties.back().before != before) chunk.empties.push_back({before, 0});
      ++chunk.empties.back().count;
    } else {
      chunk.documents.push_back({chunk.text.size(), chunk.text.size() + text.size()});
      chunk.rows.push_back(row);
      chunk.text += text;
    }
    ++at_;
    ++row_;
    return {};
  }

  // By rows, since pages are not seen here.
  int64_t file_bytes() const {
    const auto size = file_->GetSize();
    const int64_t rows = std::max<int64_t>(metadata().num_rows(), 1);
    return static_cast<int64_t>(static_cast<double>(*size) * static_cast<double>(row_) / static_cast<double>(rows));
  }

  const std::string name_;
  const DocumentOptions options_;
  int64_t row_;  // the next one of the table
  const std::shared_ptr<ArrowFile> file_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  int column_ = 0;    // among the leaves
  size_t depth_ = 1;  // of the column: 1 is not a struct
  int group_ = 0;
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of the row group
  std::shared_ptr<arrow::Array> values_;               // a batch's, or what its indices are into
  std::shared_ptr<arrow::DictionaryArray> indices_;
  int64_t rows_ = 0;  // of the batch
  int64_t at_ = 0;    // of them: row_
};

}  // namespace
}  // namespace millrace::formats

extern "C" {

[[gnu::visibility("default")]] extern const char millrace_parquet_version[];
const char millrace_parquet_version[] = MILLRACE_VERSION " " __VERSION__;

[[gnu::visibility("default")]] void millrace_open_table(
    const millrace::RandomReader& file, const millrace::formats::DocumentOptions& options, int64_t begin_row,
    millrace::Result<std::unique_ptr<millrace::formats::DocumentSource>>& source) {
  auto table = std::make_unique<millrace::formats::Table>(file, options, begin_row);
  if (auto opened = table->open(); !opened) {
    source = tl::unexpected(std::move(opened).error());
  } else {
    source = std::move(table);
  }
}
}
