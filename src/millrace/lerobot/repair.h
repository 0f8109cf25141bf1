// SPDX-License-Identifier: Apache-2.0
#pragma once

// Repairs damage whose right values follow from the dataset's files without guessing: info.json, timestamps that are
// not frame_index / fps, and statistics that are missing or wrong. Thread-safe.

#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

struct RepairOptions {
  bool rows = true;  // false: repairs info.json only; reads no row and decodes no frame
  int threads = 0;   // 0: one per processor, or 16 for a service
  Progress* progress = nullptr;
  std::stop_token stop;
};

struct Fix {
  int rule = 0;               // the rule that it satisfies: 11 is LR011
  std::string file;           // below the root
  std::string key;            // a key of info.json, a column or a feature
  std::string before, after;  // JSON for info.json; `before` is empty if there was no value
};

struct Repair {
  Dataset dataset;
  std::vector<Fix> fixes;
  std::vector<std::string> left;  // damage that cannot be repaired, one sentence each
  // The changes that write_repair makes:
  std::set<std::string> clocks;  // data files whose timestamps are replaced
  ComputedStats stats;           // features whose statistics of the dataset are replaced
  ComputedStats episode_stats;   // features whose statistics of episodes are replaced
  std::string info;              // new text of info.json; empty: it stays as it is
  std::string info_version;      // version of the info.json that was read
};

// Plans a repair and writes nothing. Errors: those of read_dataset; corruption (info.json is missing or no JSON, or an
// episode list has lines or tables that cannot be read, so that the totals are unknown), cancelled. Rows or videos
// that cannot be read are named in `left`.
[[nodiscard]] Result<Repair> plan_repair(const Location& root, const RepairOptions& options = {});

// Replaces the files: data, then statistics, then info.json. Each file is replaced as a whole, and only if it is still
// the file that was read. After a stopped run, a new plan continues the repair. Errors: unavailable (a file was
// changed meanwhile), those of reading and writing.
[[nodiscard]] Status write_repair(const Location& root, const Repair& repair);

}  // namespace millrace::lerobot
