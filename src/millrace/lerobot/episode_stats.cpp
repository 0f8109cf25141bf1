// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/episode_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "millrace/formats/columns.h"
#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/picture_stats.h"

namespace millrace::lerobot {
namespace {

constexpr int64_t kMostEpisodeRows = 10'000'000;
constexpr int64_t kMostLines = int64_t{4} << 30;

// A cell of a table as JSON: lists stay lists.
Json cell_json(const formats::ColumnValues& values, int64_t row) {
  using formats::ColumnKind;
  if (values.is_null(row)) return nullptr;
  const auto place = static_cast<size_t>(row);
  switch (values.kind) {
    case ColumnKind::kInteger:
    case ColumnKind::kBool:
      return values.integers[place];
    case ColumnKind::kFloat:
      return values.reals[place];
    case ColumnKind::kText:
      return values.texts[place];
    case ColumnKind::kList: {
      Json list = Json::array();
      for (int64_t i = values.offsets[place]; i < values.offsets[place + 1]; ++i) {
        list.push_back(cell_json(values.fields.front(), i));
      }
      return list;
    }
    default:
      return nullptr;
  }
}

// Adds the columns stats/FEATURE/STATISTIC of one table. Returns how many there are.
Result<int64_t> add_table(const Source& source, const std::string& path, std::vector<Json>& stats) {
  ASSIGN_OR_RETURN(const auto file, source.dataset.tree.open(path));
  ASSIGN_OR_RETURN(const auto table, formats::open_columns(*file));
  std::vector<std::string> names = {"episode_index"};
  for (const formats::ColumnType& column : table->footer().columns) {
    if (column.name.starts_with("stats/") && column.name.rfind('/') > 6) names.push_back(column.name);
  }
  ASSIGN_OR_RETURN(const auto values, formats::read_columns(*table, names, kMostEpisodeRows));
  for (int64_t row = 0; row < values.front().rows; ++row) {
    const int64_t episode = values.front().integers[static_cast<size_t>(row)];
    if (episode < 0 || episode >= static_cast<int64_t>(stats.size())) continue;
    for (size_t i = 1; i < names.size(); ++i) {
      const size_t last = names[i].rfind('/');
      const std::string feature = names[i].substr(6, last - 6), statistic = names[i].substr(last + 1);
      stats[static_cast<size_t>(episode)][feature][statistic] = cell_json(values[i], row);
    }
  }
  return static_cast<int64_t>(names.size()) - 1;
}

Result<std::vector<Json>> read_tables(const Source& source) {
  std::vector<Json> stats(source.dataset.episodes.size(), Json::object());
  int64_t columns = 0;
  for (const TreeFile& file : source.dataset.tree.below("meta/episodes/")) {
    if (!file.path.ends_with(".parquet")) continue;
    ASSIGN_OR_RETURN(const int64_t more, add_table(source, file.path, stats));
    columns += more;
  }
  if (columns == 0) stats.clear();
  return stats;
}

Result<std::vector<Json>> read_lines(const Source& source) {
  ASSIGN_OR_RETURN(const std::string text, source.dataset.tree.read(kEpisodeStatsFile, kMostLines));
  std::vector<Json> stats(source.dataset.episodes.size());
  size_t found = 0;
  Status status;
  for_each_line(text, [&](int64_t number, std::string_view content) {
    if (!status || content.empty()) return;
    const auto line = parse_python_json(content);
    const int64_t episode = line ? integer_at(*line, "episode_index").value_or(-1) : -1;
    const Json* const here = line ? member(*line, "stats") : nullptr;
    const auto place = static_cast<size_t>(episode);
    if (here == nullptr || episode < 0 || place >= stats.size() || !stats[place].is_null()) {
      status = fail(ErrorCode::kCorruption, "{}/{}, line {}: {}", source.url(), kEpisodeStatsFile, number,
                    line ? "no statistics of another episode" : line.error().message());
      return;
    }
    stats[place] = *here;
    ++found;
  });
  RETURN_IF_ERROR(status);
  if (found == stats.size()) return stats;
  return fail(ErrorCode::kCorruption, "{}/{} has {} lines for {} episodes", source.url(), kEpisodeStatsFile, found,
              stats.size());
}

// From all rows, and of pictures as LeRobot samples them.
Result<std::vector<Json>> computed_stats(const Source& source, const MakeOptions& options) {
  const StatsOptions how{.by_episode = true, .threads = options.threads, .stop = options.stop};
  ASSIGN_OR_RETURN(ComputedStats computed, compute_stats(source.dataset, how));
  RETURN_IF_ERROR(add_picture_stats(source.dataset, how, computed));
  std::vector<Json> stats(source.dataset.episodes.size(), Json::object());
  for (const ComputedStats::OfFeature& feature : computed.features) {
    for (size_t i = 0; i < feature.episodes.size() && i < stats.size(); ++i) {
      stats[i][feature.name] = stats_json(feature.episodes[i]);
    }
  }
  return stats;
}

// ---- merging

// One statistic of one feature of each episode.
using Flat = std::vector<std::vector<double>>;

// False where an episode lacks it, or has something else than numbers. `shape` gets that of the last.
bool flatten(std::span<const Json> episodes, const std::string& feature, const char* name, Flat& flat,
             std::vector<int64_t>& shape) {
  for (const Json& episode : episodes) {
    const Json* const here = member(episode, feature);
    const Json* const value = here == nullptr ? nullptr : member(*here, name);
    if (value == nullptr) return false;
    shape.clear();
    const auto numbers = numbers_of(*value, shape);
    if (!numbers || numbers->empty()) return false;
    std::vector<double>& plain = flat.emplace_back();
    for (const auto& number : *numbers) plain.push_back(number.value_or(std::nan("")));
  }
  return true;
}

// In nested lists of these lengths: of the shape [3, 1, 1] [[[a]], [[b]], [[c]]].
Json shaped(std::span<const double> values, std::span<const int64_t> shape) {
  if (shape.size() <= 1 || shape[0] <= 0) return std::vector<double>(values.begin(), values.end());
  Json list = Json::array();
  const size_t each = values.size() / static_cast<size_t>(shape[0]);
  for (size_t i = 0; i < static_cast<size_t>(shape[0]); ++i) {
    list.push_back(shaped(values.subspan(i * each, each), shape.subspan(1)));
  }
  return list;
}

struct Merged {
  double min = 0, max = 0, mean = 0, std = 0;
};

Merged merged_dimension(const std::map<std::string, Flat>& of, size_t d, double count) {
  const Flat &low = of.at("min"), &high = of.at("max"), &mean = of.at("mean"), &deviation = of.at("std");
  Merged out{.min = low[0][d], .max = high[0][d]};
  for (size_t e = 0; e < mean.size(); ++e) {
    out.mean += mean[e][d] * of.at("count")[e][0] / count;
    out.min = std::min(out.min, low[e][d]);
    out.max = std::max(out.max, high[e][d]);
  }
  double spread = 0;
  for (size_t e = 0; e < mean.size(); ++e) {
    const double away = mean[e][d] - out.mean;
    spread += of.at("count")[e][0] * (deviation[e][d] * deviation[e][d] + away * away);
  }
  out.std = std::sqrt(spread / count);
  return out;
}

}  // namespace

Result<std::vector<Json>> episode_stats(const Source& source, const MakeOptions& options) {
  std::vector<Json> stored;
  if (source.is_v3()) {
    ASSIGN_OR_RETURN(stored, read_tables(source));
  } else if (source.dataset.tree.find(kEpisodeStatsFile) != nullptr) {
    ASSIGN_OR_RETURN(stored, read_lines(source));
  }
  return stored.empty() ? computed_stats(source, options) : std::move(stored);
}

Result<std::vector<int64_t>> read_integers(const Source& source, size_t episode, const std::string& column) {
  constexpr int64_t kRowsAtOnce = 8192;
  const std::string path = source.data_path(episode);
  ASSIGN_OR_RETURN(const auto file, source.dataset.tree.open(path));
  ASSIGN_OR_RETURN(const auto table, formats::open_columns(*file));
  const int64_t begin = source.first_row(episode), end = begin + source.episode(episode).length;
  std::vector<int64_t> values;
  RETURN_IF_ERROR(table->scan(std::span(&column, 1), kRowsAtOnce, [&](int64_t first, auto batch) -> Status {
    const formats::ColumnValues& here = batch[0];
    for (int64_t row = std::max<int64_t>(begin - first, 0); row < std::min(end - first, here.rows); ++row) {
      if (here.kind != formats::ColumnKind::kInteger || here.is_null(row)) {
        return fail(ErrorCode::kCorruption, "{}/{}: row {} of {} is no integer", source.url(), path, first + row,
                    column);
      }
      values.push_back(here.integers[static_cast<size_t>(row)]);
    }
    return {};
  }));
  if (static_cast<int64_t>(values.size()) == end - begin) return values;
  return fail(ErrorCode::kCorruption, "{}/{}: it has fewer rows than episode {} needs", source.url(), path, episode);
}

Json integer_stats(std::span<const int64_t> values, const Json& like) {
  const std::vector<double> reals(values.begin(), values.end());
  const Json all = stats_json(number_stats(reals, 1));
  Json stats = Json::object();
  for (const auto& [name, unused] : like.items()) {
    if (const Json* value = member(all, name); value != nullptr) stats[name] = *value;
  }
  const auto [low, high] = std::ranges::minmax(values);
  if (stats.contains("min")) stats["min"] = Json::array({low});
  if (stats.contains("max")) stats["max"] = Json::array({high});
  return stats;
}

Json merged_stats(std::span<const Json> episodes, const std::string& feature) {
  std::map<std::string, Flat> of;
  std::vector<int64_t> shape, count_shape;
  for (const char* name : {"min", "max", "std", "mean"}) {
    if (!flatten(episodes, feature, name, of[name], shape)) return nullptr;
  }
  if (!flatten(episodes, feature, "count", of["count"], count_shape)) return nullptr;
  const size_t width = of["mean"].front().size();
  for (const char* name : {"min", "max", "std", "mean"}) {
    if (std::ranges::any_of(of[name], [&](const auto& each) { return each.size() != width; })) return nullptr;
  }
  double count = 0;
  for (const auto& each : of["count"]) count += each[0];
  std::vector<double> low, high, mean, deviation;
  for (size_t d = 0; d < width; ++d) {
    const Merged merged = merged_dimension(of, d, count);
    low.push_back(merged.min);
    high.push_back(merged.max);
    mean.push_back(merged.mean);
    deviation.push_back(merged.std);
  }
  return {{"min", shaped(low, shape)},
          {"max", shaped(high, shape)},
          {"mean", shaped(mean, shape)},
          {"std", shaped(deviation, shape)},
          {"count", Json::array({static_cast<int64_t>(count)})}};
}

}  // namespace millrace::lerobot
