// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/diff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "millrace/lerobot/diff_parts.h"
#include "millrace/lerobot/stored_stats.h"

namespace millrace::lerobot {
namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class InfoDiff {
 public:
  InfoDiff(const Info& a, const Info& b, std::vector<DatasetDiff::Fact>& facts) : a_(a), b_(b), facts_(facts) {}

  void run() {
    compare("fps", fmt::format("{:g}", a_.frame_rate()), fmt::format("{:g}", b_.frame_rate()));
    compare("robot_type", a_.robot_type, b_.robot_type);
    const auto splits = [](const Info& info) {
      std::vector<std::string> all;
      for (const auto& [name, range] : info.splits) all.push_back(name + " " + range);
      std::ranges::sort(all);
      return fmt::format("{}", fmt::join(all, ", "));
    };
    compare("splits", splits(a_), splits(b_));
    for (const Feature& feature : a_.features) compare_feature(feature, b_.find(feature.name));
    for (const Feature& feature : b_.features) {
      if (a_.find(feature.name) == nullptr) facts_.push_back({key(feature, ""), std::nullopt, feature.dtype});
    }
  }

 private:
  static std::string key(const Feature& feature, const std::string& part) { return "features." + feature.name + part; }

  void compare(const std::string& key, const std::string& a, const std::string& b) {
    if (a != b) facts_.push_back({key, a, b});
  }

  void compare_feature(const Feature& a, const Feature* b) {
    if (b == nullptr) {
      facts_.push_back({key(a, ""), a.dtype, std::nullopt});
      return;
    }
    compare(key(a, ".dtype"), a.dtype, b->dtype);
    compare(key(a, ".shape"), text_of(a.shape), text_of(b->shape));
    compare(key(a, ".names"), fmt::format("{}", fmt::join(a.names, ", ")),
            fmt::format("{}", fmt::join(b->names, ", ")));
  }

  const Info& a_;
  const Info& b_;
  std::vector<DatasetDiff::Fact>& facts_;
};

void diff_tasks(const Source& a, const Source& b, DatasetDiff& diff) {
  std::map<std::string, DatasetDiff::Task> tasks;
  for (size_t i = 0; i < a.tasks.size(); ++i) tasks[a.tasks[i]].a = static_cast<int64_t>(i);
  for (size_t i = 0; i < b.tasks.size(); ++i) tasks[b.tasks[i]].b = static_cast<int64_t>(i);
  for (auto& [text, task] : tasks) {
    if (task.a == task.b) continue;
    task.task = text;
    diff.tasks.push_back(std::move(task));
  }
}

// Source::open has seen that episode i has the number i.
void diff_episodes(const Source& a, const Source& b, DiffSides& sides, DatasetDiff& diff) {
  const auto& in_a = a.dataset.episodes;
  const auto& in_b = b.dataset.episodes;
  for (size_t i = 0; i < std::max(in_a.size(), in_b.size()); ++i) {
    DatasetDiff::Episode episode{.episode = static_cast<int64_t>(i)};
    if (i < in_a.size()) episode.a = in_a[i].length;
    if (i < in_b.size()) episode.b = in_b[i].length;
    if (episode.a && episode.b) {
      sides.episodes.emplace_back(i, i);
      const std::multiset<std::string> tasks_a(in_a[i].tasks.begin(), in_a[i].tasks.end());
      episode.other_tasks = tasks_a != std::multiset<std::string>(in_b[i].tasks.begin(), in_b[i].tasks.end());
    }
    if (episode.a != episode.b || episode.other_tasks) diff.episodes.push_back(std::move(episode));
  }
}

// ---- statistics

class StatsDiff {
 public:
  explicit StatsDiff(bool of_episodes) : of_episodes_(of_episodes) {}

  // `episode`: its number; -1: of the dataset.
  void compare(const StatsByFeature& a, const StatsByFeature& b, int64_t episode) {
    std::set<std::pair<std::string, std::string>> names;
    for (const auto* side : {&a, &b}) {
      for (const auto& [feature, stats] : *side) {
        for (const auto& [name, values] : stats.values) names.emplace(feature, name);
      }
    }
    for (const auto& [feature, name] : names) {
      compare_one(find(a, feature, name), find(b, feature, name), feature, name, episode);
    }
  }

  void add_to(std::vector<DatasetDiff::Statistic>& out) {
    for (auto& [key, found] : found_) out.push_back(std::move(found));
  }

 private:
  static const std::vector<double>* find(const StatsByFeature& stats, const std::string& feature,
                                         const std::string& name) {
    const auto found = stats.find(feature);
    return found == stats.end() ? nullptr : found->second.find(name);
  }

  void compare_one(const std::vector<double>* a, const std::vector<double>* b, const std::string& feature,
                   const std::string& name, int64_t episode) {
    const bool comparable = a != nullptr && b != nullptr && a->size() == b->size();
    bool differ = !comparable;
    std::optional<double> largest;
    for (size_t i = 0; comparable && i < a->size(); ++i) {
      const double x = (*a)[i], y = (*b)[i];
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      differ = true;
      if (const double far = std::abs(x - y); std::isfinite(far)) largest = std::max(largest.value_or(0), far);
    }
    if (!differ) return;
    DatasetDiff::Statistic& found = found_[{feature, name}];
    found.feature = feature;
    found.statistic = name;
    found.of_episodes = of_episodes_;
    if (found.differ++ == 0) found.first_episode = episode;
    if (largest) found.largest = std::max(found.largest.value_or(0), *largest);
  }

  const bool of_episodes_;
  std::map<std::pair<std::string, std::string>, DatasetDiff::Statistic> found_;
};

bool any_stored(const std::vector<StatsByFeature>& all) {
  return std::ranges::any_of(all, [](const StatsByFeature& each) { return !each.empty(); });
}

Status diff_stats(const DiffSides& sides, DatasetDiff& diff) {
  const Dataset &a = sides.a.dataset, &b = sides.b.dataset;
  if (a.stats && b.stats) {
    StatsDiff whole(false);
    whole.compare(*a.stats, *b.stats, -1);
    whole.add_to(diff.stats);
  } else if (a.stats || b.stats) {
    diff.not_compared.push_back(
        fmt::format("statistics of the dataset: only {} has meta/stats.json", a.stats ? "A" : "B"));
  }
  ASSIGN_OR_RETURN(const auto in_a, stored_episode_stats(a));
  ASSIGN_OR_RETURN(const auto in_b, stored_episode_stats(b));
  if (!any_stored(in_a) && !any_stored(in_b)) return {};
  if (!any_stored(in_a) || !any_stored(in_b)) {
    diff.not_compared.push_back(
        fmt::format("statistics of episodes: only {} stores them", any_stored(in_a) ? "A" : "B"));
    return {};
  }
  StatsDiff by_episode(true);
  for (const auto& [place_a, place_b] : sides.episodes) {
    by_episode.compare(in_a[place_a], in_b[place_b], a.episodes[place_a].index);
  }
  by_episode.add_to(diff.stats);
  return {};
}

DatasetDiff::Side side_of(const Source& source) {
  return {source.url(), source.dataset.info.version_text, std::ssize(source.dataset.episodes), source.dataset.frames()};
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

int64_t DatasetDiff::differences() const {
  const auto differ = [](const auto& each) { return each.differ > 0; };
  return std::ssize(info) + std::ssize(tasks) + std::ssize(episodes) + std::ssize(stats) +
         std::ranges::count_if(features, differ) + std::ranges::count_if(cameras, differ);
}

Result<DatasetDiff> diff_datasets(const Location& at_a, const Location& at_b, const DiffOptions& options) {
  ASSIGN_OR_RETURN(const auto a, Source::open(at_a, StatsOfEpisodes::kLeave));
  ASSIGN_OR_RETURN(const auto b, Source::open(at_b, StatsOfEpisodes::kLeave));
  DatasetDiff diff{.a = side_of(*a), .b = side_of(*b)};
  DiffSides sides{*a, *b, options, {}};
  InfoDiff(a->dataset.info, b->dataset.info, diff.info).run();
  diff_tasks(*a, *b, diff);
  diff_episodes(*a, *b, sides, diff);
  RETURN_IF_ERROR(diff_stats(sides, diff));
  RETURN_IF_ERROR(diff_rows(sides, diff));
  if (options.frames) {
    RETURN_IF_ERROR(diff_frames(sides, diff));
  } else if (!a->dataset.info.cameras().empty() && !b->dataset.info.cameras().empty()) {
    diff.not_compared.emplace_back("frames of videos (--frames compares them)");
  }
  return diff;
}

std::string diff_json(const DatasetDiff& diff) {
  const auto side = [](const DatasetDiff::Side& each) {
    return Json{{"url", each.url}, {"version", each.version}, {"episodes", each.episodes}, {"frames", each.frames}};
  };
  Json out{{"a", side(diff.a)},
           {"b", side(diff.b)},
           {"differences", diff.differences()},
           {"info", Json::array()},
           {"tasks", Json::array()},
           {"episodes", Json::array()},
           {"features", Json::array()},
           {"stats", Json::array()},
           {"cameras", Json::array()},
           {"not_compared", diff.not_compared}};
  for (const auto& each : diff.info)
    out["info"].push_back({{"key", each.key}, {"a", or_null(each.a)}, {"b", or_null(each.b)}});
  for (const auto& each : diff.tasks)
    out["tasks"].push_back({{"task", each.task}, {"a", or_null(each.a)}, {"b", or_null(each.b)}});
  for (const auto& each : diff.episodes) {
    out["episodes"].push_back(
        {{"episode", each.episode}, {"a", or_null(each.a)}, {"b", or_null(each.b)}, {"other_tasks", each.other_tasks}});
  }
  for (const auto& each : diff.features) {
    out["features"].push_back({{"name", each.name},
                               {"rows", each.rows},
                               {"differ", each.differ},
                               {"first_episode", each.first_episode},
                               {"first_row", each.first_row},
                               {"largest", or_null(each.largest)}});
  }
  for (const auto& each : diff.stats) {
    out["stats"].push_back({{"feature", each.feature},
                            {"statistic", each.statistic},
                            {"of_episodes", each.of_episodes},
                            {"differ", each.differ},
                            {"first_episode", each.first_episode},
                            {"largest", or_null(each.largest)}});
  }
  for (const auto& each : diff.cameras) {
    out["cameras"].push_back({{"name", each.name},
                              {"frames", each.frames},
                              {"decoded", each.decoded},
                              {"differ", each.differ},
                              {"first_episode", each.first_episode},
                              {"first_frame", each.first_frame},
                              {"largest", each.largest},
                              {"size_a", each.size_a},
                              {"size_b", each.size_b}});
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace millrace::lerobot
