// SPDX-License-Identifier: Apache-2.0
#pragma once

// The checks, a function for those that look at the same thing. Each takes what was read and puts what it finds into
// the report; none reads what it is not given, but for those with a Status. Private to this room.

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
  std::vector<std::string> pointers;         // paths that hold a Git LFS pointer, sorted; opened by no other check
  std::vector<std::string_view> task_texts;  // by task_index

  bool is_pointer(std::string_view path) const;
};

// LR001 to LR030 as far as info.json alone tells.
void check_info(const Info& info, Report& report);

// LR002, LR003, LR004, LR011 to LR017, LR020, LR032, LR034, LR041 (files), LR061.
void check_episodes(const Checking& checking);

// The footers of all data files, and their rows where ValidateOptions::rows asks for them: LR007, LR011, LR018, LR021,
// LR023 to LR027, LR033, LR035, LR037 to LR039, LR058, LR062, LR070, LR074, LR075 (data), LR076.
[[nodiscard]] Status check_data_files(const Checking& checking);

// The boxes of all videos: LR008, LR031, LR038, LR040, LR042 to LR054, LR075 (videos), LR077.
struct VideoCounts {
  int64_t read = 0, decoded = 0;
};
[[nodiscard]] Status check_videos(const Checking& checking, VideoCounts& counts);

// LR055 to LR060.
void check_stats(const Checking& checking);

// LR063 to LR070, but for what needs rows.
[[nodiscard]] Status check_groot(const Checking& checking);

// A group of modality.json: the numbers [start, end) of a column.
struct Group {
  std::string kind, name, column;  // "state" or "action"
  int64_t start = 0, end = 0;
  std::string rotation;  // "quaternion", ...; empty: none
};
// Those that are well formed. Empty without the file.
std::vector<Group> read_groups(const Tree& tree);

// The texts of Dataset::tasks by their number, which they keep alive.
std::vector<std::string_view> texts_by_index(const Dataset& dataset);

// Runs `work(i)` for i in [0, count) on the executor, at most until one fails or the stop token is set; the first
// error.
[[nodiscard]] Status for_all(const Checking& checking, int64_t count, const std::function<Status(int64_t)>& work);

}  // namespace millrace::lerobot
