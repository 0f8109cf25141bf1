// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/episodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "millrace/formats/columns.h"
#include "millrace/lerobot/rows.h"
#include "millrace/lerobot/stats.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kBatchRows = 1024;
constexpr double kMostWhole = 9e15;                 // beyond which not every whole number is a double
constexpr int64_t kMostFrames = 1'000'000'000'000;  // of an episode, so that sums of them stay numbers
constexpr int64_t kMostTasks = 10'000'000;

using formats::ColumnKind;
using formats::ColumnValues;

// Calls visit(place, object) for each line of a jsonl file; what is no object is LR036.
void for_each_object_line(std::string_view text, const std::string& file, Report& report,
                          const std::function<void(const Place&, const Json&)>& visit) {
  for_each_line(text, [&](int64_t number, std::string_view line) {
    const Place place{.file = file, .line = number};
    if (line.find_first_not_of(" \t") == line.npos) return report.add(36, place, "the line is blank");
    const Result<Json> parsed = parse_python_json(line);
    if (!parsed) return report.add(36, place, parsed.error().message());
    if (!parsed->is_object()) return report.add(36, place, "the line is no object");
    visit(place, *parsed);
  });
}

std::vector<std::string> texts_of(const Json& value) {
  std::vector<std::string> texts;
  if (value.is_string()) texts.push_back(value.get<std::string>());
  if (!value.is_array()) return texts;
  for (const Json& item : value) {
    if (item.is_string()) texts.push_back(item.get<std::string>());
  }
  return texts;
}

float single(const std::vector<double>& values, size_t i) {
  return i < values.size() ? static_cast<float>(values[i]) : std::numeric_limits<float>::quiet_NaN();
}

// Keeps what LR058 and LR059 need of one episode's statistics; `episode` is its place in the list.
void keep_stats(const Feature& feature, const FeatureStats& stats, size_t episode, Dataset& dataset) {
  const auto* count = stats.find("count");
  if (count != nullptr && count->size() == 1 && std::abs((*count)[0]) < kMostWhole) {
    dataset.counted[feature.name] += static_cast<int64_t>((*count)[0]);
  }
  const auto *mean = stats.find("mean"), *std = stats.find("std"), *min = stats.find("min"), *max = stats.find("max");
  const int64_t dim = feature.size();
  if (!feature.is_learned() || dim <= 0 || !mean || !std || !min || !max) return;
  EpisodeStats& kept = dataset.by_episode[feature.name];
  kept.dim = dim;
  const size_t begin = episode * static_cast<size_t>(dim);
  for (auto& [out, values] :
       {std::pair(&kept.mean, mean), std::pair(&kept.std, std), std::pair(&kept.min, min), std::pair(&kept.max, max)}) {
    out->resize(std::max(out->size(), begin + static_cast<size_t>(dim)), std::numeric_limits<float>::quiet_NaN());
    for (size_t i = 0; i < static_cast<size_t>(dim); ++i) (*out)[begin + i] = single(*values, i);
  }
}

// Checks and keeps the statistics of each feature of one episode.
void take_stats(const StatsByFeature& stats, size_t episode, const Place& place, Dataset& dataset, Report& report) {
  ++dataset.episodes_with_stats;
  for (const Feature& feature : dataset.info.features) {
    if (!feature.is_numeric() && !feature.is_picture()) continue;
    const auto found = stats.find(feature.name);
    if (found == stats.end()) {
      // Pictures have none where the statistics are GR00T's or the camera is new.
      if (feature.is_numeric()) {
        Place here = place;
        here.data.column = feature.name;
        report.add(55, here, "the episode has no statistics of it");
      }
      continue;
    }
    check_feature_stats(feature, found->second, place, report);
    keep_stats(feature, found->second, episode, dataset);
  }
}

std::vector<std::string> cell_texts(const ColumnValues& values, int64_t row) {
  std::vector<std::string> texts;
  if (values.kind == ColumnKind::kText) texts.push_back(values.texts[static_cast<size_t>(row)]);
  if (values.kind != ColumnKind::kList || values.fields[0].kind != ColumnKind::kText) return texts;
  const auto begin = static_cast<size_t>(values.offsets[static_cast<size_t>(row)]);
  const auto end = static_cast<size_t>(values.offsets[static_cast<size_t>(row) + 1]);
  for (size_t i = begin; i < end; ++i) texts.push_back(values.fields[0].texts[i]);
  return texts;
}

// One table of meta/episodes/: the columns that are wanted, and those that are there.
class EpisodeTable {
 public:
  EpisodeTable(const std::string& path, const formats::TableFooter& footer, Dataset& dataset, Report& report,
               StatsOfEpisodes stats)
      : path_(path), dataset_(dataset), report_(report) {
    for (const char* name : {"episode_index", "tasks", "length", "data/chunk_index", "data/file_index",
                             "dataset_from_index", "dataset_to_index"}) {
      want(footer, name);
    }
    has_videos_ = true;
    for (const Feature* camera : dataset.info.cameras()) {
      for (const char* name : {"chunk_index", "file_index", "from_timestamp", "to_timestamp"}) {
        has_videos_ = want(footer, fmt::format("videos/{}/{}", camera->name, name)) && has_videos_;
      }
    }
    for (const char* name : {"meta/episodes/chunk_index", "meta/episodes/file_index"}) {
      if (footer.find(name) != nullptr) columns_.emplace_back(name);
    }
    for (const formats::ColumnType& type : footer.columns) {
      if (stats == StatsOfEpisodes::kRead && type.name.starts_with("stats/")) columns_.push_back(type.name);
    }
  }

  const std::vector<std::string>& columns() const { return columns_; }

  void add_rows(int64_t first_row, std::span<const ColumnValues> values) {
    values_ = values;
    const int64_t rows = values.empty() ? 0 : values[0].rows;
    for (int64_t row = 0; row < rows; ++row) add_row(first_row + row, row);
  }

 private:
  bool want(const formats::TableFooter& footer, std::string name) {
    if (footer.find(name) == nullptr) {
      report_.add(19, {.file = path_, .data = {.column = name}}, "the column is missing");
      return false;
    }
    columns_.push_back(std::move(name));
    return true;
  }

  const ColumnValues* find(std::string_view name) const {
    const auto found = std::find(columns_.begin(), columns_.end(), name);
    return found == columns_.end() ? nullptr : &values_[static_cast<size_t>(found - columns_.begin())];
  }

  double number(std::string_view name, int64_t row) const {
    const ColumnValues* values = find(name);
    if (values == nullptr || values->is_null(row)) return -1;
    const bool is_number = values->kind == ColumnKind::kInteger || values->kind == ColumnKind::kFloat;
    return is_number ? values->number(row) : -1;
  }
  int64_t integer(std::string_view name, int64_t row) const {
    const double value = number(name, row);
    return std::abs(value) < kMostWhole ? static_cast<int64_t>(value) : -1;
  }

  void add_row(int64_t table_row, int64_t row) {
    Episode episode;
    episode.index = integer("episode_index", row);
    episode.length = std::clamp<int64_t>(integer("length", row), 0, kMostFrames);
    if (const ColumnValues* tasks = find("tasks"); tasks != nullptr) episode.tasks = cell_texts(*tasks, row);
    episode.data_chunk = integer("data/chunk_index", row);
    episode.data_file = integer("data/file_index", row);
    episode.from_row = integer("dataset_from_index", row);
    episode.to_row = integer("dataset_to_index", row);
    episode.place = {.file = path_, .data = {.episode = episode.index, .row = table_row}};
    for (const Feature* camera : dataset_.info.cameras()) {
      if (!has_videos_) break;
      const std::string prefix = "videos/" + camera->name + "/";
      episode.videos.push_back({integer(prefix + "chunk_index", row), integer(prefix + "file_index", row),
                                number(prefix + "from_timestamp", row), number(prefix + "to_timestamp", row)});
    }
    check_own_place(episode, row);
    add_stats(episode, row);
    dataset_.episodes.push_back(std::move(episode));
  }

  // "meta/episodes/chunk-000/file-002.parquet" says 0 and 2.
  void check_own_place(const Episode& episode, int64_t row) {
    const int64_t chunk = integer("meta/episodes/chunk_index", row), file = integer("meta/episodes/file_index", row);
    if (chunk < 0 || file < 0) return;
    const std::string expected = fmt::format("meta/episodes/chunk-{:03}/file-{:03}.parquet", chunk, file);
    if (expected != path_) report_.add(20, episode.place, fmt::format("the row says that it is in {}", expected));
  }

  void add_stats(const Episode& episode, int64_t row) {
    StatsByFeature stats;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& name = columns_[i];
      if (!name.starts_with("stats/")) continue;
      const size_t slash = name.rfind('/');
      if (slash <= 6) continue;
      std::vector<double> numbers;
      append_numbers(values_[i], row, numbers);
      stats[name.substr(6, slash - 6)].values[name.substr(slash + 1)] = std::move(numbers);
    }
    if (!stats.empty()) take_stats(stats, dataset_.episodes.size(), episode.place, dataset_, report_);
  }

  const std::string path_;
  Dataset& dataset_;
  Report& report_;
  std::vector<std::string> columns_;
  bool has_videos_ = false;
  std::span<const ColumnValues> values_;
};

bool is_parquet_name(std::string_view path) {
  return path.ends_with(".parquet");
}

// Says what is wrong with a table and goes on; what is no fault of the table is passed on.
Status no_table(const std::string& path, const Error& error, Report& report) {
  if (error.code() != ErrorCode::kCorruption) return tl::unexpected(error);
  report.add(7, {.file = path}, error.message());
  return {};
}

Status read_table(const std::string& path, Dataset& dataset, Report& report, StatsOfEpisodes stats) {
  ASSIGN_OR_RETURN(const auto file, dataset.tree.open(path));
  auto table = formats::open_columns(*file);
  if (!table) return no_table(path, table.error(), report);
  EpisodeTable episodes(path, (*table)->footer(), dataset, report, stats);
  const Status read = (*table)->scan(episodes.columns(), kBatchRows, [&](int64_t row, auto values) -> Status {
    episodes.add_rows(row, values);
    return {};
  });
  return read ? Status{} : no_table(path, read.error(), report);
}

}  // namespace

void parse_episodes(std::string_view text, Dataset& dataset, Report& report) {
  const std::string file = "meta/episodes.jsonl";
  for_each_object_line(text, file, report, [&](const Place& place, const Json& json) {
    Episode episode;
    for (const char* key : {"episode_index", "length", "tasks"}) {
      if (member(json, key) == nullptr) report.add(19, place, fmt::format("the line has no {}", key));
    }
    episode.index = integer_at(json, "episode_index").value_or(-1);
    episode.length = std::clamp<int64_t>(integer_at(json, "length").value_or(0), 0, kMostFrames);
    if (const Json* tasks = member(json, "tasks"); tasks != nullptr) episode.tasks = texts_of(*tasks);
    episode.place = place;
    episode.place.data.episode = episode.index;
    dataset.episodes.push_back(std::move(episode));
  });
}

void parse_tasks(std::string_view text, Dataset& dataset, Report& report) {
  dataset.tasks_file = "meta/tasks.jsonl";
  for_each_object_line(text, dataset.tasks_file, report, [&](const Place& place, const Json& json) {
    const auto index = integer_at(json, "task_index");
    const auto task = text_at(json, "task");
    if (!index || !task) report.add(34, place, fmt::format("the line has no {}", index ? "task" : "task_index"));
    dataset.tasks.push_back({index.value_or(-1), task.value_or(""), place});
  });
}

void parse_episode_stats(std::string_view text, Dataset& dataset, Report& report) {
  size_t at = 0;
  for_each_object_line(text, "meta/episodes_stats.jsonl", report, [&](const Place& line, const Json& json) {
    Place place = line;
    const int64_t index = integer_at(json, "episode_index").value_or(-1);
    place.data.episode = index;
    // The lines come in the order of the episodes, as a rule.
    if (at >= dataset.episodes.size() || dataset.episodes[at].index != index) {
      const auto found = std::find_if(dataset.episodes.begin(), dataset.episodes.end(),
                                      [&](const Episode& episode) { return episode.index == index; });
      at = static_cast<size_t>(found - dataset.episodes.begin());
    }
    const Json* stats = member(json, "stats");
    if (at == dataset.episodes.size() || stats == nullptr) {
      return report.add(55, place, stats == nullptr ? "the line has no stats" : "there is no such episode");
    }
    take_stats(parse_stats(*stats, place, report), at++, place, dataset, report);
  });
}

Status read_episode_tables(Dataset& dataset, Report& report, StatsOfEpisodes stats) {
  // A copy, as the dataset is written to meanwhile.
  std::vector<std::string> paths;
  for (const TreeFile& file : dataset.tree.below("meta/episodes/")) {
    if (is_parquet_name(file.path)) paths.push_back(file.path);
  }
  for (const std::string& path : paths) RETURN_IF_ERROR(read_table(path, dataset, report, stats));
  return {};
}

Status read_task_table(Dataset& dataset, Report& report) {
  dataset.tasks_file = "meta/tasks.parquet";
  ASSIGN_OR_RETURN(const auto file, dataset.tree.open(dataset.tasks_file));
  auto table = formats::open_columns(*file);
  if (!table) return no_table(dataset.tasks_file, table.error(), report);
  const formats::TableFooter& footer = (*table)->footer();
  std::string text = "task";
  if (footer.find(text) == nullptr) text = "__index_level_0__";
  const Place place{.file = dataset.tasks_file};
  if (footer.find("task_index") == nullptr || footer.find(text) == nullptr) {
    const bool has_index = footer.find("task_index") != nullptr;
    report.add(34, place,
               has_index ? "no column is called task, nor __index_level_0__" : "no column is called task_index", {},
               Severity::kError);
    return {};
  }
  const std::vector<std::string> columns = {"task_index", text};
  const auto values = formats::read_columns(**table, columns, kMostTasks);
  if (!values) return no_table(dataset.tasks_file, values.error(), report);
  const ColumnValues &indices = (*values)[0], &texts = (*values)[1];
  if (indices.kind != ColumnKind::kInteger || texts.kind != ColumnKind::kText) {
    report.add(34, place, "task_index holds no integers, or the tasks no texts", {}, Severity::kError);
    return {};
  }
  for (int64_t row = 0; row < indices.rows; ++row) {
    const auto at = static_cast<size_t>(row);
    dataset.tasks.push_back({indices.integers[at], texts.texts[at], {.file = place.file, .data = {.row = row}}});
  }
  return {};
}

Layout layout_of(const Tree& tree) {
  Layout layout;
  const auto any = [&](std::string_view prefix, std::string_view name) -> const TreeFile* {
    for (const TreeFile& file : tree.below(prefix)) {
      if (file.path.substr(file.path.rfind('/') + 1).starts_with(name)) return &file;
    }
    return nullptr;
  };
  for (const char* file : {"meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl"}) {
    if (tree.find(file) != nullptr) layout.v2.emplace_back(file);
  }
  if (tree.find("meta/tasks.parquet") != nullptr) layout.v3.emplace_back("meta/tasks.parquet");
  for (const char* prefix : {"data/", "videos/", "meta/episodes/"}) {
    if (const auto* file = any(prefix, "episode_"); file != nullptr) layout.v2.push_back(file->path);
    if (const auto* file = any(prefix, "file-"); file != nullptr) layout.v3.push_back(file->path);
  }
  if (!tree.below("meta/episodes/").empty()) layout.v3.emplace_back("the folder meta/episodes/");
  return layout;
}

}  // namespace millrace::lerobot
