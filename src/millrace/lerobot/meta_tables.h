// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tables of meta/ as v3.0 has them. Pure functions; thread-safe.

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "millrace/formats/table_writer.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

// meta/tasks.parquet; the place of a text is its number. LeRobot reads it with pandas and wants the text as the index.
formats::TableToWrite task_table(const std::vector<std::string>& texts);

// A column of numbers in lists as deep as those of the first value, one value a row: of `count` int64, else float64.
// Errors: corruption (a value that is not a number, or lists of another depth).
[[nodiscard]] Result<formats::ColumnToWrite> stat_column(std::string name, std::span<const Json* const> values,
                                                         bool is_count);

}  // namespace millrace::lerobot
