// SPDX-License-Identifier: Apache-2.0
#pragma once

// Names below ROOT (docs/format/checkpoint.md) and listings of one level. Functions are pure, except the listings;
// thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kLatestName = "latest";
inline constexpr std::string_view kRemovingName = "removing";  // in a step's directory while its files are removed

std::string step_name(int64_t step);                            // "step-000000000100"
std::optional<int64_t> parse_step_name(std::string_view name);  // accepts only names that step_name() returns

// The layout of the ranks' files in the folder of an attempt. A value.
struct RankPlaces {
  static constexpr int64_t kRanksOfFolder = 1000;

  int64_t world_size = 1;
  bool in_folders = false;  // one folder for each thousand ranks: format version 2

  // Returns the layout of new steps. Folders of tens of thousands of files overload metadata servers.
  static RankPlaces of_new(int64_t world_size) { return {world_size, world_size > kRanksOfFolder}; }

  std::string folder(int64_t rank) const;  // "", or "ranks-00003"
  std::string file(int64_t rank) const;    // "rank-00000-of-00002.safetensors", below its folder
  std::string record(int64_t rank) const;  // "part-00000-of-00002.json", below its folder
  // "failed-00000-of-00002.json", below its folder: failure.h
  std::string failure(int64_t rank) const;
};

// Returns the restart count of an attempt, 3 for "r0003-9f1c2ab4"; nullopt when `attempt` is not of that form.
std::optional<int64_t> restart_of(std::string_view attempt);

inline Location step_location(const Location& root, int64_t step) {
  return root.child(step_name(step));
}

// Returns the prefix that every key below `location` has.
std::string prefix_below(const Location& location);

// The entries directly below a location. Their names begin after the location's key.
struct Level {
  std::vector<std::string> directories;
  std::vector<ObjectInfo> objects;
};
[[nodiscard]] Result<Level> list_level(const Location& location);

// Lists the files in those folders below `attempt` that hold the files of `ranks`. The names begin below `attempt`.
[[nodiscard]] Result<std::vector<ObjectInfo>> list_rank_files(const Location& attempt, const RankPlaces& places,
                                                              std::span<const int64_t> ranks);

// Lists the step directories below `root`, committed or not, ascending.
[[nodiscard]] Result<std::vector<int64_t>> list_step_directories(const Location& root);

// Lists every key below `location`, at any depth.
[[nodiscard]] Result<std::vector<std::string>> list_keys(const Location& location);

}  // namespace millrace::checkpoint
