// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts CSV episodes: each file to an NPZ file, or all files to one packed file. The sources are only read. The
// types of columns are decided once for all files with the same header. A file that cannot be converted is reported,
// and the conversion goes on with the others. Each output is written under a temporary name and renamed. After an
// interruption the next run keeps the finished outputs.

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/formats/csv.h"

namespace millrace::episodes {

enum class ConvertTo { kNpz, kPacked };

struct ConvertOptions {
  ConvertTo to = ConvertTo::kNpz;
  bool compress = false;  // compress NPZ files by deflate; they can then not be mapped
  bool is_float64 = false;
  formats::CsvOptions csv;
  // The folder of the NPZ files, or the packed file. Empty: NPZ files beside the CSV files; for a packed file,
  // episodes.mrpack in their folder, or NAME.mrpack beside a single CSV file.
  std::string output;
  bool dry_run = false;                     // read and check all files, and write none
  int threads = 0;                          // 0: one for each CPU
  int64_t part_bytes = int64_t{256} << 20;  // bytes of CSV packed at once; an interrupted run may lose so many
  std::stop_token stop;
  Progress* progress = nullptr;  // counts bytes and files of CSV
};

struct FailedFile {
  std::string url;
  Error error;
};

// Files with the same columns.
struct ConvertedKind {
  std::vector<std::string> numbers, texts;
  int64_t files = 0;
  std::string first;  // URL of the first file
};

// A number column with values of 2^24 or more that were rounded to float32.
struct RoundedColumn {
  std::string column;
  std::string url;  // first such file, and the row in it
  int64_t row = 0;
  int64_t files = 0;
};

struct ConvertReport {
  std::string output;     // the folder or packed file
  int64_t files = 0;      // CSV files found
  int64_t converted = 0;  // CSV files converted in this run
  int64_t kept = 0;       // CSV files converted earlier, with the same content and options
  int64_t rows = 0;       // rows of the files converted in this run
  int64_t input_bytes = 0, output_bytes = 0;
  std::vector<FailedFile> failed;  // in the order of the files
  std::vector<ConvertedKind> kinds;
  std::vector<RoundedColumn> rounded;
};

// Converts the episodes of `source`. Errors: not_found (no CSV file), cancelled, resource_exhausted (no space:
// finished files stay), already_exists (the packed file's name is taken by another file), those of opening and
// writing. Errors of a single file are in the report.
[[nodiscard]] Result<ConvertReport> convert_episodes(const std::string& source, const ConvertOptions& options);

}  // namespace millrace::episodes
