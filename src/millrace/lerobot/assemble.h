// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes a dataset from episodes of other datasets. Converting, splitting, merging and deleting share this code. The
// sources are only read. Tables keep their types and values, except for the numbers of episodes, rows and tasks.
// Videos are joined by copying packets, and cut by copying where that is exact (video/edit.h). Private to this room.
// Thread-safe.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "millrace/lerobot/convert.h"
#include "millrace/lerobot/python_json.h"

namespace millrace::lerobot {

struct Source;
class PartialFolder;

// An episode of the result.
struct Pick {
  const Source* source = nullptr;
  size_t episode = 0;  // its position in the source
};

// The parts of one dataset to be made.
struct Assembly {
  std::string name;  // the folder below the target; empty: the target itself
  Version to = Version::kV30;
  bool groot = false;              // makes v2.x with modality.json, and stats.json as GR00T wants it
  bool renumber = true;            // false: episodes, rows and tasks keep the numbers of the only source
  std::vector<Pick> picks;         // not empty
  std::vector<std::string> tasks;  // tasks of the result, by number
  std::map<const Source*, std::vector<int64_t>> task_numbers;  // new number by old number, where they differ
  Json info;                                                   // info.json of the first source
  Json modality;                                               // modality.json of the result; null: none
};

// Creates the folder `target` with one dataset for each of `assemblies`. All files go to `target`.partial; a later run
// with the same sources continues there. Validates each dataset, then renames the folder. Errors: already_exists,
// corruption (a result breaks a rule of error level that no source breaks; a file of a source is damaged: its name),
// unsupported (a library is missing; statistics of each episode are missing), cancelled, those of reading and writing.
[[nodiscard]] Result<std::vector<MadeDataset>> assemble(const std::vector<Assembly>& assemblies,
                                                        const std::string& target, const MakeOptions& options);

}  // namespace millrace::lerobot
