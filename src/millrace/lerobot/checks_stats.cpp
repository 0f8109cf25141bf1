// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/lerobot/checks.h"
#include "millrace/lerobot/stats.h"

namespace millrace::lerobot {
namespace {

constexpr std::string_view kFile = "meta/stats.json";
// Below this the spread of pictures is that of an overflow, and no room is so grey.
constexpr double kFlatPictures = 0.02;

Place in_stats(const Feature& feature) {
  return {.file = std::string(kFile), .data = {.column = feature.name}};
}

std::string some_of(const std::vector<size_t>& dims) {
  constexpr size_t kShown = 8;
  const std::vector<size_t> shown(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(std::min(dims.size(), kShown)));
  const std::string more = dims.size() > kShown ? fmt::format(" and {} more", dims.size() - kShown) : "";
  return fmt::format("{}{}", fmt::join(shown, ", "), more);
}

void check_constant(const Feature& feature, const FeatureStats& stats, Report& report) {
  if (!feature.is_learned()) return;
  const auto *std = stats.find("std"), *low = stats.find("q01"), *high = stats.find("q99");
  if (std == nullptr) return;
  std::vector<size_t> still, narrow;
  for (size_t i = 0; i < std->size(); ++i) {
    if ((*std)[i] == 0) {
      still.push_back(i);
    } else if (low != nullptr && high != nullptr && i < low->size() && i < high->size() && (*low)[i] == (*high)[i]) {
      narrow.push_back(i);
    }
  }
  if (!still.empty()) report.add(56, in_stats(feature), fmt::format("std is 0 in the dimensions {}", some_of(still)));
  if (!narrow.empty())
    report.add(56, in_stats(feature), fmt::format("q01 is q99 in the dimensions {}", some_of(narrow)));
}

void check_pictures(const Feature& feature, const FeatureStats& stats, Report& report) {
  if (!feature.is_picture() || feature.video.is_depth) return;
  const auto *std = stats.find("std"), *mean = stats.find("mean");
  if (std != nullptr && !std->empty() && *std::max_element(std->begin(), std->end()) < kFlatPictures) {
    report.add(
        57, in_stats(feature),
        fmt::format("the standard deviation of the pictures is {:.3g}", *std::max_element(std->begin(), std->end())));
  }
  if (mean != nullptr && !mean->empty() && *std::max_element(mean->begin(), mean->end()) > 1) {
    report.add(57, in_stats(feature),
               fmt::format("the mean of the pictures is {:.4g}, not between 0 and 1",
                           *std::max_element(mean->begin(), mean->end())));
  }
}

// Pictures are counted in frames by one writer of LeRobot and in pixels by the other.
void check_count(const Feature& feature, const FeatureStats& stats, int64_t frames, Report& report) {
  const auto* count = stats.find("count");
  if (!feature.is_numeric() || count == nullptr || count->size() != 1) return;
  if ((*count)[0] != static_cast<double>(frames)) {
    report.add(59, in_stats(feature),
               fmt::format("its count is {:.0f}, and the dataset has {} frames", (*count)[0], frames));
  }
}

void check_quantiles(const Checking& checking, const Feature& feature, const FeatureStats& stats) {
  if (checking.options.groot == GrootVersion::kNone || !feature.is_learned()) return;
  if (stats.find("q01") == nullptr || stats.find("q99") == nullptr) {
    checking.report.add(60, in_stats(feature), "q01 or q99 is missing");
  }
}

void check_global(const Checking& checking, const StatsByFeature& all) {
  const Dataset& dataset = checking.dataset;
  // LeRobot writes no such file in v2.1: where there is one, GR00T or a user made it.
  const bool groot_flavour =
      dataset.tree.find("meta/modality.json") != nullptr || dataset.info.version == Version::kV21;
  for (const Feature& feature : dataset.info.features) {
    if (!feature.is_numeric() && !feature.is_picture()) continue;
    const auto found = all.find(feature.name);
    if (found == all.end()) {
      // GR00T keeps statistics of floats only.
      if (groot_flavour && is_v2(dataset.info.version) && !feature.is_float()) continue;
      checking.report.add(55, in_stats(feature), "there are no statistics of this feature");
      continue;
    }
    check_feature_stats(feature, found->second, in_stats(feature), checking.report);
    check_constant(feature, found->second, checking.report);
    check_pictures(feature, found->second, checking.report);
    check_count(feature, found->second, dataset.frames(), checking.report);
    check_quantiles(checking, feature, found->second);
  }
}

void check_by_episode(const Checking& checking) {
  const Dataset& dataset = checking.dataset;
  const auto episodes = static_cast<int64_t>(dataset.episodes.size());
  const std::string file = dataset.info.version == Version::kV30 ? "meta/episodes" : "meta/episodes_stats.jsonl";
  if (dataset.episodes_with_stats < episodes) {
    checking.report.add(55, {.file = file},
                        fmt::format("{} of {} episodes have statistics", dataset.episodes_with_stats, episodes));
    return;
  }
  for (const auto& [name, counted] : dataset.counted) {
    const Feature* feature = dataset.info.find(name);
    if (feature == nullptr || !feature->is_numeric() || counted == dataset.frames()) continue;
    checking.report.add(59, {.file = file, .data = {.column = name}},
                        fmt::format("the counts of its episodes are {} together, and the dataset has {} frames",
                                    counted, dataset.frames()));
  }
}

}  // namespace

void check_stats(const Checking& checking) {
  const Dataset& dataset = checking.dataset;
  const bool wants_global = dataset.info.version == Version::kV30 || dataset.info.version == Version::kV20;
  if (dataset.stats) {
    check_global(checking, *dataset.stats);
  } else if (wants_global) {
    checking.report.add(55, {.file = std::string(kFile)}, "the file is missing");
  }
  const bool is_groot_set = dataset.info.version == Version::kV21 && dataset.stats;
  if (dataset.info.version == Version::kV30 || (dataset.info.version == Version::kV21 && !is_groot_set)) {
    check_by_episode(checking);
  } else if (is_groot_set && dataset.episodes_with_stats > 0) {
    check_by_episode(checking);
  }
}

}  // namespace millrace::lerobot
