// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of a repair. Each adds to `fixes` and `left` of the plan. Private to this room.

#include <string>

#include "millrace/lerobot/python_json.h"
#include "millrace/lerobot/repair.h"
#include "millrace/lerobot/write_stats.h"

namespace millrace::lerobot {

// Changes `info`, which is info.json as it was read.
void plan_info(Json& info, Repair& repair);

// Finds data files for `clocks`: those with a timestamp that is not frame_index / fps, where frame_index counts the
// rows of each episode. Errors: cancelled, unsupported (the Parquet library).
[[nodiscard]] Status plan_clocks(const RepairOptions& options, Repair& repair);

// The data file with the timestamps of its frames. Errors: corruption, those of reading.
[[nodiscard]] Result<NewFile> mended_clock(const Dataset& dataset, const std::string& path);

// Compares stored statistics with those of all rows; those of cameras are computed only where they are missing.
// REQUIRES: plan_clocks was called. Errors: cancelled.
[[nodiscard]] Status plan_stats(const RepairOptions& options, Repair& repair);

}  // namespace millrace::lerobot
