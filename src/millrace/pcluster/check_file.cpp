// SPDX-License-Identifier: Apache-2.0
// Names, counts, regions, systems, tags, IAM and logs: PC04, PC05, PC07 to PC09, PC44 to PC46, PC54, PC60, PC61.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "millrace/pcluster/check.h"
#include "millrace/pcluster/releases.h"

namespace millrace::pcluster {

namespace {

using yaml::Entry;
using yaml::Node;

void check_region(const Cluster& cluster, FindingReport& report) {
  const Node* region = at(&cluster.root, "Region");
  if (region == nullptr || !region->is_scalar()) return;
  const Version& version = cluster.options.version;
  const ReleaseFact* known = find_release_fact("region", region->text);
  if (known == nullptr) {
    const bool newer = version > kKnownVersion;
    report.add("PC04", region->at,
               fmt::format("{} is not a region of ParallelCluster {}{}", region->text, to_string(kKnownVersion),
                           newer ? ", the newest whose list is known" : ""),
               {}, newer ? Severity::kWarning : Severity::kError);
  } else if (version < known->since || version >= known->until) {
    report.add("PC04", region->at,
               fmt::format("{} {}; this is for {}", region->text, came_or_went(known->since, known->until, version),
                           to_string(version)));
  }
}

struct EndOfLife {
  std::string_view system, day;
};
constexpr EndOfLife kEndsOfLife[] = {
    {"alinux2", "2026-06-30"},
    {"centos7", "2024-06-30"},
    {"ubuntu1804", "2023-05-31"},
    {"ubuntu2004", "2025-05-31"},
};

// SHA-1 signatures of RSA keys are off in their SSH.
bool refuses_rsa(std::string_view os, const Version& version) {
  return os == "ubuntu2204" || (os == "ubuntu2404" && version >= Version{3, 13, 0});
}

void check_system(const Cluster& cluster, FindingReport& report) {
  const Node* os = at(&cluster.root, {"Image", "Os"});
  if (os == nullptr || !os->is_scalar()) return;
  const Version& version = cluster.options.version;
  const ReleaseFact* found = find_release_fact("os", os->text);
  if (found == nullptr) {
    report.add("PC05", os->at,
               fmt::format("'{}' is not a system of ParallelCluster {}", os->text, to_string(kKnownVersion)), {},
               version > kKnownVersion ? Severity::kWarning : Severity::kError);
    return;
  }
  const auto ended = std::find_if(std::begin(kEndsOfLife), std::end(kEndsOfLife),
                                  [&](const EndOfLife& e) { return e.system == os->text; });
  if (version < found->since || version >= found->until) {
    report.add("PC05", os->at,
               fmt::format("{} {}; this is for {}", os->text, came_or_went(found->since, found->until, version),
                           to_string(version)));
  } else if (ended != std::end(kEndsOfLife)) {
    report.add("PC05", os->at, fmt::format("{} is maintained until {}", os->text, ended->day), {}, Severity::kWarning);
  }
  if (has_release_fact("os_without_image", os->text, version) && at(&cluster.root, {"Image", "CustomAmi"}) == nullptr) {
    report.add("PC05", os->at, fmt::format("there is no public image for {}; CustomAmi is missing", os->text),
               "Build an image with pcluster build-image and name it in Image.CustomAmi.");
  }
  const Node* key = at(cluster.head, {"Ssh", "KeyName"});
  if (key != nullptr && refuses_rsa(os->text, version) && cluster.facts.key_type == "rsa") {
    report.add("PC05", key->at, fmt::format("RSA keys made with SHA-1 are refused by {}'s SSH", os->text),
               "Use an ed25519 key.");
  }
}

bool is_name(std::string_view name) {
  const auto small = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && small(name[0]) && name != "default" && name.size() <= 25 &&
         std::all_of(name.begin(), name.end(), [&](char c) { return small(c) || (c >= '0' && c <= '9') || c == '-'; });
}

// Names of the items of a list, each once.
void check_names(const std::vector<Node>& items, std::string_view what, FindingReport& report) {
  std::set<std::string_view> seen;
  for (const Node& item : items) {
    const Node* name = at(&item, "Name");
    if (name == nullptr || !name->is_scalar()) continue;
    if (!is_name(name->text))
      report.add("PC07", name->at, fmt::format("'{}' is not a name for a {}", name->text, what));
    if (!seen.insert(name->text).second)
      report.add("PC07", name->at, fmt::format("a second {} named '{}'", what, name->text));
  }
}

void check_all_names(const Cluster& cluster, FindingReport& report) {
  if (const Node* queues = find_queues(cluster.root); queues != nullptr) check_names(queues->items, "queue", report);
  for (const Queue& queue : cluster.queues)
    check_names(items_at(queue.node, "ComputeResources"), "compute resource", report);
  check_names(items_at(at(&cluster.root, "LoginNodes"), "Pools"), "pool", report);
}

void check_cluster_name(const Cluster& cluster, FindingReport& report) {
  const std::string& name =
      cluster.options.cluster_name.empty() ? cluster.facts.cluster_name : cluster.options.cluster_name;
  if (name.empty()) return;
  const bool external =
      at(cluster.slurm_settings, "ExternalSlurmdbd") != nullptr && cluster.options.version >= Version{3, 16, 0};
  const bool accounting = external || at(cluster.slurm_settings, "Database") != nullptr;
  const size_t most = accounting ? 40 : 60;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const bool fits = letter(name[0]) && name.size() <= most && std::all_of(name.begin(), name.end(), [&](char c) {
                      return letter(c) || (c >= '0' && c <= '9') || c == '-';
                    });
  if (!fits) {
    report.add("PC08", {},
               fmt::format("the cluster's name '{}' does not fit: {} characters at most{}", name, most,
                           accounting ? " with accounting" : ""));
  }
}

void check_counts(const Cluster& cluster, FindingReport& report) {
  size_t resources = 0;
  for (const Queue& queue : cluster.queues) resources += queue.resources.size();
  const size_t most = static_cast<size_t>(release_limit("queues", cluster.options.version).value_or(10));
  const std::vector<Node>& pools = items_at(at(&cluster.root, "LoginNodes"), "Pools");
  const std::optional<int64_t> most_pools = release_limit("login_pools", cluster.options.version);
  if (most_pools && std::ssize(pools) > *most_pools) {
    report.add("PC09", pools[static_cast<size_t>(*most_pools)].at,
               fmt::format("{} pools of login nodes; at most {}", pools.size(), *most_pools));
  }
  if (cluster.queues.size() > most) {
    report.add("PC09", cluster.queues[most].node->at,
               fmt::format("{} queues; at most {}", cluster.queues.size(), most));
  }
  if (resources > 50)
    report.add("PC09", cluster.queues.front().node->at, fmt::format("{} compute resources; at most 50", resources));
}

void check_logs(const Cluster& cluster, FindingReport& report) {
  const Node* monitoring = at(&cluster.root, "Monitoring");
  const Node* logs = at(monitoring, {"Logs", "CloudWatch"});
  const bool off = bool_at(logs, "Enabled") == false;
  if (off && bool_at(at(monitoring, {"Logs", "Rotation"}), "Enabled") == true) {
    report.add("PC44", place_of(*at(monitoring, {"Logs", "Rotation"}), "Enabled"),
               "logs are rotated on the nodes and go nowhere, as CloudWatch is off", {}, Severity::kWarning);
  }
  if (bool_at(monitoring, "DetailedMonitoring") == true) {
    report.add("PC44", place_of(*monitoring, "DetailedMonitoring"),
               "detailed monitoring is billed for each instance and metric",
               "Leave it out unless someone reads the metrics.", Severity::kNote);
  }
  const std::optional<int64_t> days = int_at(logs, "RetentionInDays");
  const double longest = cluster.facts.longest_job_hours.value_or(0) / 24;
  if (days && *days > 0 && static_cast<double>(*days) < longest) {
    report.add("PC44", at(logs, "RetentionInDays")->at,
               fmt::format("logs are kept {} days and the longest job runs {:.1f}", *days, longest), {},
               Severity::kWarning);
  }
}

// --- IAM
// --------------------------------------------------------------------------------------------------------------

void check_node_iam(const Node* iam, FindingReport& report) {
  if (iam == nullptr) return;
  const bool role = iam->find("InstanceRole") != nullptr, profile = iam->find("InstanceProfile") != nullptr;
  const auto excluded = [&](std::string_view key, std::string_view by) {
    const Entry* entry = iam->entry(key);
    if (entry != nullptr) report.add("PC45", entry->at, fmt::format("{} cannot stand beside {}", key, by));
  };
  if (role) excluded("InstanceProfile", "InstanceRole");
  if (role || profile) {
    excluded("AdditionalIamPolicies", role ? "InstanceRole" : "InstanceProfile");
    excluded("S3Access", role ? "InstanceRole" : "InstanceProfile");
  }
}

// The nodes that can have IAM settings and custom actions: head, queues, pools.
template <class Look>
void each_group(const Cluster& cluster, Look&& look) {
  if (cluster.head != nullptr) look(*cluster.head);
  for (const Queue& queue : cluster.queues) look(*queue.node);
  for (const Node& pool : items_at(at(&cluster.root, "LoginNodes"), "Pools")) look(pool);
}

void check_iam(const Cluster& cluster, FindingReport& report) {
  each_group(cluster, [&](const Node& group) { check_node_iam(at(&group, "Iam"), report); });
}

bool may_read(const Node* iam, std::string_view bucket) {
  if (at(iam, "InstanceRole") != nullptr || at(iam, "InstanceProfile") != nullptr)
    return true;  // what they allow is not here
  for (const Node& access : items_at(iam, "S3Access")) {
    const std::string_view name = text_at(&access, "BucketName");
    const bool prefix = name.ends_with('*') && bucket.starts_with(name.substr(0, name.size() - 1));
    if (name == bucket || prefix) return true;
  }
  const std::vector<Node>& policies = items_at(iam, "AdditionalIamPolicies");
  return std::any_of(policies.begin(), policies.end(), [](const Node& policy) {
    const std::string_view arn = text_at(&policy, "Policy");
    // A policy of the account's own may allow anything.
    return arn.find("AmazonS3") != std::string_view::npos ||
           arn.find("AdministratorAccess") != std::string_view::npos ||
           (arn.find("iam::aws:") == std::string_view::npos && !arn.empty());
  });
}

void check_script(const Node& group, const Node& script, FindingReport& report) {
  const std::string_view url = script.text;
  if (url.starts_with("https://")) return;
  if (!url.starts_with("s3://")) {
    report.add("PC46", script.at, fmt::format("'{}' is neither s3:// nor https://", url), {}, Severity::kError);
    return;
  }
  const std::string_view bucket = url.substr(5, url.find('/', 5) - 5);
  if (may_read(at(&group, "Iam"), bucket)) return;
  report.add("PC46", script.at, fmt::format("these nodes start with {} and may not read the bucket {}", url, bucket),
             fmt::format("Add Iam: {{S3Access: [{{BucketName: {}}}]}} to {}.", bucket,
                         text_at(&group, "Name").empty() ? "HeadNode" : text_at(&group, "Name")));
}

void check_actions(const Cluster& cluster, FindingReport& report) {
  each_group(cluster, [&](const Node& group) {
    const Node* actions = at(&group, "CustomActions");
    if (actions == nullptr) return;
    for (const Entry& action : actions->entries) {
      if (const Node* script = action.value.find("Script"); script != nullptr) check_script(group, *script, report);
      for (const Node& step : items_at(&action.value, "Sequence")) {
        if (const Node* script = step.find("Script"); script != nullptr) check_script(group, *script, report);
      }
    }
  });
}

// --- tags
// -------------------------------------------------------------------------------------------------------------

void check_tag_list(const Node* tags, FindingReport& report) {
  if (tags == nullptr) return;
  std::set<std::string_view> seen;
  for (const Node& tag : tags->items) {
    const Node* key = tag.find("Key");
    const Node* value = tag.find("Value");
    if (key == nullptr || !key->is_scalar()) continue;
    if (key->text.starts_with("parallelcluster:"))
      report.add("PC54", key->at, "'parallelcluster:' is ParallelCluster's own name space");
    if (!seen.insert(key->text).second) report.add("PC54", key->at, fmt::format("a second tag '{}'", key->text));
    if (key->text.size() > 128) report.add("PC54", key->at, "a tag's key has at most 128 characters");
    if (value != nullptr && value->text.size() > 256)
      report.add("PC54", value->at, "a tag's value has at most 256 characters");
  }
}

void check_tags(const Cluster& cluster, FindingReport& report) {
  const auto count = [](const Node* tags) { return tags == nullptr ? size_t{0} : tags->items.size(); };
  const Node* own = at(&cluster.root, "Tags");
  check_tag_list(own, report);
  for (const Queue& queue : cluster.queues) check_tag_list(at(queue.node, "Tags"), report);
  if (count(own) > 40) report.add("PC54", own->at, fmt::format("{} tags; at most 40", count(own)));
  each_resource(cluster, [&](const Queue& queue, const Resource& resource) {
    const Node* tags = at(resource.node, "Tags");
    check_tag_list(tags, report);
    const size_t all = count(own) + count(at(queue.node, "Tags")) + count(tags);
    if (all > 40 && count(own) <= 40) {
      report.add("PC54", resource.node->at, fmt::format("{} tags on each node of {}; at most 40", all, resource.name));
    }
  });
}

// --- head node
// --------------------------------------------------------------------------------------------------------

void check_head_size(const Cluster& cluster, FindingReport& report) {
  const Node* type = at(cluster.head, "InstanceType");
  const int64_t nodes = cluster.max_nodes();
  if (type == nullptr || nodes <= 16) return;
  const Instance* instance = find_instance(type->text);
  const int64_t wanted = nodes > 64 ? 16 : 8;
  if (instance != nullptr && instance->vcpus < wanted) {
    report.add("PC60", type->at, fmt::format("{} has {} vCPUs for up to {} nodes", type->text, instance->vcpus, nodes));
  }
  const bool home = std::any_of(cluster.storages.begin(), cluster.storages.end(),
                                [](const Storage& s) { return s.mount == "/home"; });
  if (home || text_at(cluster.head, "SharedStorageType") == "Efs") return;
  report.add("PC60", place_of(cluster.root, "HeadNode"),
             fmt::format("/home lies on the head node's disk and {} nodes mount it over NFS", nodes));
}

void check_open_door(const Node* node, std::string_view section, const yaml::Place& place, FindingReport& report) {
  const Node* settings = at(node, section);
  const Node* range = at(settings, "AllowedIps");
  if (range == nullptr) {
    report.add("PC61", settings == nullptr ? place : place_of(*node, section),
               fmt::format("{} has no AllowedIps, so it takes the default 0.0.0.0/0", section));
  } else if (range->text == "0.0.0.0/0") {
    report.add("PC61", range->at, fmt::format("{} is open to the world", section));
  }
}

void check_doors(const Cluster& cluster, FindingReport& report) {
  if (cluster.head == nullptr || !cluster.head->is_mapping()) return;
  const auto subnet = cluster.facts.subnets.find(text_at(at(cluster.head, "Networking"), "SubnetId"));
  const bool is_private = subnet != cluster.facts.subnets.end() && subnet->second.is_public == false;
  const bool own_groups = at(cluster.head, {"Networking", "SecurityGroups"}) != nullptr;
  if (is_private || own_groups) return;  // the range goes into the managed group only
  check_open_door(cluster.head, "Ssh", place_of(cluster.root, "HeadNode"), report);
  if (bool_at(at(cluster.head, "Dcv"), "Enabled") == true) {
    check_open_door(cluster.head, "Dcv", place_of(cluster.root, "HeadNode"), report);
  }
}

constexpr std::array<Check, 11> kFileChecks = {check_region, check_system,    check_all_names, check_cluster_name,
                                               check_counts, check_logs,      check_iam,       check_actions,
                                               check_tags,   check_head_size, check_doors};

}  // namespace

std::span<const Check> file_checks() {
  return kFileChecks;
}

}  // namespace millrace::pcluster
