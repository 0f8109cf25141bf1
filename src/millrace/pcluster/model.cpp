// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/model.h"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::pcluster {

namespace {

using yaml::Node;

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kSettings = {{
    {"Ebs", "EbsSettings"},
    {"Efs", "EfsSettings"},
    {"FsxLustre", "FsxLustreSettings"},
    {"FsxOpenZfs", "FsxOpenZfsSettings"},
    {"FsxOntap", "FsxOntapSettings"},
    {"FileCache", "FileCacheSettings"},
}};

void add_type(Resource& resource, const Node* type) {
  if (type == nullptr || !type->is_scalar()) return;
  resource.types.push_back(type);
  if (const Instance* known = find_instance(type->text); known != nullptr) resource.known.push_back(known);
}

const Node* nearest(const Resource& resource, const Node* queue, std::initializer_list<std::string_view> path) {
  const Node* own = at(resource.node, path);
  return own != nullptr ? own : at(queue, path);
}

Resource read_resource(const Node& node, const Node& queue) {
  Resource resource{.node = &node, .name = std::string(text_at(&node, "Name"))};
  resource.is_list = node.find("Instances") != nullptr;
  if (resource.is_list) {
    for (const Node& item : items_at(&node, "Instances")) add_type(resource, item.find("InstanceType"));
  } else {
    add_type(resource, node.find("InstanceType"));
  }
  resource.min_count = int_at(&node, "MinCount").value_or(0);
  resource.max_count = int_at(&node, "MaxCount").value_or(10);
  resource.efa = bool_at(at(&node, "Efa"), "Enabled").value_or(false);
  resource.smt = !bool_at(&node, "DisableSimultaneousMultithreading").value_or(false);
  const Node* target = nearest(resource, &queue, {"CapacityReservationTarget"});
  resource.reservation_id = at(target, "CapacityReservationId");
  resource.reservation_group = at(target, "CapacityReservationResourceGroupArn");
  resource.placement = nearest(resource, &queue, {"Networking", "PlacementGroup"});
  return resource;
}

Queue read_queue(const Node& node) {
  Queue queue{.node = &node, .name = std::string(text_at(&node, "Name"))};
  if (const std::string_view type = text_at(&node, "CapacityType"); !type.empty()) queue.capacity_type = type;
  queue.networking = at(&node, "Networking");
  for (const Node& subnet : items_at(queue.networking, "SubnetIds")) queue.subnets.push_back(&subnet);
  for (const Node& resource : items_at(&node, "ComputeResources")) {
    if (resource.is_mapping()) queue.resources.push_back(read_resource(resource, node));
  }
  return queue;
}

Storage read_storage(const Node& node) {
  Storage storage{.node = &node, .name = std::string(text_at(&node, "Name")), .type = text_at(&node, "StorageType")};
  storage.mount = std::string(text_at(&node, "MountDir"));
  if (!storage.mount.empty() && storage.mount[0] != '/') storage.mount.insert(0, "/");
  storage.settings = at(&node, settings_of(storage.type));
  for (const char* id : {"FileSystemId", "VolumeId", "FileCacheId"}) {
    storage.existing = storage.existing || at(storage.settings, id) != nullptr;
  }
  return storage;
}

}  // namespace

const Node* at(const Node* node, std::string_view key) {
  return node == nullptr ? nullptr : node->find(key);
}

const Node* at(const Node* node, std::initializer_list<std::string_view> path) {
  for (const std::string_view key : path) node = at(node, key);
  return node;
}

std::string_view text_at(const Node* node, std::string_view key) {
  const Node* value = at(node, key);
  return value == nullptr || !value->is_scalar() ? std::string_view() : std::string_view(value->text);
}

std::optional<bool> bool_at(const Node* node, std::string_view key) {
  const Node* value = at(node, key);
  return value == nullptr ? std::nullopt : yaml::as_bool(*value);
}

std::optional<int64_t> int_at(const Node* node, std::string_view key) {
  const Node* value = at(node, key);
  return value == nullptr ? std::nullopt : yaml::as_int(*value);
}

const std::vector<Node>& items_at(const Node* node, std::string_view key) {
  static const std::vector<Node> kNone;
  const Node* value = at(node, key);
  return value == nullptr ? kNone : value->items;
}

yaml::Place place_of(const Node& node, std::string_view key) {
  const yaml::Entry* entry = node.entry(key);
  return entry == nullptr ? node.at : entry->at;
}

int64_t Resource::gpus() const {
  int64_t most = 0;
  for (const Instance* instance : known) most = std::max(most, instance->gpus);
  return most;
}

int64_t Resource::addresses() const {
  int64_t most = known.empty() ? 0 : 1;
  for (const Instance* instance : known) most = std::max(most, instance->addresses());
  return most;
}

int64_t Cluster::max_nodes() const {
  int64_t nodes = 0;
  for (const Queue& queue : queues) {
    for (const Resource& resource : queue.resources) nodes += resource.max_count;
  }
  return nodes;
}

int64_t Cluster::max_gpus() const {
  int64_t gpus = 0;
  for (const Queue& queue : queues) {
    for (const Resource& resource : queue.resources) gpus += resource.max_count * resource.gpus();
  }
  return gpus;
}

std::string_view settings_of(std::string_view storage_type) {
  const auto found =
      std::find_if(kSettings.begin(), kSettings.end(), [&](const auto& s) { return s.first == storage_type; });
  return found == kSettings.end() ? std::string_view() : found->second;
}

const Node* find_queues(const Node& root) {
  const Node* queues = at(&root, {"Scheduling", "SlurmQueues"});
  return queues != nullptr ? queues : at(&root, "SlurmQueues");
}

Cluster read_cluster(const yaml::Document& document, const ConfigLintOptions& options, Facts facts) {
  Cluster cluster{.document = document, .root = document.root, .options = options, .facts = std::move(facts)};
  cluster.head = at(&cluster.root, "HeadNode");
  cluster.scheduling = at(&cluster.root, "Scheduling");
  cluster.slurm_settings = at(cluster.scheduling, "SlurmSettings");
  cluster.slurm = text_at(cluster.scheduling, "Scheduler") == "slurm";
  if (const Node* queues = find_queues(cluster.root); queues != nullptr && cluster.slurm) {
    for (const Node& queue : queues->items) {
      if (queue.is_mapping()) cluster.queues.push_back(read_queue(queue));
    }
  }
  for (const Node& storage : items_at(&cluster.root, "SharedStorage")) {
    if (storage.is_mapping()) cluster.storages.push_back(read_storage(storage));
  }
  for (const Script& script : options.scripts) cluster.scripts.push_back(read_needs(script));
  return cluster;
}

}  // namespace millrace::pcluster
