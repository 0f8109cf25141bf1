// SPDX-License-Identifier: Apache-2.0
#pragma once

// A ParallelCluster file as the rules look at it: its queues, nodes and storage with defaults filled in, each with the
// YAML that it came from. Treats a value of a wrong type as absent; the schema's rules report it. Points into
// the document and must not outlive it.

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/formats/yaml/yaml.h"
#include "millrace/pcluster/facts.h"
#include "millrace/pcluster/instances.h"
#include "millrace/pcluster/lint.h"
#include "millrace/pcluster/scripts.h"

namespace millrace::pcluster {

// --- steps through YAML; each takes and returns null for what is absent ----------------------------------------------
const yaml::Node* at(const yaml::Node* node, std::initializer_list<std::string_view> path);
const yaml::Node* at(const yaml::Node* node, std::string_view key);
std::string_view text_at(const yaml::Node* node, std::string_view key);
std::optional<bool> bool_at(const yaml::Node* node, std::string_view key);
std::optional<int64_t> int_at(const yaml::Node* node, std::string_view key);
const std::vector<yaml::Node>& items_at(const yaml::Node* node, std::string_view key);
// The place of the key where there is one, else of the mapping.
yaml::Place place_of(const yaml::Node& node, std::string_view key);

struct Resource {
  const yaml::Node* node = nullptr;
  std::string name;
  std::vector<const yaml::Node*> types;  // InstanceType, or those of Instances
  std::vector<const Instance*> known;    // of these, those in the table
  bool is_list = false;                  // Instances
  int64_t min_count = 0;
  int64_t max_count = 10;
  bool efa = false;
  bool smt = true;
  const yaml::Node* reservation_id = nullptr;     // the resource's, or the queue's
  const yaml::Node* reservation_group = nullptr;  // the same
  const yaml::Node* placement = nullptr;          // the same

  bool reserved() const { return reservation_id != nullptr || reservation_group != nullptr; }
  // The GPUs of the known types; 0 where none is known.
  int64_t gpus() const;
  int64_t addresses() const;
};

struct Queue {
  const yaml::Node* node = nullptr;
  std::string name;
  std::string_view capacity_type = "ONDEMAND";
  std::vector<Resource> resources;
  std::vector<const yaml::Node*> subnets;
  const yaml::Node* networking = nullptr;

  bool capacity_block() const { return capacity_type == "CAPACITY_BLOCK"; }
};

struct Storage {
  const yaml::Node* node = nullptr;
  std::string name;
  std::string mount;  // with a slash in front
  std::string_view type;
  const yaml::Node* settings = nullptr;  // of its type
  bool existing = false;                 // named by an id
};

struct Cluster {
  const yaml::Document& document;
  const yaml::Node& root;
  const ConfigLintOptions& options;
  Facts facts;
  const yaml::Node* head = nullptr;
  const yaml::Node* scheduling = nullptr;
  const yaml::Node* slurm_settings = nullptr;
  bool slurm = false;
  std::vector<Queue> queues;
  std::vector<Storage> storages;
  std::vector<ScriptNeeds> scripts;

  int64_t max_nodes() const;
  int64_t max_gpus() const;
};

Cluster read_cluster(const yaml::Document& document, const ConfigLintOptions& options, Facts facts);

// Treats "SlurmQueues" at the top of the file as if it were in Scheduling, so that all errors
// are reported at once. Null where there are none.
const yaml::Node* find_queues(const yaml::Node& root);

// The settings section that goes with a StorageType: "FsxLustreSettings"; empty for an unknown type.
std::string_view settings_of(std::string_view storage_type);

}  // namespace millrace::pcluster
