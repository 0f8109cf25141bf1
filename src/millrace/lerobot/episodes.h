// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the lists of episodes and tasks of every version. Damaged entries are reported, and the rest is read.

#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

enum class StatsOfEpisodes { kRead, kLeave };

// Parses meta/episodes.jsonl. Reports LR036, and LR019 if a line lacks a key.
void parse_episodes(std::string_view text, Dataset& dataset, Report& report);
// Parses meta/tasks.jsonl. Reports LR036.
void parse_tasks(std::string_view text, Dataset& dataset, Report& report);
// Parses meta/episodes_stats.jsonl. Reports LR036, LR055.
void parse_episode_stats(std::string_view text, Dataset& dataset, Report& report);

// Reads meta/episodes/**.parquet. Reports LR007, LR019, LR020, LR055. Errors: unsupported (no library), cancelled,
// those of reading.
[[nodiscard]] Status read_episode_tables(Dataset& dataset, Report& report, StatsOfEpisodes stats);
// Reads meta/tasks.parquet. Reports LR007, LR034. Errors: those of read_episode_tables.
[[nodiscard]] Status read_task_table(Dataset& dataset, Report& report);

// The signs of v2.x and of v3.0 in a tree. A tree that mixes versions has both.
struct Layout {
  std::vector<std::string> v2, v3;  // each sign as part of a sentence
  bool is_mixed() const { return !v2.empty() && !v3.empty(); }
};
Layout layout_of(const Tree& tree);

}  // namespace millrace::lerobot
