// SPDX-License-Identifier: Apache-2.0
// Slurm settings: PC48 to PC53, PC55, PC62.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "millrace/base/text/strings.h"
#include "millrace/pcluster/check.h"

namespace millrace::pcluster {

namespace {

using yaml::Entry;
using yaml::Node;

// Slurm ignores the case of its settings.
const Entry* find_setting(const Node* pairs, std::string_view name) {
  if (pairs == nullptr) return nullptr;
  const auto found = std::find_if(pairs->entries.begin(), pairs->entries.end(),
                                  [&](const Entry& e) { return lower_case(e.key) == name; });
  return found == pairs->entries.end() ? nullptr : &*found;
}

constexpr std::string_view kOfCluster[] = {"epilog",        "grestypes",         "launchparameters",    "prolog",
                                           "reconfigflags", "resumefailprogram", "resumeprogram",       "resumetimeout",
                                           "slurmctldhost", "slurmctldlogfile",  "slurmctldparameters", "slurmdlogfile",
                                           "slurmuser",     "suspendexcnodes",   "suspendprogram",      "suspendtime",
                                           "taskplugin",    "treewidth"};
constexpr std::string_view kOfAccounting[] = {"accountingstoragetype", "accountingstoragehost", "accountingstorageport",
                                              "accountingstorageuser", "jobacctgathertype"};
constexpr std::string_view kOfQueue[] = {"nodes", "partitionname", "resumetimeout",
                                         "state", "suspendtime",   "oversubscribe"};
// Without the last one from 3.15 on.
constexpr std::array<std::string_view, 8> kOfResource = {"cpus",     "gres",  "nodeaddr", "nodehostname",
                                                         "nodename", "state", "weight",   "features"};

void check_denied(const Node* pairs, std::span<const std::string_view> denied, std::string_view where,
                  FindingReport& report) {
  if (pairs == nullptr) return;
  for (const Entry& entry : pairs->entries) {
    if (std::find(denied.begin(), denied.end(), lower_case(entry.key)) != denied.end()) {
      report.add("PC50", entry.at, fmt::format("{} may not be set {}", entry.key, where));
    }
  }
}

void check_settings(const Cluster& cluster, FindingReport& report) {
  const bool accounting = at(cluster.slurm_settings, "Database") != nullptr;
  const std::span<const std::string_view> of_resource =
      std::span(kOfResource).first(kOfResource.size() - (cluster.options.version < Version{3, 15, 0} ? 0 : 1));
  for (const Node& pairs : items_at(cluster.slurm_settings, "CustomSlurmSettings")) {
    // Lines of several pairs are nodes, sets of nodes and partitions, and are taken as they are.
    if (pairs.entries.size() == 1) {
      check_denied(&pairs, kOfCluster, "for the cluster", report);
      if (accounting) check_denied(&pairs, kOfAccounting, "beside a Database", report);
    }
    const Entry* name = find_setting(&pairs, "nodename");
    if (name != nullptr &&
        (name->value.text.find("-st-") != std::string::npos || name->value.text.find("-dy-") != std::string::npos)) {
      report.add("PC51", name->value.at, fmt::format("'{}' has the form of a managed node's name", name->value.text));
    }
  }
  for (const Queue& queue : cluster.queues) {
    check_denied(at(queue.node, "CustomSlurmSettings"), kOfQueue, "for a queue", report);
    for (const Resource& resource : queue.resources) {
      check_denied(at(resource.node, "CustomSlurmSettings"), of_resource, "for a compute resource", report);
    }
  }
  const Node* include = at(cluster.slurm_settings, "CustomSlurmSettingsIncludeFile");
  if (include != nullptr && at(cluster.slurm_settings, "CustomSlurmSettings") != nullptr) {
    report.add("PC51", place_of(*cluster.slurm_settings, "CustomSlurmSettingsIncludeFile"),
               "CustomSlurmSettings and an include file");
  }
}

// --- memory
// -----------------------------------------------------------------------------------------------------------

bool has_default_memory(const Node* pairs) {
  return find_setting(pairs, "defmempergpu") != nullptr || find_setting(pairs, "defmempercpu") != nullptr ||
         find_setting(pairs, "defmempernode") != nullptr;
}

bool has_default_memory(const Cluster& cluster) {
  const std::vector<Node>& settings = items_at(cluster.slurm_settings, "CustomSlurmSettings");
  const bool global =
      std::any_of(settings.begin(), settings.end(), [](const Node& pairs) { return has_default_memory(&pairs); });
  return global || std::all_of(cluster.queues.begin(), cluster.queues.end(),
                               [](const Queue& q) { return has_default_memory(at(q.node, "CustomSlurmSettings")); });
}

bool all_exclusive(const Cluster& cluster) {
  return std::all_of(cluster.queues.begin(), cluster.queues.end(),
                     [](const Queue& q) { return bool_at(q.node, "JobExclusiveAllocation") == true; });
}

bool asks_for_memory(const ScriptNeeds& script) {
  return std::any_of(script.options.begin(), script.options.end(), [](const slurm::Option& option) {
    return option.name == "mem" || option.name == "mem-per-cpu" || option.name == "mem-per-gpu";
  });
}

// Whether jobs share a node by its GPUs somewhere. Otherwise sharing costs jobs little, and the advice is mild.
bool shares_gpu_nodes(const Cluster& cluster) {
  bool found = false;
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    for (const Instance* instance : resource.known) found = found || instance->gpus > 1;
  });
  return found;
}

Severity severity_by_gpus(const Cluster& cluster) {
  return shares_gpu_nodes(cluster) ? Severity::kWarning : Severity::kNote;
}

void check_memory(const Cluster& cluster, FindingReport& report) {
  if (cluster.queues.empty()) return;
  const std::optional<bool> memory = bool_at(cluster.slurm_settings, "EnableMemoryBasedScheduling");
  const yaml::Place place = cluster.slurm_settings == nullptr ? place_of(cluster.root, "Scheduling")
                                                              : place_of(*cluster.scheduling, "SlurmSettings");
  if (memory != true) {
    if (all_exclusive(cluster)) return;
    report.add("PC48", place, "Slurm does not count memory: jobs that share a node can take it from each other", {},
               severity_by_gpus(cluster));
    return;
  }
  if (has_default_memory(cluster)) return;
  const yaml::Place here = place_of(*cluster.slurm_settings, "EnableMemoryBasedScheduling");
  std::string without;
  for (const ScriptNeeds& script : cluster.scripts) {
    if (!asks_for_memory(script)) without += (without.empty() ? "" : ", ") + script.file;
  }
  if (cluster.options.scripts.empty()) {
    report.add("PC48", here,
               "memory is counted and there is no DefMemPerGPU: a job without --mem takes all of a node's");
  } else if (!without.empty()) {
    report.add("PC48", here,
               fmt::format("memory is counted, there is no DefMemPerGPU, and these ask for none: {}", without));
  }
}

void check_schedulable(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    const std::optional<int64_t> given = int_at(resource.node, "SchedulableMemory");
    if (!given || *given < 1 || resource.known.empty()) return;
    const Instance& instance = *resource.known.front();
    const yaml::Place place = resource.node->find("SchedulableMemory")->at;
    if (*given > instance.memory_mib) {
      report.add("PC49", place, fmt::format("{} MiB, and {} has {}", *given, instance.name, instance.memory_mib));
    } else if (*given < instance.memory_mib * 95 / 100) {
      report.add("PC49", place,
                 fmt::format("{} MiB of the {} of {} are not given to jobs", instance.memory_mib - *given,
                             instance.memory_mib, instance.name),
                 {}, Severity::kNote);
    }
  });
}

// --- accounting
// -------------------------------------------------------------------------------------------------------

void check_database(const Cluster& cluster, FindingReport& report) {
  if (cluster.queues.empty()) return;
  const Node* database = at(cluster.slurm_settings, "Database");
  const Node* external = at(cluster.slurm_settings, "ExternalSlurmdbd");
  if (database == nullptr && external == nullptr) {
    report.add("PC53",
               cluster.slurm_settings == nullptr ? place_of(cluster.root, "Scheduling")
                                                 : place_of(*cluster.scheduling, "SlurmSettings"),
               "no accounting database", {}, severity_by_gpus(cluster));
    return;
  }
  if (database != nullptr && external != nullptr)
    report.add("PC52", place_of(*cluster.slurm_settings, "ExternalSlurmdbd"), "Database and ExternalSlurmdbd");
  if (external != nullptr && at(cluster.slurm_settings, "MungeKeySecretArn") == nullptr) {
    report.add("PC52", place_of(*cluster.slurm_settings, "ExternalSlurmdbd"),
               "ExternalSlurmdbd without MungeKeySecretArn", "Add MungeKeySecretArn.");
  }
  const Node* uri = at(database, "Uri");
  if (uri == nullptr) return;
  if (uri->text.find("://") != std::string::npos)
    report.add("PC52", uri->at, fmt::format("'{}' has a scheme", uri->text));
  if (uri->text.starts_with('/')) report.add("PC52", uri->at, fmt::format("'{}' starts with a slash", uri->text));
}

// --- sharing and binding
// ----------------------------------------------------------------------------------------------

void check_sharing(const Cluster& cluster, FindingReport& report) {
  if (cluster.facts.jobs_share_nodes != true) return;
  for (const Queue& queue : cluster.queues) {
    if (bool_at(queue.node, "JobExclusiveAllocation") != true) continue;
    report.add("PC55", place_of(*queue.node, "JobExclusiveAllocation"),
               fmt::format("jobs are to share nodes, and {} gives each job whole ones", queue.name));
  }
}

void check_sockets(const Cluster& cluster, FindingReport& report) {
  each_resource(cluster, [&](const Queue&, const Resource& resource) {
    if (resource.gpus() == 0) return;
    const Node* settings = at(resource.node, "CustomSlurmSettings");
    if (find_setting(settings, "sockets") != nullptr || find_setting(settings, "socketsperboard") != nullptr ||
        find_setting(settings, "corespersocket") != nullptr) {
      return;
    }
    report.add("PC62", place_of(*resource.node, "Name"),
               fmt::format("{}: Slurm sees {} sockets of 1 core", resource.name, resource.known.front()->vcpus));
  });
}

constexpr std::array<Check, 6> kSlurmChecks = {check_settings, check_memory,  check_schedulable,
                                               check_database, check_sharing, check_sockets};

}  // namespace

std::span<const Check> slurm_checks() {
  return kSlurmChecks;
}

}  // namespace millrace::pcluster
