// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "millrace/base/units.h"
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

void add_limits(const std::vector<TestResult>& results, const std::string& mount, std::vector<Meaning>& all) {
  constexpr double kMore = 1.3;
  const TestResult* one = find(results, mount, "read, one stream");
  const TestResult* read = find(results, mount, "read");
  if (one != nullptr && read != nullptr) {
    const double times = read->median() / std::max(one->median(), 1.0);
    all.push_back(
        {mount, "what limits reading",
         times < kMore ? "the device or the network: one stream gets all of it" : "one stream: more of them read more",
         fmt::format("{} streams read {:.1f} times what one reads", read->ranks, times)});
  }
  const TestResult* shared = find(results, mount, "write, shared file");
  const TestResult* write = find(results, mount, "write");
  if (shared != nullptr && write != nullptr && shared->median() * kMore < write->median()) {
    all.push_back({mount, "what limits a shared file", "locks or stripes: one file a rank is faster",
                   fmt::format("{} against {}", format_rate(shared->median()), format_rate(write->median()))});
  }
  const TestResult* small = find(results, mount, "read small files");
  if (small != nullptr && read != nullptr && small->unit == "B/s" && small->median() * kMore < read->median()) {
    all.push_back({mount, "what limits small files", "opening them: shards are read faster",
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
  }
  return all;
}

}  // namespace millrace::bench
