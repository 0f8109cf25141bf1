// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/partitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "millrace/base/text/json_members.h"

namespace millrace::plan {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxCount = 1'000'000;

// A whole number of 0 or more; `missing` where there is none. False: it is something else.
bool read_count(const Json& object, const char* key, int64_t missing, int64_t& to) {
  const auto found = object.find(key);
  to = missing;
  if (found == object.end()) return true;
  if (!found->is_number_integer() || *found < 0 || *found > kMaxCount * 1000) return false;
  to = found->get<int64_t>();
  return true;
}

bool read_number(const Json& object, const char* key, std::optional<double>& to) {
  const auto found = object.find(key);
  if (found == object.end()) return true;
  if (!found->is_number() || found->get<double>() < 0) return false;
  to = found->get<double>();
  return true;
}

bool read_free(const Json& entry, int64_t nodes, Partition& partition) {
  partition.free_gpus.assign(static_cast<size_t>(nodes), partition.gpus_per_node);
  const auto free = entry.find("free_gpus");
  if (free == entry.end()) return nodes > 0;
  if (!free->is_array() || (nodes > 0 && static_cast<int64_t>(free->size()) != nodes) || free->empty()) return false;
  partition.free_gpus.clear();
  for (const Json& count : *free) {
    if (!count.is_number_integer() || count < 0 || count > partition.gpus_per_node) return false;
    partition.free_gpus.push_back(count.get<int64_t>());
  }
  return true;
}

bool read_releases(const Json& entry, Partition& partition) {
  const auto releases = entry.find("releases");
  if (releases == entry.end()) return true;
  if (!releases->is_array()) return false;
  for (const Json& each : *releases) {
    int64_t node = 0, gpus = 0;
    std::optional<double> hours;
    if (!each.is_object() || !read_count(each, "node", 0, node) || !read_count(each, "gpus", 0, gpus) ||
        !read_number(each, "after_hours", hours) || !hours || node >= partition.nodes()) {
      return false;
    }
    partition.releases.push_back({static_cast<size_t>(node), *hours * 3600, gpus});
  }
  return true;
}

Result<Partition> partition_of(const Json& entry, size_t number) {
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, "partition {} of the file: {}", number, what);
  };
  if (!entry.is_object()) return wrong("it is not an object");
  Partition partition{.name = text_or_empty(entry, "name"),
                      .gpu = text_or_empty(entry, "gpu"),
                      .gpu_type = text_or_empty(entry, "gpu_type"),
                      .whole_nodes = bool_at(entry, "whole_nodes").value_or(false),
                      .preempted = bool_at(entry, "preempted").value_or(false)};
  if (partition.name.empty() || partition.gpu.empty()) return wrong("it has no \"name\" or no \"gpu\"");
  int64_t nodes = 0;
  std::optional<double> hours;
  if (!read_count(entry, "nodes", 0, nodes) || nodes > kMaxCount ||
      !read_count(entry, "gpus_per_node", 0, partition.gpus_per_node) || partition.gpus_per_node < 1) {
    return wrong("\"nodes\" and \"gpus_per_node\" are whole numbers of 1 or more");
  }
  if (!read_free(entry, nodes, partition))
    return wrong("\"free_gpus\" has one number a node, none above \"gpus_per_node\"");
  if (!read_count(entry, "cpus_per_node", 0, partition.cpus_per_node) ||
      !read_count(entry, "memory_mib", 0, partition.memory_mib) ||
      !read_count(entry, "pending_jobs", 0, partition.pending_jobs) || !read_number(entry, "max_hours", hours) ||
      !read_number(entry, "usd_per_gpu_hour", partition.usd_per_gpu_hour)) {
    return wrong("counts and prices are numbers of 0 or more");
  }
  if (hours && *hours <= 0) return wrong("\"max_hours\" is above 0");
  if (!read_releases(entry, partition)) return wrong("\"releases\" have \"node\", \"after_hours\" and \"gpus\"");
  if (hours) partition.max_time_s = *hours * 3600;
  return partition;
}

}  // namespace

int64_t Partition::gpus_free() const {
  return std::accumulate(free_gpus.begin(), free_gpus.end(), int64_t{0});
}

std::string Partition::state_text() const {
  std::string text = fmt::format("{} of {} GPUs free", gpus_free(), gpus());
  if (pending_jobs > 0) text += fmt::format(", {} job{} wait", pending_jobs, pending_jobs == 1 ? "" : "s");
  if (preempted) text += ", may be preempted";
  return text;
}

Result<std::vector<Partition>> parse_partitions(std::string_view json) {
  const Json file = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("partitions") || !file["partitions"].is_array()) {
    return fail(ErrorCode::kInvalidArgument, "a file of partitions is a JSON object with the list \"partitions\"");
  }
  std::vector<Partition> partitions;
  for (const Json& entry : file["partitions"]) {
    ASSIGN_OR_RETURN(Partition partition, partition_of(entry, partitions.size() + 1));
    partitions.push_back(std::move(partition));
  }
  return partitions;
}

std::optional<Placement> placement(const Partition& partition, int64_t gpus) {
  const int64_t each = partition.gpus_per_node;
  if (gpus < 1 || each < 1 || gpus > partition.gpus()) return std::nullopt;
  if (gpus <= each) return Placement{1, gpus};
  if (gpus % each != 0) return std::nullopt;
  return Placement{gpus / each, each};
}

std::optional<double> free_after_s(const Partition& partition, const Placement& wanted) {
  std::vector<int64_t> free = partition.free_gpus;
  const int64_t needs = partition.whole_nodes ? partition.gpus_per_node : wanted.gpus_per_node;
  const auto fits = [&] {
    return std::count_if(free.begin(), free.end(), [&](int64_t count) { return count >= needs; }) >= wanted.nodes;
  };
  if (fits()) return 0;
  std::vector<Release> releases = partition.releases;
  std::sort(releases.begin(), releases.end(), [](const Release& a, const Release& b) { return a.after_s < b.after_s; });
  for (const Release& release : releases) {
    free[release.node] += release.gpus;
    if (fits()) return release.after_s;
  }
  return std::nullopt;
}

}  // namespace millrace::plan
