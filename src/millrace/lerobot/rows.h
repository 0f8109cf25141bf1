// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks the rows of one data file, each once and in order. Private to this room. For one thread.

#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millrace/formats/columns.h"
#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/data_files.h"
#include "millrace/lerobot/numbers.h"

namespace millrace::lerobot {

// Facts of the actions that LR062 compares between episodes.
struct Motion {
  int64_t episode = -1;
  int64_t idle_rows = 0;                // rows at the beginning in which no action changes
  uint64_t hash = 0;                    // hash of all actions
  std::vector<float> min, max;          // [dim]
  std::vector<int64_t> at_min, at_max;  // number of rows at the minimum, at the maximum
  std::vector<uint8_t> is_binary;       // true: takes at most two values, as a gripper does
};

// One file's contribution to the results of the whole dataset.
struct RowResults {
  std::map<std::string, Moments, std::less<>> moments;
  std::vector<Motion> motions;
};

class RowCheck {
 public:
  // REQUIRES: all arguments outlive it; `episodes` are in the order of their rows.
  RowCheck(const Checking& checking, std::string path, const formats::TableFooter& footer,
           std::vector<EpisodeRows> episodes, std::span<const Group> groups);
  ~RowCheck();

  const std::vector<std::string>& columns() const { return columns_; }
  void add(int64_t first_row, std::span<const formats::ColumnValues> values);
  // Returns the results. Call it after the last row.
  RowResults finish();

 private:
  struct Column;
  struct Trouble {
    int64_t first_row = 0, rows = 0;
    std::string message;
  };
  using Troubles = std::map<std::pair<int, std::string>, Trouble>;

  void choose_columns(const formats::TableFooter& footer);
  void begin_episode();
  void end_episode();
  void add_segment(int64_t batch_row, int64_t rows, std::span<const formats::ColumnValues> values);
  void check_vector(Column& column, const formats::ColumnValues& values, int64_t row);
  void check_numbers(Column& column, const double* values, size_t count);
  void check_rotations(const Column& column, const double* values, size_t count);
  void check_integer(const Column& column, int64_t value);
  void check_timestamp(double value);
  void check_language(const Column& column, const formats::ColumnValues& values, int64_t row);
  void add_motion(const double* values, size_t dim);
  void compare_with_stored(const std::string& feature, const Moments& moments);
  void check_tasks_of_episode();
  void trouble(int rule, const std::string& column, std::string message);

  const Checking& checking_;
  const std::string path_;
  const std::vector<EpisodeRows> episodes_;
  std::vector<Group> groups_;
  std::vector<std::string> columns_;
  std::vector<Column> kinds_;  // one per entry of columns_
  RowResults results_;

  // State of the current episode:
  size_t at_ = 0;    // position in episodes_
  int64_t row_ = 0;  // row of the episode, from 0
  Troubles troubles_;
  std::map<std::string, Moments, std::less<>> moments_;
  std::set<int64_t> tasks_seen_;
  double first_time_ = 0, last_time_ = 0;
  Motion motion_;
  std::vector<double> action_before_, flat_;
  bool still_idle_ = true;
};

// Checks LR058 and LR062 over all files together.
void check_moments(const Checking& checking, const std::map<std::string, Moments, std::less<>>& moments);
void check_motions(const Checking& checking, const std::vector<Motion>& motions);

}  // namespace millrace::lerobot
