// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the Parquet library and the program that opens it agree on. Both come from one build: the version says so.

#include <cstdint>
#include <memory>

#include "millrace/formats/documents.h"

namespace millrace::formats {

inline constexpr const char* kParquetLibrary = "libmillrace_parquet.so";
inline constexpr std::string_view kParquetVersion = MILLRACE_VERSION " " __VERSION__;
inline constexpr const char* kParquetVersionSymbol = "millrace_parquet_version";
inline constexpr const char* kOpenTableSymbol = "millrace_open_table";
using OpenTable = void (*)(const RandomReader& file, const DocumentOptions& options, int64_t begin_row,
                           Result<std::unique_ptr<DocumentSource>>& source);

}  // namespace millrace::formats
