// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the tables of meta/ in the form of v3.0. Pure functions; thread-safe.

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "millrace/formats/table_writer.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

// Makes meta/tasks.parquet. The number of a text is its position in `texts`. LeRobot reads the table with pandas and
// expects the text as the index.
formats::TableToWrite task_table(const std::vector<std::string>& texts);

// Makes a column of nested lists of numbers, one value per row. The lists are as deep as those of the first value. The
// numbers are int64 if `is_count` is set, else float64. Errors: corruption (a value that is not a number, or lists of
// another depth).
[[nodiscard]] Result<formats::ColumnToWrite> stat_column(std::string name, std::span<const Json* const> values,
                                                         bool is_count);

}  // namespace millrace::lerobot
