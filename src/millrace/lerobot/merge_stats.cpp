// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/merge_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "millrace/lerobot/python_json.h"
#include "millrace/lerobot/stored_stats.h"

namespace millrace::lerobot {
namespace {

// A picture counts as one frame, but its quantiles are over its pixels. With this many values a rank is a fraction.
constexpr int64_t kPixels = 1 << 20;

// How many values of a part are at most, or at least, a value that is known of it.
struct Known {
  double value = 0;
  int64_t count = 0;
};

// numpy.quantile(q) of n values has floor(q (n - 1)) + 1 of them at or below it, and n - ceil(q (n - 1)) at or above.
std::vector<Known> known_of(const DimensionStats& part, bool below) {
  std::vector<Known> known = {{part.min, below ? 1 : part.count}, {part.max, below ? part.count : 1}};
  const auto last = static_cast<double>(part.count - 1);
  for (const auto& [share, value] : part.quantiles) {
    known.push_back({value, below ? static_cast<int64_t>(std::floor(share * last)) + 1
                                  : part.count - static_cast<int64_t>(std::ceil(share * last))});
  }
  std::ranges::sort(known, [&](const Known& a, const Known& b) {
    return a.value != b.value ? (below ? a.value < b.value : a.value > b.value) : a.count < b.count;
  });
  return known;
}

// The first value, from below or from above, up to which `wanted` values are known to lie.
double first_with(const std::vector<DimensionStats>& parts, bool below, int64_t wanted) {
  std::vector<Known> steps;
  for (const DimensionStats& part : parts) {
    int64_t before = 0;
    for (const Known& known : known_of(part, below)) {
      if (known.count <= before) continue;
      steps.push_back({known.value, known.count - before});
      before = known.count;
    }
  }
  std::ranges::sort(steps,
                    [&](const Known& a, const Known& b) { return below ? a.value < b.value : a.value > b.value; });
  int64_t seen = 0;
  for (const Known& step : steps) {
    seen += step.count;
    if (seen >= wanted) return step.value;
  }
  return steps.back().value;
}

// One feature of all parts.
struct Gathered {
  std::vector<const FeatureStats*> parts;
  std::vector<int64_t> frames;  // of each part, where it has no count
};

std::string gather(const FeatureStats& stats, int64_t frames, Gathered& all) {
  for (const char* name : {"min", "max", "mean", "std"}) {
    const auto* values = stats.find(name);
    if (values == nullptr) return fmt::format("no {} is stored of an episode or dataset", name);
    const size_t width = all.parts.empty() ? values->size() : all.parts.front()->find("min")->size();
    if (values->size() != width) return fmt::format("{} and {} numbers", width, values->size());
    const bool finite = std::ranges::all_of(*values, [](double value) { return std::isfinite(value); });
    if (!finite) return fmt::format("a stored {} is not finite", name);
  }
  const auto* count = stats.find("count");
  const int64_t own = count != nullptr && count->size() == 1 ? static_cast<int64_t>(count->front()) : frames;
  if (own <= 0) return "a stored count is not positive";
  all.parts.push_back(&stats);
  all.frames.push_back(own);
  return {};
}

DimensionStats part_of(const FeatureStats& stats, int64_t count, size_t i, bool is_picture) {
  DimensionStats part{.count = is_picture ? count * kPixels : count,
                      .min = stats.find("min")->at(i),
                      .max = stats.find("max")->at(i),
                      .quantiles = {}};
  for (size_t q = 0; q < kStatQuantiles.size(); ++q) {
    const auto* values = stats.find(kStatNames[kFirstQuantile + q]);
    if (values == nullptr || i >= values->size() || !std::isfinite((*values)[i])) continue;
    // LeRobot's histogram ends 1e-10 outside of the values.
    part.quantiles.emplace_back(kStatQuantiles[q], std::clamp((*values)[i], part.min, part.max));
  }
  return part;
}

void merge_moments(const Gathered& all, size_t i, MergedStats::OfFeature& out) {
  double sum = 0, spread = 0;
  for (size_t p = 0; p < all.parts.size(); ++p) {
    sum += all.parts[p]->find("mean")->at(i) * static_cast<double>(all.frames[p]);
  }
  const double mean = sum / static_cast<double>(out.count);
  for (size_t p = 0; p < all.parts.size(); ++p) {
    const double away = all.parts[p]->find("mean")->at(i) - mean, own = all.parts[p]->find("std")->at(i);
    spread += static_cast<double>(all.frames[p]) * (own * own + away * away);
  }
  out.mean.push_back(mean);
  out.std.push_back(std::sqrt(spread / static_cast<double>(out.count)));
}

MergedStats::OfFeature merged(const std::string& name, const Gathered& all, bool is_picture) {
  MergedStats::OfFeature out{.name = name, .is_picture = is_picture};
  out.parts = static_cast<int64_t>(all.parts.size());
  for (const int64_t frames : all.frames) out.count += frames;
  for (size_t i = 0; i < all.parts.front()->find("min")->size(); ++i) {
    merge_moments(all, i, out);
    std::vector<DimensionStats> parts;
    for (size_t p = 0; p < all.parts.size(); ++p) {
      parts.push_back(part_of(*all.parts[p], all.frames[p], i, is_picture));
    }
    out.min.push_back(std::ranges::min_element(parts, {}, &DimensionStats::min)->min);
    out.max.push_back(std::ranges::max_element(parts, {}, &DimensionStats::max)->max);
    for (size_t q = 0; q < kStatQuantiles.size(); ++q) {
      const auto [low, high] = quantile_interval(parts, kStatQuantiles[q]);
      out.low[q].push_back(low);
      out.high[q].push_back(high);
    }
  }
  return out;
}

// The statistics that a dataset stores, of each episode or of all, with the frames that each covers.
struct StatsWithFrames {
  std::vector<StatsByFeature> stats;
  std::vector<int64_t> frames;
};

Result<StatsWithFrames> stats_with_frames(const Dataset& dataset) {
  StatsWithFrames found;
  ASSIGN_OR_RETURN(found.stats, stored_episode_stats(dataset));
  const bool by_episode = std::ranges::all_of(found.stats, [](const auto& each) { return !each.empty(); });
  if (by_episode && !found.stats.empty()) {
    for (const Episode& episode : dataset.episodes) found.frames.push_back(episode.length);
    return found;
  }
  if (!dataset.stats) {
    return fail(ErrorCode::kCorruption, "{}: it stores no statistics; `millrace lerobot stats --write` computes them",
                dataset.tree.root().url);
  }
  return StatsWithFrames{{*dataset.stats}, {dataset.frames()}};
}

Json shaped(const std::vector<double>& values, bool is_picture) {
  Json list = values;
  if (is_picture) {
    for (Json& value : list) value = Json::array({Json::array({value})});
  }
  return list;
}

}  // namespace

std::pair<double, double> quantile_interval(const std::vector<DimensionStats>& parts, double share) {
  int64_t count = 0;
  for (const DimensionStats& part : parts) count += part.count;
  const double place = share * static_cast<double>(count - 1);
  const auto below = static_cast<int64_t>(std::floor(place)), above = static_cast<int64_t>(std::ceil(place));
  const double low = first_with(parts, false, count - below), high = first_with(parts, true, above + 1);
  return {low, std::max(low, high)};
}

Result<MergedStats> merge_stats(const std::vector<Dataset>& datasets) {
  std::vector<StatsWithFrames> all;
  for (const Dataset& dataset : datasets) {
    ASSIGN_OR_RETURN(all.emplace_back(), stats_with_frames(dataset));
  }
  std::map<std::string, Gathered> gathered;
  std::map<std::string, std::string> reasons;
  size_t parts = 0;
  for (const StatsWithFrames& each : all) {
    parts += each.stats.size();
    for (size_t i = 0; i < each.stats.size(); ++i) {
      for (const auto& [name, stats] : each.stats[i]) {
        const std::string reason = gather(stats, each.frames[i], gathered[name]);
        if (!reason.empty()) reasons.emplace(name, reason);
      }
    }
  }
  MergedStats out;
  for (const auto& [name, found] : gathered) {
    if (found.parts.size() != parts) {
      reasons.emplace(name, fmt::format("{} of {} episodes or datasets store it", found.parts.size(), parts));
    }
    if (reasons.contains(name)) continue;
    const Feature* const feature = datasets.front().info.find(name);
    out.features.push_back(merged(name, found, feature != nullptr && feature->is_picture()));
  }
  for (const auto& [name, reason] : reasons) out.left_out.push_back(fmt::format("{}: {}", name, reason));
  return out;
}

std::string stats_json(const MergedStats& stats) {
  Json all = Json::object();
  for (const auto& feature : stats.features) {
    Json& entry = all[feature.name];
    entry["min"] = shaped(feature.min, feature.is_picture);
    entry["max"] = shaped(feature.max, feature.is_picture);
    entry["mean"] = shaped(feature.mean, feature.is_picture);
    entry["std"] = shaped(feature.std, feature.is_picture);
    entry["count"] = Json::array({feature.count});
    for (size_t q = 0; q < kStatQuantiles.size(); ++q) {
      if (feature.low[q] != feature.high[q]) continue;
      entry[std::string(kStatNames[kFirstQuantile + q])] = shaped(feature.low[q], feature.is_picture);
    }
  }
  return all.dump(4) + "\n";
}

}  // namespace millrace::lerobot
