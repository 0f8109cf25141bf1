// SPDX-License-Identifier: Apache-2.0
#pragma once

// The data files of data/, compiled into the program by cmake/embed.cmake, and how their tables are read. Each is CSV:
// lines of '#' say what the file is, the first other line names the columns, and a field with a comma stands in quotes
// (no quotes inside). The files are ours: an error in one is a bug, which catalogue_test.cpp finds.

#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::plan::data {

extern const std::string_view k_sources;
extern const std::string_view k_gpus;
extern const std::string_view k_instances;
extern const std::string_view k_prices;

using Row = std::vector<std::string_view>;

// The rows of `csv`, each of as many fields as `columns` has. REQUIRES: the file names exactly these columns. The views
// live as long as `csv`.
std::vector<Row> rows_of(std::string_view csv, std::string_view columns);

// A decimal number; 0 for any other text.
double number(std::string_view text);
int64_t whole(std::string_view text);

}  // namespace millrace::plan::data
