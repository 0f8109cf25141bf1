// SPDX-License-Identifier: Apache-2.0
#pragma once

// The checks. One function makes the checks that look at the same files. Each function takes data that was read before
// and adds its findings to the report. Only functions that return a Status read files. Private to this room.

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/base/thread/executor.h"
#include "millrace/lerobot/dataset.h"
#include "millrace/lerobot/report.h"
#include "millrace/lerobot/validate.h"

namespace millrace::lerobot {

// Shared by all checks of one dataset.
struct Checking {
  const Dataset& dataset;
  const ValidateOptions& options;
  Report& report;
  Executor& executor;
  std::vector<std::string> pointers;         // paths of Git LFS pointers, sorted; no other check opens them
  std::vector<std::string_view> task_texts;  // by task_index

  bool is_pointer(std::string_view path) const;
};

// Checks LR001 to LR030, as far as info.json alone is enough.
void check_info(const Info& info, Report& report);

// Checks LR002, LR003, LR004, LR011 to LR017, LR020, LR032, LR034, LR041 (files), LR061.
void check_episodes(const Checking& checking);

// Checks the footers of all data files, and their rows if ValidateOptions::rows asks for them: LR007, LR011, LR018,
// LR021, LR023 to LR027, LR033, LR035, LR037 to LR039, LR058, LR062, LR070, LR074, LR075 (data), LR076.
[[nodiscard]] Status check_data_files(const Checking& checking);

// Checks the boxes of all videos: LR008, LR031, LR038, LR040, LR042 to LR054, LR075 (videos), LR077.
struct VideoCounts {
  int64_t read = 0, decoded = 0;
};
[[nodiscard]] Status check_videos(const Checking& checking, VideoCounts& counts);

// Checks LR055 to LR060.
void check_stats(const Checking& checking);

// Checks LR063 to LR070, except for the checks that need rows.
[[nodiscard]] Status check_groot(const Checking& checking);

// A group of modality.json: the numbers [start, end) of a column.
struct Group {
  std::string kind, name, column;  // "state" or "action"
  int64_t start = 0, end = 0;
  std::string rotation;  // "quaternion", ...; empty: none
};
// Reads the well-formed groups of modality.json. Returns none if there is no such file.
std::vector<Group> read_groups(const Tree& tree);

// Returns the texts of Dataset::tasks by task number. REQUIRES: `dataset` outlives the result.
std::vector<std::string_view> texts_by_index(const Dataset& dataset);

// Runs `work(i)` for each i in [0, count) on the executor. Stops early when one fails or the stop token is set.
// Returns the first error.
[[nodiscard]] Status for_all(const Checking& checking, int64_t count, const std::function<Status(int64_t)>& work);

}  // namespace millrace::lerobot
