// SPDX-License-Identifier: Apache-2.0
#pragma once

// The parts of a repair. Each adds to `fixes` and `left` of the plan. Private to this room.

#include <string>

#include "millrace/lerobot/python_json.h"
#include "millrace/lerobot/repair.h"
#include "millrace/lerobot/write_stats.h"

namespace millrace::lerobot {

// Corrects `info`, the info.json as it was read.
void plan_info(Json& info, Repair& repair);

// Finds the data files for Repair::clocks: those with a timestamp that is not frame_index / fps, where frame_index
// counts the rows of each episode. Errors: cancelled, unsupported (the Parquet library).
[[nodiscard]] Status plan_clocks(const RepairOptions& options, Repair& repair);

// Returns the data file with corrected timestamps. Errors: corruption, those of reading.
[[nodiscard]] Result<NewFile> mended_clock(const Dataset& dataset, const std::string& path);

// Compares the stored statistics with those of all rows. Computes statistics of cameras only where they are missing.
// REQUIRES: plan_clocks was called. Errors: cancelled.
[[nodiscard]] Status plan_stats(const RepairOptions& options, Repair& repair);

}  // namespace millrace::lerobot
