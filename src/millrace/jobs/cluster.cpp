// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/cluster.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/base/text/json_members.h"
#include "millrace/base/text/strings.h"
#include "millrace/pcluster/model.h"

namespace millrace::jobs {

namespace {

// The type that ParallelCluster gives the GPUs of an instance family in gres.conf.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kGpuTypes = {{{"p5e.", "h200"},
                                                                                      {"p5en.", "h200"},
                                                                                      {"p5.", "h100"},
                                                                                      {"p4d.", "a100"},
                                                                                      {"p4de.", "a100"},
                                                                                      {"p6-b200.", "b200"},
                                                                                      {"p6-b300.", "b300"},
                                                                                      {"p3.", "v100"},
                                                                                      {"p3dn.", "v100"},
                                                                                      {"g4dn.", "t4"},
                                                                                      {"g5.", "a10g"},
                                                                                      {"g6.", "l4"},
                                                                                      {"g6e.", "l40s"}}};

std::string_view gpu_type_of(std::string_view instance) {
  const auto* const found = std::find_if(kGpuTypes.begin(), kGpuTypes.end(),
                                         [&](const auto& each) { return instance.starts_with(each.first); });
  return found == kGpuTypes.end() ? std::string_view() : found->second;
}

// For a queue with several kinds of nodes, only their common properties are known.
ClusterFacts::Partition partition_from(const pcluster::Queue& queue) {
  ClusterFacts::Partition out{.name = queue.name};
  const pcluster::Instance* only = nullptr;
  bool alike = true;
  for (const pcluster::Resource& resource : queue.resources) {
    out.nodes += resource.max_count;
    out.dynamic = out.dynamic || resource.min_count < resource.max_count;
    alike = alike && resource.known.size() == 1 && resource.types.size() == 1 &&
            (only == nullptr || only == resource.known[0]);
    if (!resource.known.empty()) only = resource.known[0];
  }
  if (only == nullptr || !alike) return out;
  out.known_instance = true;
  out.instance = std::string(only->name);
  out.gpus = only->gpus;
  out.gpu_type = std::string(gpu_type_of(only->name));
  out.cpus = only->vcpus;
  out.efa_interfaces = only->efa_interfaces;
  return out;
}

// Something that runs when a node starts may install it; its name says so, where it says anything.
bool installs_containers(const pcluster::Queue& queue) {
  const yaml::Node* actions = pcluster::at(queue.node, "CustomActions");
  if (actions == nullptr) return false;
  std::vector<const yaml::Node*> open{actions};
  while (!open.empty()) {
    const yaml::Node* node = open.back();
    open.pop_back();
    for (const std::string_view word : {"pyxis", "enroot"}) {
      if (node->is_scalar() && node->text.find(word) != std::string::npos) return true;
    }
    for (const yaml::Node& item : node->items) open.push_back(&item);
    for (const yaml::Entry& entry : node->entries) open.push_back(&entry.value);
  }
  return false;
}

}  // namespace

Result<ClusterFacts> read_cluster_facts(std::string_view name, std::string_view text) {
  const yaml::Document document = yaml::parse(text);
  for (const yaml::Problem& problem : document.problems) {
    if (problem.kind == yaml::Problem::Kind::kSyntax) {
      return fail(ErrorCode::kInvalidArgument, "{}:{}:{}: {}", name, problem.at.line, problem.at.column,
                  problem.message);
    }
  }
  const pcluster::ConfigLintOptions options;
  const pcluster::Cluster cluster = pcluster::read_cluster(document, options, {});
  if (cluster.queues.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{} has no SlurmQueues: is it a ParallelCluster file?", name);
  }
  ClusterFacts facts{.source = std::string(name)};
  for (const pcluster::Queue& queue : cluster.queues) {
    facts.partitions.push_back(partition_from(queue));
    facts.containers = facts.containers || installs_containers(queue);
  }
  for (const pcluster::Storage& storage : cluster.storages) {
    if (!storage.mount.empty()) facts.mounts.push_back(storage.mount);
  }
  facts.memory_scheduling = pcluster::bool_at(cluster.slurm_settings, "EnableMemoryBasedScheduling").value_or(false);
  return facts;
}

Result<PlanFacts> read_plan_facts(std::string_view name, std::string_view text) {
  PlanFacts facts{.source = std::string(name)};
  while (!text.empty()) {
    const auto object = nlohmann::json::parse(take_line(text), nullptr, false);
    const auto model = text_at(object, "model");
    const auto nodes = integer_at(object, "nodes");
    if (text_or_empty(object, "type") == "plan_model" && model && nodes) facts.allocations.push_back({*model, *nodes});
  }
  if (facts.allocations.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{} holds no plan: write it with `millrace plan nodes ... --json`", name);
  }
  return facts;
}

}  // namespace millrace::jobs
