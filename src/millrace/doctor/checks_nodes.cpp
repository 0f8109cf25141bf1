// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "millrace/base/text/units.h"
#include "millrace/doctor/checks.h"

namespace millrace::doctor {

namespace {

using Points = std::vector<Point>;

constexpr size_t kLeastSamples = 5;
constexpr double kLeastSpan = 2;

// The value of a label in a series' key; "" without it.
std::string label(std::string_view key, std::string_view name) {
  const std::string word = std::string(name) + "=\"";
  const size_t at = key.find(word);
  if (at == std::string_view::npos) return {};
  const size_t begin = at + word.size();
  return std::string(key.substr(begin, key.find('"', begin) - begin));
}

double mean(const Points& points) {
  double sum = 0;
  for (const Point& point : points) sum += point.value;
  return points.empty() ? 0 : sum / static_cast<double>(points.size());
}

double largest(const Points& points) {
  double most = 0;
  for (const Point& point : points) most = std::max(most, point.value);
  return most;
}

// How far a counter came; one that began again from 0 is counted on.
double growth(const Points& points) {
  double sum = 0;
  for (size_t i = 1; i < points.size(); ++i) {
    const double step = points[i].value - points[i - 1].value;
    sum += step >= 0 ? step : points[i].value;
  }
  return sum;
}

double seconds_of(const Points& points) {
  return points.size() < 2 ? 0 : points.back().time - points.front().time;
}

bool is_enough(const Points& points) {
  return points.size() >= kLeastSamples && seconds_of(points) >= kLeastSpan;
}

// What a counter grew by in a second; 0 for too few samples.
double rate(const Points& points) {
  return is_enough(points) ? growth(points) / seconds_of(points) : 0;
}

// The samples of one node within a run.
class Node {
 public:
  Node(const NodeSamples& samples, double from, double to) : samples_(samples), from_(from), to_(to) {}

  const std::string& host() const { return samples_.host; }
  double begun() const { return std::max(from_, samples_.begun()); }
  double ended() const { return std::min(to_, samples_.ended()); }

  Points points(std::string_view key) const {
    const auto found = samples_.series.find(key);
    Points inside;
    if (found == samples_.series.end()) return inside;
    for (const Point& point : found->second) {
      if (point.time >= from_ && point.time <= to_) inside.push_back(point);
    }
    return inside;
  }

  // All series of a name, with or without labels.
  void each(std::string_view name,
            const std::function<void(const std::string& key, const Points& points)>& take) const {
    for (auto at = samples_.series.lower_bound(name); at != samples_.series.end() && at->first.starts_with(name);
         ++at) {
      if (at->first.size() == name.size() || at->first[name.size()] == '{') take(at->first, points(at->first));
    }
  }

 private:
  const NodeSamples& samples_;
  double from_, to_;
};

std::string over(const Points& points) {
  return fmt::format("over {} up to {}", format_duration(seconds_of(points)), moment(points.back().time));
}

// What the loaders of the node show of themselves, as the monitor wrote it down.
void check_waits(const Node& node, Verdicts& verdicts) {
  constexpr double kWaits = 0.05, kLeastBatches = 10;
  const Points waiting = node.points("millrace_training_waiting_ratio");
  const double batches = growth(node.points("millrace_training_batches_total"));
  if (!is_enough(waiting) || batches < kLeastBatches || mean(waiting) < kWaits) return;
  verdicts.add("DR17", fmt::format("{}: training waited for {:.0f} batches {} of the time {}", node.host(), batches,
                                   percent(mean(waiting)), over(waiting)));
}

void check_gpu_use(const Node& node, Verdicts& verdicts) {
  constexpr double kLow = 0.5, kSmallMemory = 0.5;
  double sum = 0;
  int gpus = 0;
  std::string each_gpu;
  Points any;
  node.each("millrace_gpu_busy_ratio", [&](const std::string& key, const Points& points) {
    if (!is_enough(points)) return;
    ++gpus;
    sum += mean(points);
    each_gpu += fmt::format("{}GPU {} {}", each_gpu.empty() ? "" : ", ", label(key, "gpu"), percent(mean(points)));
    any = points;
  });
  if (gpus == 0 || sum >= kLow * gpus) return;
  verdicts.add("DR20",
               fmt::format("{}: busy for {} on average {}: {}", node.host(), percent(sum / gpus), over(any), each_gpu));
  double used = 0, size = 0;
  node.each("millrace_gpu_memory_used_bytes",
            [&](const std::string&, const Points& points) { used += largest(points); });
  node.each("millrace_gpu_memory_size_bytes",
            [&](const std::string&, const Points& points) { size += largest(points); });
  if (size > 0 && used < kSmallMemory * size) {
    verdicts.add("DR20", fmt::format("{}: at most {} of GPU memory was in use: a larger batch fits", node.host(),
                                     percent(used / size)));
  }
}

void check_clocks(const Node& node, Verdicts& verdicts) {
  constexpr double kOften = 0.02;
  node.each("millrace_gpu_clock_lowered", [&](const std::string& key, const Points& points) {
    // A GPU at its power limit does what it can.
    if (!is_enough(points) || label(key, "reason") == "power_cap" || mean(points) < kOften) return;
    const std::string gpu = label(key, "gpu");
    const double celsius = largest(node.points(fmt::format("millrace_gpu_temperature_celsius{{gpu=\"{}\"}}", gpu)));
    verdicts.add("DR21",
                 fmt::format("{} GPU {}: {} in {} of the samples{}", node.host(), gpu, label(key, "reason"),
                             percent(mean(points)), celsius > 0 ? fmt::format(", up to {:.0f} C", celsius) : ""));
  });
}

void check_failing(const Node& node, Verdicts& verdicts) {
  constexpr double kReplays = 1, kGone = 5;
  node.each("millrace_gpu_ecc_uncorrected_total", [&](const std::string& key, const Points& points) {
    if (points.empty() || points.back().value <= 0) return;
    verdicts.add("DR13",
                 fmt::format("{} GPU {}: {:.0f} ECC errors not corrected since boot, {:.0f} of them in this time",
                             node.host(), label(key, "gpu"), points.back().value, growth(points)));
  });
  node.each("millrace_gpu_xid_total", [&](const std::string& key, const Points& points) {
    if (growth(points) <= 0 && (points.empty() || points.back().value <= 0)) return;
    verdicts.add("DR13", fmt::format("{} GPU {}: Xid {}", node.host(), label(key, "gpu"), label(key, "xid")));
  });
  node.each("millrace_gpu_pcie_replays_total", [&](const std::string& key, const Points& points) {
    if (rate(points) < kReplays) return;
    verdicts.add("DR13", fmt::format("{} GPU {}: {:.1f} PCIe transfers a second were repeated", node.host(),
                                     label(key, "gpu"), rate(points)));
  });
  const Points processors = node.points("millrace_node_processors");
  if (!is_enough(processors)) return;
  const double between = seconds_of(processors) / static_cast<double>(processors.size() - 1);
  node.each("millrace_gpu_power_watts", [&](const std::string& key, const Points& points) {
    if (points.empty() || points.back().time > processors.back().time - kGone * between) return;
    verdicts.add("DR13",
                 fmt::format("{} GPU {}: it answered last at {}, and the node was sampled until {}", node.host(),
                             label(key, "gpu"), moment(points.back().time), moment(processors.back().time)));
  });
}

void check_memory(const Node& node, Verdicts& verdicts) {
  constexpr double kFull = 0.95, kStalls = 0.05, kHour = 3600, kSoonHours = 24;
  const Points available = node.points("millrace_node_memory_bytes{kind=\"available\"}"),
               total = node.points("millrace_node_memory_bytes{kind=\"total\"}");
  if (!available.empty() && !total.empty()) {
    const auto least = std::min_element(available.begin(), available.end(),
                                        [](const Point& a, const Point& b) { return a.value < b.value; });
    if (least->value < (1 - kFull) * total.back().value) {
      verdicts.add("DR23", fmt::format("{}: {} of {} were available at {}", node.host(),
                                       format_bytes(static_cast<int64_t>(least->value)),
                                       format_bytes(static_cast<int64_t>(total.back().value)), moment(least->time)));
    }
    // Memory that goes away in each quarter of the time.
    const size_t quarter = available.size() / 4;
    if (seconds_of(available) >= kHour && quarter > 0) {
      const std::array<double, 5> at{available[0].value, available[quarter].value, available[2 * quarter].value,
                                     available[3 * quarter].value, available.back().value};
      const double lost = (at[0] - at[4]) / seconds_of(available);
      const bool falls = std::is_sorted(at.rbegin(), at.rend());
      const double even = lost > 0 ? (at[0] - at[2]) / (at[0] - at[4]) : 0;
      if (falls && even > 0.3 && even < 0.7 && at[4] < lost * kSoonHours * kHour) {
        verdicts.add("DR23",
                     fmt::format("{}: available memory falls by {} an hour; it is used up in {}", node.host(),
                                 format_bytes(static_cast<int64_t>(lost * kHour)), format_duration(at[4] / lost)));
      }
    }
  }
  const Points used = node.points("millrace_cgroup_memory_bytes"),
               limit = node.points("millrace_cgroup_memory_limit_bytes");
  if (!limit.empty() && largest(used) > kFull * limit.back().value) {
    verdicts.add("DR23", fmt::format("{}: the job's cgroup held {} of its {}", node.host(),
                                     format_bytes(static_cast<int64_t>(largest(used))),
                                     format_bytes(static_cast<int64_t>(limit.back().value))));
  }
  const double stalled = rate(node.points("millrace_node_pressure_seconds_total{resource=\"memory\",kind=\"full\"}"));
  if (stalled > kStalls) {
    verdicts.add("DR23",
                 fmt::format("{}: all tasks waited for memory in {} of the time", node.host(), percent(stalled)));
  }
  const double kills = growth(node.points("millrace_cgroup_oom_kills_total"));
  if (kills > 0)
    verdicts.add("DR02", fmt::format("{}: the kernel killed {:.0f} processes of the cgroup", node.host(), kills));
}

void check_processors(const Node& node, Verdicts& verdicts) {
  constexpr double kIdle = 0.05, kWaits = 0.3, kThrottled = 0.05;
  double all = 0, idle = 0;
  node.each("millrace_node_cpu_seconds_total", [&](const std::string& key, const Points& points) {
    all += rate(points);
    if (label(key, "mode") == "idle") idle += rate(points);
  });
  const double waits = rate(node.points("millrace_node_pressure_seconds_total{resource=\"cpu\",kind=\"some\"}"));
  if (all > 0 && idle < kIdle * all && waits > kWaits) {
    verdicts.add("DR24", fmt::format("{}: the processors were idle for {}, and tasks waited for one in {} of the time",
                                     node.host(), percent(idle / all), percent(waits)));
  }
  const double held = rate(node.points("millrace_cgroup_cpu_throttled_seconds_total"));
  if (held > kThrottled) {
    verdicts.add("DR24",
                 fmt::format("{}: the cgroup's limit held tasks back for {:.2f} s of each second", node.host(), held));
  }
}

void check_io(const Node& node, Verdicts& verdicts) {
  constexpr double kStalls = 0.1, kSlowCall = 0.1;
  const double stalled = rate(node.points("millrace_node_pressure_seconds_total{resource=\"io\",kind=\"full\"}"));
  if (stalled > kStalls) {
    verdicts.add("DR25", fmt::format("{}: all tasks waited for I/O in {} of the time", node.host(), percent(stalled)));
    node.each("millrace_disk_busy_seconds_total", [&](const std::string& key, const Points& points) {
      if (rate(points) > 0.5) {
        verdicts.add("DR25", fmt::format("{}: disk {} was busy for {}", node.host(), label(key, "device"),
                                         percent(rate(points))));
      }
    });
  }
  node.each("millrace_nfs_timeouts_total", [&](const std::string& key, const Points& points) {
    if (growth(points) <= 0) return;
    verdicts.add("DR25", fmt::format("{}: {:.0f} {} calls to {} had no answer in time", node.host(), growth(points),
                                     label(key, "operation"), label(key, "mount")));
  });
  node.each("millrace_nfs_operation_seconds_total", [&](const std::string& key, const Points& points) {
    const std::string labels = key.substr(key.find('{'));
    const double calls = growth(node.points("millrace_nfs_operations_total" + labels));
    if (calls < 10 || growth(points) / calls < kSlowCall) return;
    verdicts.add("DR25", fmt::format("{}: a {} call to {} took {} on average", node.host(), label(key, "operation"),
                                     label(key, "mount"), format_duration(growth(points) / calls)));
  });
}

void check_network(const Node& node, Verdicts& verdicts) {
  constexpr double kOften = 1;
  node.each("millrace_network_errors_total", [&](const std::string& key, const Points& points) {
    if (rate(points) < kOften) return;
    verdicts.add("DR26", fmt::format("{} {}: {:.1f} packets a second were broken or dropped {}", node.host(),
                                     label(key, "device"), rate(points), over(points)));
  });
  // Names of EFA's driver and of mlx5.
  static constexpr std::array<std::string_view, 10> kBad{
      "rdma_read_wr_err",           "rdma_write_wr_err", "retrans_timeout_events",
      "unresponsive_remote_events", "cmds_err",          "rx_drops",
      "local_ack_timeout_err",      "packet_seq_err",    "out_of_sequence",
      "impaired_remote_conn_events"};
  node.each("millrace_rdma_hardware_total", [&](const std::string& key, const Points& points) {
    const std::string counter = label(key, "counter");
    if (growth(points) <= 0 || std::find(kBad.begin(), kBad.end(), counter) == kBad.end()) return;
    verdicts.add("DR26", fmt::format("{} {}: {} grew by {:.0f} {}", node.host(), label(key, "device"), counter,
                                     growth(points), over(points)));
  });
}

// All GPUs of all nodes beside each other: in the same work they have the same clock.
void check_slow_gpus(const std::vector<Node>& nodes, Verdicts& verdicts) {
  constexpr double kBehind = 0.9, kAtWork = 0.5;
  constexpr size_t kLeastGpus = 3;
  std::vector<std::pair<double, std::string>> clocks;
  for (const Node& node : nodes) {
    node.each("millrace_gpu_sm_clock_hertz", [&](const std::string& key, const Points& points) {
      const std::string gpu = label(key, "gpu");
      const Points busy = node.points(fmt::format("millrace_gpu_busy_ratio{{gpu=\"{}\"}}", gpu));
      if (is_enough(points) && mean(busy) >= kAtWork) clocks.push_back({mean(points), node.host() + " GPU " + gpu});
    });
  }
  if (clocks.size() < kLeastGpus) return;
  std::sort(clocks.begin(), clocks.end());
  const double median = clocks[clocks.size() / 2].first;
  for (const auto& [clock, name] : clocks) {
    if (clock >= kBehind * median) break;
    verdicts.add("DR22", fmt::format("{}: {:.0f} MHz at work, and the median of {} GPUs is {:.0f} MHz", name,
                                     clock / 1e6, clocks.size(), median / 1e6));
  }
}

}  // namespace

void check_nodes(const Facts& facts, Verdicts& verdicts) {
  double from = 0, to = 1e18;
  if (facts.record) {
    from = facts.record->starts.back().begun;
    // One that still runs, or was killed, goes on behind its last line.
    if (!facts.record->status().empty()) to = facts.record->starts.back().last;
  }
  std::vector<Node> nodes;
  for (const NodeSamples& samples : facts.nodes) {
    const Node node(samples, from, to);
    if (node.begun() < node.ended()) nodes.push_back(node);
  }
  for (const Node& node : nodes) {
    if (!facts.record) check_waits(node, verdicts);  // a record tells the same of the whole run
    check_gpu_use(node, verdicts);
    check_clocks(node, verdicts);
    check_failing(node, verdicts);
    check_memory(node, verdicts);
    check_processors(node, verdicts);
    check_io(node, verdicts);
    check_network(node, verdicts);
  }
  check_slow_gpus(nodes, verdicts);
}

}  // namespace millrace::doctor
