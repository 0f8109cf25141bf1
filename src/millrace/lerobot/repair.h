// SPDX-License-Identifier: Apache-2.0
#pragma once

// Mends what follows from a dataset's files without a guess: info.json, timestamps that are not frame_index / fps, and
// statistics that are missing or wrong. Thread-safe.

#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/dataset.h"

namespace millrace::lerobot {

struct RepairOptions {
  bool rows = true;  // false: info.json only; no row is read and no frame decoded
  int threads = 0;   // 0: one a processor, 16 for a service
  Progress* progress = nullptr;
  std::stop_token stop;
};

struct Fix {
  int rule = 0;               // that it satisfies: 11 is LR011
  std::string file;           // below the root
  std::string key;            // of info.json, or a column, or a feature
  std::string before, after;  // `before` is empty where there was none; those of info.json are JSON
};

struct Repair {
  Dataset dataset;
  std::vector<Fix> fixes;
  std::vector<std::string> left;  // what is wrong and cannot be mended, a sentence each
  // The changes that write_repair makes:
  std::set<std::string> clocks;  // data files that get other timestamps
  ComputedStats stats;           // of the features whose stored ones of the dataset are replaced
  ComputedStats episode_stats;   // of those whose stored ones of the episodes are
  std::string info;              // text of info.json; empty where it stays
  std::string info_version;      // of the info.json that was read
};

// Writes nothing. Errors: as of read_dataset; corruption (info.json is missing or no JSON, an episode list has lines or
// tables that cannot be read: the totals are not known), cancelled. Rows or videos that cannot be read are in `left`.
[[nodiscard]] Result<Repair> plan_repair(const Location& root, const RepairOptions& options = {});

// Replaces the files, each whole and only if it is still the one that was read: data, then statistics, then info.json.
// A run that was stopped is continued by a new plan. Errors: unavailable (a file was changed meanwhile), those of
// reading and writing.
[[nodiscard]] Status write_repair(const Location& root, const Repair& repair);

}  // namespace millrace::lerobot
