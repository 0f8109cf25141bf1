// SPDX-License-Identifier: Apache-2.0
// The processes of a training beside each other, by what their loaders show: the slowest sets the pace of all.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "millrace/doctor/checks.h"

namespace millrace::doctor {

namespace {

constexpr double kPaceSecondsPerNs = 1e-9;

// What one rank's loader did in a time.
struct RankPace {
  std::string name;  // "rank 3, process 4711 of node-2"
  std::string rank;
  double begun = 0, ended = 0;  // of the time, since 1970
  double batches = 0, waited = 0;

  double seconds() const { return ended - begun; }
  double rate() const { return batches / seconds(); }
  double share() const { return waited / seconds(); }
};

bool is_known(const RankPace& pace) {
  constexpr double kLeastSeconds = 2, kLeastBatches = 10;
  return pace.seconds() >= kLeastSeconds && pace.batches >= kLeastBatches;
}

std::string label_of(std::string_view key, std::string_view name) {
  const std::string word = std::string(name) + "=\"";
  const size_t at = key.find(word);
  if (at == std::string_view::npos) return {};
  return std::string(key.substr(at + word.size(), key.find('"', at + word.size()) - at - word.size()));
}

double growth_of(const std::vector<Point>& points) {
  return points.size() < 2 ? 0 : std::max(0.0, points.back().value - points.front().value);
}

std::vector<Point> points_between(const std::vector<Point>& points, double from, double to) {
  std::vector<Point> inside;
  std::copy_if(points.begin(), points.end(), std::back_inserter(inside),
               [&](const Point& point) { return point.time >= from && point.time <= to; });
  return inside;
}

// Paces of the processes that the monitors of all nodes saw. A process without a rank belongs to no distributed
// training.
std::vector<RankPace> paces_of_samples(const Facts& facts) {
  constexpr std::string_view kBatches = "millrace_process_batches_total",
                             kWaits = "millrace_process_wait_seconds_total";
  const double from = facts.record ? facts.record->starts.back().begun : 0;
  const double to = facts.record && !facts.record->status().empty() ? facts.record->starts.back().last : 1e18;
  std::vector<RankPace> paces;
  for (const NodeSamples& node : facts.nodes) {
    for (auto at = node.series.lower_bound(kBatches); at != node.series.end() && at->first.starts_with(kBatches);
         ++at) {
      const std::string rank = label_of(at->first, "rank");
      const auto batches = points_between(at->second, from, to);
      const auto waits = node.series.find(std::string(kWaits) + at->first.substr(kBatches.size()));
      if (rank.empty() || batches.size() < 2 || waits == node.series.end()) continue;
      paces.push_back({.name = fmt::format("rank {}, process {} of {}", rank, label_of(at->first, "pid"), node.host),
                       .rank = rank,
                       .begun = batches.front().time,
                       .ended = batches.back().time,
                       .batches = growth_of(batches),
                       .waited = growth_of(points_between(waits->second, from, to))});
    }
  }
  return paces;
}

// Paces of the watched processes, each since its start.
std::vector<RankPace> paces_of_processes(const Facts& facts) {
  std::vector<RankPace> paces;
  for (const ProcessFacts& process : facts.processes) {
    if (process.rank < 0 || process.shown.values.empty()) continue;
    const double begun = static_cast<double>(process.shown.begun_ns) * kPaceSecondsPerNs;
    paces.push_back({.name = process_name(process),
                     .rank = std::to_string(process.rank),
                     .begun = begun,
                     .ended = std::max(begun, facts.now + process.shown_s),
                     .batches = static_cast<double>(process.shown.value(Published::kBatches)),
                     .waited = static_cast<double>(process.shown.value(Published::kWaitNs)) * kPaceSecondsPerNs});
  }
  return paces;
}

double middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The last process of each rank. None where two of a rank ran at once: these are several trainings.
std::vector<RankPace> of_one_training(const std::vector<RankPace>& paces) {
  std::map<std::string, RankPace> last;
  for (const RankPace& pace : paces) {
    const auto [known, is_new] = last.try_emplace(pace.rank, pace);
    if (is_new) continue;
    if (pace.begun < known->second.ended && known->second.begun < pace.ended) return {};
    if (pace.begun > known->second.begun) known->second = pace;
  }
  std::vector<RankPace> one;
  for (auto& [rank, pace] : last) one.push_back(std::move(pace));
  std::erase_if(one, [](const RankPace& pace) { return !is_known(pace); });
  return one;
}

// Each against the median of the others, so that one of two is found, too.
void compare_ranks(const std::vector<RankPace>& paces, Verdicts& verdicts) {
  // Ranks of one training take the same steps, and differ by what is in flight.
  constexpr double kBehind = 0.9, kWaits = 0.05, kTimes = 3;
  for (const RankPace& pace : paces) {
    std::vector<double> rates, batches, shares;
    for (const RankPace& other : paces) {
      if (&other == &pace) continue;
      rates.push_back(other.rate());
      batches.push_back(other.batches);
      shares.push_back(other.share());
    }
    const double rate = middle_of(rates), share = middle_of(shares);
    // One that began earlier and waited for the others has as many batches; one that began later has their rate.
    if (pace.rate() < kBehind * rate && pace.batches < kBehind * middle_of(batches)) {
      verdicts.add("DR22", fmt::format("{}: {:.3g} batches a second, and the median of the {} others is {:.3g}",
                                       pace.name, pace.rate(), rates.size(), rate));
    }
    if (pace.share() >= kWaits && pace.share() > kTimes * share) {
      verdicts.add("DR22", fmt::format("{}: it waited for data in {} of the time, and the others in {} (median of {})",
                                       pace.name, percent(pace.share()), percent(share), shares.size()));
      verdicts.advise("DR22",
                      "The others wait for this rank's batches: compare its node's mount, cache, network and free "
                      "processors with theirs, or leave the node out (`--exclude`).");
    }
  }
}

}  // namespace

void check_ranks(const Facts& facts, Verdicts& verdicts) {
  // The samples reach further back than the doctor has watched.
  for (const auto& seen : {paces_of_samples(facts), paces_of_processes(facts)}) {
    const std::vector<RankPace> paces = of_one_training(seen);
    if (paces.size() < 2) continue;
    compare_ranks(paces, verdicts);
    return;
  }
}

}  // namespace millrace::doctor
