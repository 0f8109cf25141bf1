// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/stored_stats.h"

#include <map>
#include <nlohmann/json.hpp>

#include "millrace/formats/columns.h"
#include "millrace/lerobot/numbers.h"
#include "millrace/lerobot/python_json.h"
#include "millrace/lerobot/stats.h"

namespace millrace::lerobot {
namespace {

std::map<int64_t, size_t> positions_of(const Dataset& dataset) {
  std::map<int64_t, size_t> positions;
  for (size_t i = 0; i < dataset.episodes.size(); ++i) positions.emplace(dataset.episodes[i].index, i);
  return positions;
}

Status read_stored_lines(const Dataset& dataset, std::vector<StatsByFeature>& all) {
  if (dataset.tree.find(kEpisodeStatsLines) == nullptr) return {};
  ASSIGN_OR_RETURN(const std::string text, dataset.tree.read(kEpisodeStatsLines, kMostStatsText));
  const auto positions = positions_of(dataset);
  Report unread(0);
  Status status;
  for_each_line(text, [&](int64_t line, std::string_view content) {
    if (!status || content.empty()) return;
    const auto json = parse_python_json(content);
    if (!json) {
      status = fail(ErrorCode::kCorruption, "{}, line {}: {}", kEpisodeStatsLines, line, json.error().message());
      return;
    }
    const auto found = positions.find(integer_at(*json, "episode_index").value_or(-1));
    const Json* const stats = member(*json, "stats");
    if (found != positions.end() && stats != nullptr) all[found->second] = parse_stats(*stats, {}, unread);
  });
  return status;
}

Status read_stored_table(const Dataset& dataset, const std::string& path, const std::map<int64_t, size_t>& positions,
                         std::vector<StatsByFeature>& all) {
  constexpr std::string_view kPrefix = "stats/";
  ASSIGN_OR_RETURN(const auto file, dataset.tree.open(path));
  ASSIGN_OR_RETURN(const auto table, formats::open_columns(*file));
  std::vector<std::string> names = {"episode_index"};
  for (const formats::ColumnType& column : table->footer().columns) {
    if (column.name.starts_with(kPrefix)) names.push_back(column.name);
  }
  ASSIGN_OR_RETURN(const auto columns, formats::read_columns(*table, names, kMostStatsRows));
  for (int64_t row = 0; row < columns.front().rows; ++row) {
    const auto found = positions.find(columns.front().integers[static_cast<size_t>(row)]);
    if (found == positions.end()) continue;
    for (size_t i = 1; i < names.size(); ++i) {
      const size_t slash = names[i].rfind('/');
      const std::string feature = names[i].substr(kPrefix.size(), slash - kPrefix.size());
      if (!columns[i].is_null(row)) {
        append_numbers(columns[i], row, all[found->second][feature].values[names[i].substr(slash + 1)]);
      }
    }
  }
  return {};
}

}  // namespace

Result<std::vector<StatsByFeature>> stored_episode_stats(const Dataset& dataset) {
  std::vector<StatsByFeature> all(dataset.episodes.size());
  if (dataset.info.version != Version::kV30) {
    RETURN_IF_ERROR(read_stored_lines(dataset, all));
    return all;
  }
  const auto positions = positions_of(dataset);
  for (const TreeFile& file : dataset.tree.below(kEpisodeTables)) {
    if (file.path.ends_with(".parquet")) RETURN_IF_ERROR(read_stored_table(dataset, file.path, positions, all));
  }
  return all;
}

}  // namespace millrace::lerobot
