// SPDX-License-Identifier: Apache-2.0
#pragma once

// The data files of data/, which cmake/embed.cmake compiles into the program, and a reader for their tables. Each file
// is CSV. Lines with '#' describe the file, the first other line names the columns, and a field with a comma is in
// quotes (no quotes inside). The files are our own: an error in one is a bug, which catalogue_test.cpp finds.

#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::plan::data {

extern const std::string_view k_sources;
extern const std::string_view k_gpus;
extern const std::string_view k_instances;
extern const std::string_view k_prices;

using Row = std::vector<std::string_view>;

// Returns the rows of `csv`; each has as many fields as `columns`. REQUIRES: the file names exactly these columns. The
// views live as long as `csv`.
std::vector<Row> rows_of(std::string_view csv, std::string_view columns);

// Returns a decimal number; 0 for any other text.
double number(std::string_view text);
int64_t whole(std::string_view text);

}  // namespace millrace::plan::data
