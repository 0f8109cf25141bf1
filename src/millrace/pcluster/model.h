// SPDX-License-Identifier: Apache-2.0
#pragma once

// A ParallelCluster file in the form that the rules need: its queues, nodes and storage with defaults filled in, each
// with its YAML node. A value of a wrong type counts as absent; the schema's rules report it. Points into the document
// and must not outlive it.

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

// --- steps through YAML; each takes and returns nullptr for an absent node ------------------------------------------
const yaml::Node* at(const yaml::Node* node, std::initializer_list<std::string_view> path);
const yaml::Node* at(const yaml::Node* node, std::string_view key);
std::string_view text_at(const yaml::Node* node, std::string_view key);
std::optional<bool> bool_at(const yaml::Node* node, std::string_view key);
std::optional<int64_t> int_at(const yaml::Node* node, std::string_view key);
const std::vector<yaml::Node>& items_at(const yaml::Node* node, std::string_view key);
// Returns the place of the key, or of the mapping if the key is absent.
yaml::Place place_of(const yaml::Node& node, std::string_view key);

struct Resource {
  const yaml::Node* node = nullptr;
  std::string name;
  std::vector<const yaml::Node*> types;  // InstanceType, or the types in Instances
  std::vector<const Instance*> known;    // those of `types` that are in the table
  bool is_list = false;                  // the resource uses Instances
  int64_t min_count = 0;
  int64_t max_count = 10;
  bool efa = false;
  bool smt = true;
  const yaml::Node* reservation_id = nullptr;     // of the resource, else of the queue
  const yaml::Node* reservation_group = nullptr;  // of the resource, else of the queue
  const yaml::Node* placement = nullptr;          // of the resource, else of the queue

  bool reserved() const { return reservation_id != nullptr || reservation_group != nullptr; }
  // Returns the GPUs of the known types; 0 if no type is known.
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
  std::string mount;  // with a leading slash
  std::string_view type;
  const yaml::Node* settings = nullptr;  // settings for its type
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

// Finds the queues; nullptr if there are none. Also accepts "SlurmQueues" at the top of the file instead of in
// Scheduling, so that all errors are reported at once.
const yaml::Node* find_queues(const yaml::Node& root);

// Returns the settings section of a StorageType: "FsxLustreSettings"; empty for an unknown type.
std::string_view settings_of(std::string_view storage_type);

}  // namespace millrace::pcluster
