// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/write_stats.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "millrace/formats/columns.h"
#include "millrace/formats/table_writer.h"
#include "millrace/lerobot/meta_tables.h"
#include "millrace/lerobot/python_json.h"
#include "millrace/lerobot/stored_stats.h"

namespace millrace::lerobot {
namespace {

constexpr size_t kNamesOfV21 = kFirstQuantile;  // no quantiles

bool has_groot_stats(const Dataset& dataset) {
  return is_v2(dataset.info.version) &&
         (dataset.tree.find("meta/modality.json") != nullptr ||
          (dataset.info.version == Version::kV21 && dataset.tree.find(kStatsFile) != nullptr));
}

// The stored text as JSON, an empty object where there is no file; `version` gets the file's.
Result<Json> stored_json(const Dataset& dataset, std::string_view path, std::string& version) {
  if (dataset.tree.find(path) == nullptr) return Json::object();
  ASSIGN_OR_RETURN(const auto reader, dataset.tree.open(path));
  version = reader->version();
  ASSIGN_OR_RETURN(const std::string text, read_all(*reader, kMostStatsText));
  auto json = with_context(parse_python_json(text), path);
  // A file that cannot be read has no statistics to keep.
  if (!json || !json->is_object()) return Json::object();
  return json;
}

Result<NewFile> global_file(const Dataset& dataset, const ComputedStats& stats) {
  NewFile file{.path = std::string(kStatsFile), .content = {}, .version = {}};
  ASSIGN_OR_RETURN(Json all, stored_json(dataset, file.path, file.version));
  const bool groot = has_groot_stats(dataset);
  for (const auto& feature : stats.features) {
    const bool is_float = feature.dtype.starts_with("float");
    if (groot && !is_float && !feature.stats.is_image) {
      all.erase(feature.name);
      continue;
    }
    if (groot && feature.stats.is_image && member(all, feature.name) == nullptr) continue;
    all[feature.name] = groot && is_float ? groot_stats_json(feature.stats) : stats_json(feature.stats);
  }
  file.content = all.dump(4) + "\n";
  return file;
}

// The stored `stats` of each episode, by its number.
Result<std::map<int64_t, Json>> stored_lines(const Dataset& dataset, NewFile& file) {
  std::map<int64_t, Json> lines;
  if (dataset.tree.find(file.path) == nullptr) return lines;
  ASSIGN_OR_RETURN(const auto reader, dataset.tree.open(file.path));
  file.version = reader->version();
  ASSIGN_OR_RETURN(const std::string text, read_all(*reader, kMostStatsText));
  Status status;
  for_each_line(text, [&](int64_t number, std::string_view content) {
    if (!status || content.empty()) return;
    const auto json = parse_python_json(content);
    if (!json) {
      status = fail(ErrorCode::kCorruption, "{}, line {}: {}", file.path, number, json.error().message());
      return;
    }
    const Json* const stats = member(*json, "stats");
    if (stats != nullptr && stats->is_object()) lines[integer_at(*json, "episode_index").value_or(-1)] = *stats;
  });
  if (!status) return tl::unexpected(status.error());
  return lines;
}

Result<NewFile> lines_file(const Dataset& dataset, const ComputedStats& stats) {
  NewFile file{.path = std::string(kEpisodeStatsLines), .content = {}, .version = {}};
  ASSIGN_OR_RETURN(auto stored, stored_lines(dataset, file));
  for (size_t i = 0; i < dataset.episodes.size(); ++i) {
    const int64_t index = dataset.episodes[i].index;
    Json all = stored.contains(index) ? std::move(stored[index]) : Json::object();
    for (const auto& feature : stats.features) all[feature.name] = stats_json(feature.episodes[i], kNamesOfV21);
    file.content += Json{{"episode_index", index}, {"stats", std::move(all)}}.dump() + "\n";
  }
  return file;
}

// One statistic of a feature for these episodes: a column of meta/episodes.
formats::ColumnToWrite stat_values_of(const ComputedStats::OfFeature& feature, const std::vector<size_t>& positions,
                                      size_t name) {
  formats::ColumnToWrite column{.name = fmt::format("stats/{}/{}", feature.name, kStatNames[name])};
  std::vector<double> values;
  std::vector<int32_t> rows = {0}, ones = {0};
  for (const size_t position : positions) {
    const auto& here = feature.episodes[position].values[name];
    values.insert(values.end(), here.begin(), here.end());
    rows.push_back(static_cast<int32_t>(values.size()));
  }
  while (ones.size() <= values.size()) ones.push_back(static_cast<int32_t>(ones.size()));
  column.values = std::move(values);
  column.offsets = {rows};
  if (feature.stats.is_image) column.offsets = {rows, ones, ones};
  return column;
}

formats::ColumnToWrite stat_counts_of(const ComputedStats::OfFeature& feature, const std::vector<size_t>& positions) {
  std::vector<int64_t> counts;
  std::vector<int32_t> offsets = {0};
  for (const size_t position : positions) {
    counts.push_back(feature.episodes[position].count);
    offsets.push_back(static_cast<int32_t>(counts.size()));
  }
  return {.name = fmt::format("stats/{}/count", feature.name), .values = counts, .offsets = {offsets}};
}

Result<NewFile> episode_table(const Dataset& dataset, const ComputedStats& stats, const std::string& path) {
  NewFile file{.path = path, .content = {}, .version = {}};
  ASSIGN_OR_RETURN(const auto reader, dataset.tree.open(path));
  file.version = reader->version();
  ASSIGN_OR_RETURN(const auto table, formats::open_columns(*reader));
  const std::vector<std::string> wanted = {"episode_index"};
  ASSIGN_OR_RETURN(const auto values, formats::read_columns(*table, wanted, kMostStatsRows));
  std::vector<size_t> positions;
  for (const int64_t index : values.front().integers) {
    const auto position = static_cast<size_t>(index);
    if (index < 0 || position >= dataset.episodes.size() || dataset.episodes[position].index != index) {
      return fail(ErrorCode::kCorruption, "{}: episode {} is out of order (LR015)", path, index);
    }
    positions.push_back(position);
  }
  std::vector<formats::ColumnToWrite> columns;
  for (const auto& feature : stats.features) {
    for (size_t name = 0; name < kStatNames.size(); ++name) columns.push_back(stat_values_of(feature, positions, name));
    columns.push_back(stat_counts_of(feature, positions));
  }
  MemorySink out;
  RETURN_IF_ERROR(formats::replace_columns(*reader, columns, out));
  file.content = std::string(as_text(out.bytes()));
  return file;
}

}  // namespace

bool keeps_episode_stats(const Dataset& dataset) {
  return dataset.info.version == Version::kV30 || dataset.info.version == Version::kV21;
}

Result<std::vector<NewFile>> stats_files(const Dataset& dataset, const ComputedStats& whole,
                                         const ComputedStats& by_episode) {
  std::vector<NewFile> files;
  if (!by_episode.features.empty() && dataset.info.version == Version::kV21) {
    ASSIGN_OR_RETURN(files.emplace_back(), lines_file(dataset, by_episode));
  }
  for (const TreeFile& file : dataset.tree.below(kEpisodeTables)) {
    const bool is_table = dataset.info.version == Version::kV30 && file.path.ends_with(".parquet");
    if (by_episode.features.empty() || !is_table) continue;
    ASSIGN_OR_RETURN(files.emplace_back(), episode_table(dataset, by_episode, file.path));
  }
  if (!whole.features.empty() && (dataset.info.version != Version::kV21 || has_groot_stats(dataset))) {
    ASSIGN_OR_RETURN(files.emplace_back(), global_file(dataset, whole));
  }
  return files;
}

Status write_files(const Location& root, const std::vector<NewFile>& files) {
  for (const NewFile& file : files) {
    const Location place = root.child(file.path);
    WriteOptions options;
    if (place.storage->capabilities().conditional_write) {
      options.condition =
          file.version.empty() ? WriteOptions::Condition::kIfAbsent : WriteOptions::Condition::kIfVersion;
      options.version = file.version;
    }
    const auto written = write_object(*place.storage, place.key, file.content, options);
    if (!written && written.error().code() == ErrorCode::kAlreadyExists) {
      return fail(ErrorCode::kUnavailable, "{}: it was changed meanwhile, and it stays; run the command again",
                  place.url);
    }
    if (!written) return tl::unexpected(written.error());
  }
  return {};
}

}  // namespace millrace::lerobot
