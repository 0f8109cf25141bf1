// SPDX-License-Identifier: Apache-2.0
#pragma once

// The lists of episodes and tasks, of every version. What is wrong in them goes to the report, and the rest is read.

#include <string>
#include <vector>

#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

enum class StatsOfEpisodes { kRead, kLeave };

// meta/episodes.jsonl. LR036, and LR019 where a line lacks a key.
void parse_episodes(std::string_view text, Dataset& dataset, Report& report);
// meta/tasks.jsonl. LR036.
void parse_tasks(std::string_view text, Dataset& dataset, Report& report);
// meta/episodes_stats.jsonl. LR036, LR055.
void parse_episode_stats(std::string_view text, Dataset& dataset, Report& report);

// meta/episodes/**.parquet. LR007, LR019, LR020, LR055. Errors: unsupported (no library), cancelled, those of reading.
[[nodiscard]] Status read_episode_tables(Dataset& dataset, Report& report, StatsOfEpisodes stats);
// meta/tasks.parquet. LR007, LR034. Errors: as above.
[[nodiscard]] Status read_task_table(Dataset& dataset, Report& report);

// Which files speak for v2.x, and which for v3.0; a tree that is mixed has both.
struct Layout {
  std::vector<std::string> v2, v3;  // what speaks for it, as a sentence's part
  bool is_mixed() const { return !v2.empty() && !v3.empty(); }
};
Layout layout_of(const Tree& tree);

}  // namespace millrace::lerobot
