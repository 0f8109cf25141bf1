// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/lerobot/picture_stats.h"
#include "millrace/lerobot/repair_parts.h"
#include "millrace/lerobot/stats.h"
#include "millrace/lerobot/stored_stats.h"

namespace millrace::lerobot {
namespace {

struct Difference {
  int rule = 0;  // 0: there is none
  std::string before, after;
};

// Compares the statistics that every version stores. LeRobot's quantiles are approximate, so they are not compared.
Difference difference_of(const FeatureStats* stored, const ExactStats& computed) {
  if (stored == nullptr) return {55, "", "computed"};
  for (size_t name = 0; name < kFirstQuantile; ++name) {
    const auto* values = stored->find(kStatNames[name]);
    const auto& wanted = computed.values[name];
    if (values == nullptr || values->size() != wanted.size()) {
      return {55, fmt::format("{} is missing or has another length", kStatNames[name]), "computed"};
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double low = computed.values[0][i], high = computed.values[1][i];
      const double slack = name == 3 ? deviation_slack(low, high, wanted[i]) : stat_slack(low, high);
      if (std::abs((*values)[i] - wanted[i]) <= slack) continue;
      return {58, fmt::format("{} of dimension {} is {:.6g}", kStatNames[name], i, (*values)[i]),
              fmt::format("{:.6g}", wanted[i])};
    }
  }
  const auto* count = stored->find("count");
  if (count == nullptr || (count->size() == 1 && count->front() == static_cast<double>(computed.count))) return {};
  return {59, count->empty() ? "" : fmt::format("count is {:.0f}", count->front()), fmt::format("{}", computed.count)};
}

const FeatureStats* stored_of(const StatsByFeature& all, const std::string& name) {
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

class StatsPlan {
 public:
  StatsPlan(const RepairOptions& options, Repair& repair)
      : options_(options), repair_(repair), dataset_(repair.dataset) {}

  Status run() {
    StatsOptions options{.by_episode = keeps_episode_stats(dataset_), .threads = options_.threads};
    options.mended_clocks = &repair_.clocks;
    options.progress = options_.progress;
    options.stop = options_.stop;
    auto computed = compute_stats(dataset_, options);
    if (!computed) return leave(computed.error(), "its statistics stay");
    auto stored = stored_episode_stats(dataset_);
    if (!stored) return leave(stored.error(), "its statistics stay");
    stored_ = *std::move(stored);
    if (lacks_pictures()) {
      const Status pictures = add_picture_stats(dataset_, options, *computed);
      if (!pictures) RETURN_IF_ERROR(leave(pictures.error(), "cameras get no statistics"));
    }
    for (auto& feature : computed->features) {
      if (differs_as_whole(feature)) repair_.stats.features.push_back(feature);
      if (differs_in_episodes(feature)) repair_.episode_stats.features.push_back(std::move(feature));
    }
    return {};
  }

 private:
  // Only a stop ends a repair: what else is wrong can still be mended.
  Status leave(const Error& error, std::string_view so) {
    if (error.code() == ErrorCode::kCancelled) return tl::unexpected(error);
    repair_.left.push_back(fmt::format("{}; {}", error.message(), so));
    return {};
  }

  bool has_global() const {
    return dataset_.info.version != Version::kV21 || dataset_.stats.has_value() ||
           dataset_.tree.find("meta/modality.json") != nullptr;
  }
  // GR00T's has floats only.
  bool is_groot() const {
    return is_v2(dataset_.info.version) && has_global() &&
           (dataset_.info.version == Version::kV21 || dataset_.tree.find("meta/modality.json") != nullptr);
  }

  bool lacks_pictures() const {
    const auto cameras = dataset_.info.cameras();
    return std::ranges::any_of(cameras, [&](const Feature* camera) {
      if (camera->video.is_depth) return false;
      const bool lacks_one = keeps_episode_stats(dataset_) && std::ranges::any_of(stored_, [&](const auto& each) {
                               return stored_of(each, camera->name) == nullptr;
                             });
      return lacks_one ||
             (wants_global(*camera) && (!dataset_.stats || stored_of(*dataset_.stats, camera->name) == nullptr));
    });
  }

  bool wants_global(const Feature& feature) const { return has_global() && (!is_groot() || feature.is_float()); }

  // Adds what is to be fixed of the dataset's own. True: there is something.
  bool differs_as_whole(const ComputedStats::OfFeature& feature) {
    if (!wants_global(*dataset_.info.find(feature.name))) return false;
    const FeatureStats* const stored = dataset_.stats ? stored_of(*dataset_.stats, feature.name) : nullptr;
    // Stored statistics of cameras are by the recorder's pictures, before they were encoded.
    if (stored != nullptr && feature.stats.is_image) return false;
    return add(kStatsFile, feature.name, difference_of(stored, feature.stats), "");
  }

  // The same of the episodes'.
  bool differs_in_episodes(const ComputedStats::OfFeature& feature) {
    if (!keeps_episode_stats(dataset_)) return false;
    Difference first;
    int64_t differing = 0;
    for (size_t i = 0; i < stored_.size(); ++i) {
      const FeatureStats* const stored = stored_of(stored_[i], feature.name);
      if (stored != nullptr && feature.stats.is_image) continue;
      Difference here = difference_of(stored, feature.episodes[i]);
      if (here.rule == 0) continue;
      if (differing++ == 0) {
        first = std::move(here);
        if (!first.before.empty()) first.before += fmt::format(" (episode {})", dataset_.episodes[i].index);
      }
    }
    const bool is_table = dataset_.info.version == Version::kV30;
    return add(is_table ? "meta/episodes" : kEpisodeStatsLines, feature.name, std::move(first),
               fmt::format(" in {} of {} episodes", differing, stored_.size()));
  }

  bool add(std::string_view file, const std::string& feature, Difference difference, const std::string& where) {
    if (difference.rule == 0) return false;
    repair_.fixes.push_back(
        {difference.rule, std::string(file), feature, std::move(difference.before), difference.after + where});
    return true;
  }

  const RepairOptions& options_;
  Repair& repair_;
  const Dataset& dataset_;
  std::vector<StatsByFeature> stored_;  // of each episode
};

}  // namespace

Status plan_stats(const RepairOptions& options, Repair& repair) {
  return StatsPlan(options, repair).run();
}

}  // namespace millrace::lerobot
