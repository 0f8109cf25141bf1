// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "millrace/base/text/units.h"
#include "millrace/bench/storage_bench.h"
#include "millrace/plan/checkpoints.h"

namespace millrace::bench {

namespace {

// Bytes a second that keep one H100 at the share of MLPerf Storage's rules (mlcommons/storage v2.0: sample size, batch
// and step time of each workload times that share).
struct Workload {
  const char* name;
  double bytes_per_s;
  const char* share;
};
constexpr std::array<Workload, 3> kWorkloads{{{"3D U-Net (whole files of 147 MB)", 2.86e9, "90 %"},
                                              {"ResNet-50 (115 KB a sample)", 0.184e9, "90 %"},
                                              {"CosmoFlow (2.83 MB a sample)", 0.57e9, "70 %"}}};
constexpr double kBytesPerToken = 4;  // of an id in a shard

const TestResult* find(const std::vector<TestResult>& results, const std::string& mount, std::string_view test) {
  const auto found = std::find_if(results.begin(), results.end(),
                                  [&](const TestResult& each) { return each.mount == mount && each.test == test; });
  return found == results.end() ? nullptr : &*found;
}

void add_loading(const std::vector<TestResult>& results, const std::string& mount, std::vector<Meaning>& all) {
  const TestResult* read = find(results, mount, "read");
  if (read == nullptr) return;
  const double rate = read->median();
  for (const Workload& work : kWorkloads) {
    all.push_back({mount, fmt::format("GPUs that it feeds: {}", work.name),
                   fmt::format("{:.1f}", rate / work.bytes_per_s),
                   fmt::format("{} / {} a H100 at {} utilisation (MLPerf Storage v2.0)", format_rate(rate),
                               format_rate(work.bytes_per_s), work.share)});
  }
  all.push_back({mount, "token ids that it feeds, of 4 bytes each",
                 format_count(static_cast<int64_t>(rate / kBytesPerToken)) + " tokens/s",
                 fmt::format("{} / 4 bytes", format_rate(rate))});
}

void add_checkpoints(const std::vector<TestResult>& results, const std::string& mount, const MeaningOptions& options,
                     std::vector<Meaning>& all) {
  const TestResult* burst = find(results, mount, "checkpoint write");
  if (burst == nullptr || options.checkpoint_bytes <= 0) return;
  plan::CheckpointOptions asked;
  asked.bytes = options.checkpoint_bytes;
  asked.bandwidth_bytes_per_s = burst->median();
  asked.gpus = options.gpus;
  const auto plan = plan::plan_checkpoints(asked);
  if (!plan || !plan->write_s || !plan->daly_s) return;
  const std::string size = format_bytes(static_cast<int64_t>(options.checkpoint_bytes));
  all.push_back({mount, "a checkpoint of " + size, format_duration(*plan->write_s),
                 fmt::format("{} / {}", size, format_rate(burst->median()))});
  all.push_back({mount, fmt::format("best time between checkpoints of {} GPUs", options.gpus),
                 format_duration(*plan->daly_s),
                 fmt::format("Daly 2006, where training stands while it is written; {:.1f} % of the time is lost",
                             plan->overhead.value_or(0) * 100)});
}

constexpr double kMore = 1.3;  // a choice: above what rounds differ by

// What more of gives more: nodes, files or streams, in this order; else what all of them share.
void add_reading(const std::vector<TestResult>& results, const std::string& mount, std::vector<Meaning>& all) {
  const TestResult* stream = find(results, mount, "read, one stream");
  const TestResult* read = find(results, mount, "read");
  if (stream == nullptr || read == nullptr) return;
  const TestResult* of_node = find(results, mount, "read, one node");
  const TestResult* node = of_node == nullptr ? read : of_node;
  const TestResult* file = find(results, mount, "read, one file");
  const auto times = [](const TestResult& more, const TestResult& one) {
    return more.median() / std::max(one.median(), 1.0);
  };
  const char* const what = "what limits reading";
  if (of_node != nullptr && times(*read, *of_node) >= kMore) {
    all.push_back({mount, what, "one client's limit: more nodes read more",
                   fmt::format("{} nodes read {:.1f} times what one reads", read->nodes, times(*read, *of_node))});
  } else if (file != nullptr && times(*node, *file) >= kMore) {
    all.push_back({mount, what, "striping: more files, or more stripes of one, read more",
                   fmt::format("{} ranks read {} of a file each, {} of one file", node->ranks,
                               format_rate(node->median()), format_rate(file->median()))});
  } else if (times(*node, *stream) >= kMore) {
    all.push_back({mount, what, "one stream: more of them read more",
                   fmt::format("{} streams read {:.1f} times what one reads", node->ranks, times(*node, *stream))});
  } else {
    all.push_back({mount, what, "the device or the network: one stream gets all of it",
                   fmt::format("{} streams read {:.1f} times what one reads{}", node->ranks, times(*node, *stream),
                               of_node == nullptr ? "; --nodes 2 tells one client's limit from the servers'" : "")});
  }
}

// The first place of a sweep that gives nearly as much as the best one.
void add_needed(const std::vector<TestResult>& results, const std::string& mount, std::string_view sweep,
                std::string_view test, const char* what, std::vector<Meaning>& all) {
  constexpr double kNearly = 0.9;
  std::vector<const TestResult*> steps;
  double best = 0;
  for (const TestResult& each : results) {
    if (each.mount != mount || each.sweep != sweep || !each.test.starts_with(test)) continue;
    steps.push_back(&each);
    best = std::max(best, each.median());
  }
  const auto enough =
      std::find_if(steps.begin(), steps.end(), [&](const auto* each) { return each->median() >= kNearly * best; });
  if (enough == steps.end()) return;
  const int64_t place = (*enough)->place;
  all.push_back({mount, what, sweep == "size" ? size_name(place) : std::to_string(place),
                 fmt::format("the least of {} that gives {:.0f} % of the best", steps.size(), 100 * kNearly)});
}

void add_limits(const std::vector<TestResult>& results, const std::string& mount, std::vector<Meaning>& all) {
  add_reading(results, mount, all);
  const TestResult* read = find(results, mount, "read");
  const TestResult* shared = find(results, mount, "write, shared file");
  const TestResult* write = find(results, mount, "write");
  if (shared != nullptr && write != nullptr && shared->median() * kMore < write->median()) {
    all.push_back({mount, "what limits a shared file", "locks or stripes: one file a rank is faster",
                   fmt::format("{} against {}", format_rate(shared->median()), format_rate(write->median()))});
  }
  const TestResult* small = find(results, mount, "read small files");
  if (small != nullptr && read != nullptr && small->unit == "B/s" && small->median() * kMore < read->median()) {
    all.push_back({mount, "what limits small files", "metadata, opening them: shards are read faster",
                   fmt::format("{} in files of {} against {}", format_rate(small->median()),
                               format_bytes(small->request_bytes), format_rate(read->median()))});
  }
}

}  // namespace

std::vector<Meaning> meanings(const std::vector<TestResult>& results, const MeaningOptions& options) {
  std::vector<std::string> mounts;
  for (const TestResult& result : results) {
    if (std::find(mounts.begin(), mounts.end(), result.mount) == mounts.end()) mounts.push_back(result.mount);
  }
  std::vector<Meaning> all;
  for (const std::string& mount : mounts) {
    add_loading(results, mount, all);
    add_checkpoints(results, mount, options, all);
    add_limits(results, mount, all);
    add_needed(results, mount, "depth", "read random", "requests at once that random reads need", all);
    add_needed(results, mount, "depth", "write random", "requests at once that random writes need", all);
    add_needed(results, mount, "size", "read files", "size of files that reading needs", all);
    add_needed(results, mount, "size", "write files", "size of files that writing needs", all);
  }
  return all;
}

}  // namespace millrace::bench
