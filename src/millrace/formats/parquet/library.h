// SPDX-License-Identifier: Apache-2.0
#pragma once

// The interface between a Parquet adapter and the program that opens it. The version shows whether one build made
// both.

#include <cstdint>
#include <memory>

#include "millrace/formats/columns.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/table_writer.h"

namespace millrace::formats {

// The file's name ends with the number in Arrow's soname: libmillrace_parquet_2600.so goes with libarrow.so.2600.
inline constexpr const char* kParquetLibrary = "libmillrace_parquet_";
inline constexpr std::string_view kParquetVersion = MILLRACE_VERSION " " __VERSION__;
inline constexpr const char* kParquetVersionSymbol = "millrace_parquet_version";
inline constexpr const char* kOpenTableSymbol = "millrace_open_table";
inline constexpr const char* kOpenColumnsSymbol = "millrace_open_columns";
using OpenTable = void (*)(const RandomReader& file, const DocumentOptions& options, int64_t begin_row,
                           Result<std::unique_ptr<DocumentSource>>& source);
inline constexpr const char* kWriteTableSymbol = "millrace_write_table";
using OpenColumns = void (*)(const RandomReader& file, Result<std::unique_ptr<ColumnTable>>& table);
using WriteTable = void (*)(const TableToWrite& table, ByteSink& out, Status& status);
inline constexpr const char* kOpenRowsSymbol = "millrace_open_rows";
using OpenRows = void (*)(const RandomReader& file, Result<std::unique_ptr<RowSource>>& source);
inline constexpr const char* kRowCopierSymbol = "millrace_row_copier";
using NewRowCopier = RowCopier* (*)(ByteSink& out);
inline constexpr const char* kReplaceColumnsSymbol = "millrace_replace_columns";
using ReplaceColumns = void (*)(const RandomReader& file, std::span<const ColumnToWrite> columns, ByteSink& out,
                                Status& status);

struct ParquetLibrary {
  OpenTable open_table = nullptr;
  OpenColumns open_columns = nullptr;
  WriteTable write_table = nullptr;
  OpenRows open_rows = nullptr;
  NewRowCopier row_copier = nullptr;
  ReplaceColumns replace_columns = nullptr;
};

// Opens the adapter at the first call, and returns the same one later. Errors: unsupported (no adapter fits the
// installed pyarrow; says what to install). Thread-safe.
[[nodiscard]] Result<const ParquetLibrary*> parquet_library();

}  // namespace millrace::formats
