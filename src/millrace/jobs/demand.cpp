// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/demand.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace millrace::jobs {

namespace {

// MiB of "16000M" and "1.50G"; 0 without a number.
int64_t mebibytes(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return 0;
  constexpr double kMebi = 1024;
  const char unit = end < text.data() + text.size() ? *end : 'M';
  return static_cast<int64_t>(unit == 'T'   ? value * kMebi * kMebi
                              : unit == 'G' ? value * kMebi
                              : unit == 'K' ? value / kMebi
                                            : value);
}

std::string field_text(const slurm::JobDetails& job, std::string_view name) {
  const auto found = job.fields.find(name);
  return found == job.fields.end() || found->second == "(null)" ? "" : found->second;
}

int64_t tasks_of_node(const slurm::Options& asked, int64_t nodes) {
  if (const auto tasks = asked.number("ntasks-per-node")) return std::max<int64_t>(1, *tasks);
  const int64_t tasks = asked.number("ntasks").value_or(1);
  return asked.has("nodes") ? std::max<int64_t>(1, (tasks + nodes - 1) / nodes) : 1;
}

void add_gpus(const slurm::Options& asked, int64_t tasks, Demand& demand) {
  for (const slurm::Gres& gres : slurm::parse_gres(asked.value("gres"))) {
    if (gres.name == "gpu") demand.gpus = gres.count, demand.gpu_type = gres.type;
  }
  const auto take = [&](std::string_view name, auto use) {
    if (!asked.has(name)) return;
    const slurm::Gres gpus = slurm::parse_gpus(asked.value(name));
    demand.gpu_type = gpus.type;
    use(gpus.count);
  };
  take("gpus", [&](int64_t count) {
    if (asked.has("nodes")) {
      demand.gpus = (count + demand.nodes - 1) / demand.nodes;
    } else {
      demand.gpus = std::min<int64_t>(1, count);
      demand.total_gpus = count;
    }
  });
  take("gpus-per-task", [&](int64_t count) { demand.gpus = count * tasks; });
  take("gpus-per-node", [&](int64_t count) { demand.gpus = count; });
}

}  // namespace

Demand demand_of(const slurm::JobDetails& job) {
  Demand demand;
  demand.nodes = std::max<int64_t>(1, front_number(field_text(job, "NumNodes")));
  demand.cpus = (front_number(field_text(job, "NumCPUs")) + demand.nodes - 1) / demand.nodes;
  const std::string of_node = field_text(job, "MinMemoryNode"), of_cpu = field_text(job, "MinMemoryCPU");
  demand.memory_mib = of_node.empty() ? mebibytes(of_cpu) * demand.cpus : mebibytes(of_node);
  for (const char* name : {"TresPerNode", "TresPerTask", "TresPerJob", "Gres"}) {
    for (const slurm::Gres& gres : slurm::parse_gres(field_text(job, name))) {
      if (gres.name != "gpu") continue;
      const bool of_job = std::string_view(name) == "TresPerJob";
      demand.gpus = std::max(demand.gpus, of_job ? (gres.count + demand.nodes - 1) / demand.nodes : gres.count);
      if (!gres.type.empty()) demand.gpu_type = gres.type;
    }
  }
  return demand;
}

Demand demand_of(const slurm::Options& asked) {
  Demand demand;
  demand.nodes = std::max<int64_t>(1, front_number(asked.value("nodes")));
  const int64_t tasks = tasks_of_node(asked, demand.nodes);
  add_gpus(asked, tasks, demand);
  demand.cpus = tasks * std::max<int64_t>(1, asked.number("cpus-per-task").value_or(1));
  if (const auto of_gpu = asked.number("cpus-per-gpu")) demand.cpus = std::max(demand.cpus, *of_gpu * demand.gpus);
  demand.memory_mib = std::max({mebibytes(asked.value("mem")), mebibytes(asked.value("mem-per-cpu")) * demand.cpus,
                                mebibytes(asked.value("mem-per-gpu")) * demand.gpus});
  return demand;
}

int64_t gpus_of(const slurm::Node& node, const Demand& demand, bool free_only) {
  int64_t gpus = 0;
  for (const slurm::GpuKind& kind : node.gpu_kinds()) {
    if (demand.gpu_type.empty() || kind.type == demand.gpu_type) gpus += kind.count - (free_only ? kind.used : 0);
  }
  return gpus;
}

bool fits(const slurm::Node& node, const Demand& demand, bool free_only) {
  const int64_t cpus = node.cpus - (free_only ? node.cpus_used : 0);
  const int64_t memory = node.memory_mib - (free_only ? node.memory_used_mib : 0);
  return cpus >= demand.cpus && memory >= demand.memory_mib && gpus_of(node, demand, free_only) >= demand.gpus;
}

bool is_in(const slurm::Node& node, std::string_view partitions) {
  const std::string list = fmt::format(",{},", partitions);
  return std::any_of(node.partitions.begin(), node.partitions.end(),
                     [&](const std::string& name) { return list.find("," + name + ",") != std::string::npos; });
}

std::string demand_text(const Demand& demand) {
  std::string text = fmt::format("{} node{} of {} CPUs", demand.nodes, demand.nodes == 1 ? "" : "s", demand.cpus);
  if (demand.memory_mib > 0) text += fmt::format(", {} MiB", demand.memory_mib);
  if (demand.gpus > 0) {
    text += fmt::format(", {} {}GPU{}", demand.gpus, demand.gpu_type.empty() ? "" : demand.gpu_type + " ",
                        demand.gpus == 1 ? "" : "s");
  }
  return text;
}

int64_t front_number(std::string_view text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace millrace::jobs
