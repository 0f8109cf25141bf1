// SPDX-License-Identifier: Apache-2.0
// What job scripts assume of the cluster: PC41, PC55, PC59.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "millrace/pcluster/check.h"

namespace millrace::pcluster {

namespace {

using yaml::Node;

FindingPlace place_in(const ScriptNeeds& script, const shell::Place& at) {
  return {.file = script.file, .line = at.line, .column = at.column};
}

// "/fsx" of "/fsx1": a prefix of folders that are meant to be mounts.
std::string_view stem(std::string_view folder) {
  const size_t end = folder.find_last_not_of("0123456789-_");
  return folder.substr(0, end + 1);
}

std::string_view first_folder(std::string_view path) {
  return path.substr(0, path.find('/', 1));
}

bool looks_like_a_mount(const Cluster& cluster, std::string_view folder) {
  constexpr std::array<std::string_view, 5> kUsual = {"/fsx", "/efs", "/lustre", "/shared", "/fsxl"};
  const std::string_view wanted = stem(folder);
  return std::find(kUsual.begin(), kUsual.end(), wanted) != kUsual.end() ||
         std::any_of(cluster.storages.begin(), cluster.storages.end(),
                     [&](const Storage& s) { return s.mount != "/home" && stem(first_folder(s.mount)) == wanted; });
}

// Folders of local disks and of /home are there without being declared.
bool is_local(const Cluster& cluster, std::string_view folder) {
  if (folder == "/scratch" || folder == "/home") return true;
  return std::any_of(cluster.queues.begin(), cluster.queues.end(), [&](const Queue& queue) {
    const std::string_view path =
        text_at(at(queue.node, {"ComputeSettings", "LocalStorage", "EphemeralVolume"}), "MountDir");
    return !path.empty() && first_folder(path[0] == '/' ? std::string(path) : "/" + std::string(path)) == folder;
  });
}

void check_mounts_of_scripts(const Cluster& cluster, FindingReport& report) {
  if (cluster.scripts.empty()) return;
  std::set<std::string_view> declared, used;
  for (const Storage& storage : cluster.storages) declared.insert(first_folder(storage.mount));
  for (const ScriptNeeds& script : cluster.scripts) {
    std::set<std::string_view> reported;
    for (const auto& [folder, place] : script.folders) {
      used.insert(folder);
      if (declared.contains(folder) || is_local(cluster, folder) || !looks_like_a_mount(cluster, folder)) continue;
      if (!reported.insert(folder).second) continue;
      report.add("PC41", place_in(script, place), fmt::format("{} is not mounted by {}", folder, cluster.options.file),
                 {}, Severity::kError);
    }
  }
  for (const Storage& storage : cluster.storages) {
    if (storage.mount.empty() || storage.mount == "/home" || used.contains(first_folder(storage.mount))) continue;
    report.add("PC41", storage.node->find("MountDir")->at, fmt::format("none of the scripts uses {}", storage.mount),
               "Remove it if nothing else needs it.", Severity::kWarning);
  }
}

std::optional<int64_t> gpus_per_node(const slurm::Option& option) {
  if (option.name == "gpus-per-node") return slurm::parse_gpus(option.value).count;
  if (option.name != "gres") return std::nullopt;
  for (const slurm::Gres& gres : slurm::parse_gres(option.value)) {
    if (gres.name == "gpu") return gres.count;
  }
  return std::nullopt;
}

void check_shared_nodes(const Cluster& cluster, FindingReport& report) {
  for (const Queue& queue : cluster.queues) {
    int64_t most = 0;
    for (const Resource& resource : queue.resources) most = std::max(most, resource.gpus());
    if (bool_at(queue.node, "JobExclusiveAllocation") != true || most == 0) continue;
    for (const ScriptNeeds& script : cluster.scripts) {
      for (const slurm::Option& option : script.options) {
        const std::optional<int64_t> gpus = gpus_per_node(option);
        if (!gpus || *gpus >= most) continue;
        report.add("PC55", place_in(script, option.place),
                   fmt::format("{} of {} GPUs, and {} gives each job whole nodes (JobExclusiveAllocation)", *gpus, most,
                               queue.name),
                   {}, Severity::kWarning);
      }
    }
  }
}

// "1g.10gb", "mig-3g.40gb", and plain "mig".
bool is_mig(const slurm::Option& option) {
  if (option.name != "gres" && !option.name.starts_with("gpus")) return false;
  const std::vector<slurm::Gres> asked = option.name == "gres"
                                             ? slurm::parse_gres(option.value)
                                             : std::vector<slurm::Gres>{slurm::parse_gpus(option.value)};
  return std::any_of(asked.begin(), asked.end(), [](const slurm::Gres& gres) {
    const std::string_view type = gres.type;
    const size_t g = type.find("g.");
    const bool slice = g != std::string_view::npos && g > 0 && type[g - 1] >= '1' && type[g - 1] <= '7';
    return slice || type.starts_with("mig") || gres.name.starts_with("mig");
  });
}

bool names_pyxis(const Node& node) {
  if (node.text.find("pyxis") != std::string::npos) return true;
  return std::any_of(node.items.begin(), node.items.end(), names_pyxis) ||
         std::any_of(node.entries.begin(), node.entries.end(),
                     [](const yaml::Entry& e) { return names_pyxis(e.value); });
}

void check_image(const Cluster& cluster, FindingReport& report) {
  const bool pyxis_off = cluster.options.version >= Version{3, 11, 1} || cluster.options.version < Version{3, 11, 0};
  const bool own_image = at(&cluster.root, {"Image", "CustomAmi"}) != nullptr || names_pyxis(cluster.root);
  for (const ScriptNeeds& script : cluster.scripts) {
    bool reported = false;
    for (const slurm::Option& option : script.options) {
      const bool pyxis = option.name.starts_with("container-") && option.name != "container-id";
      if (pyxis && pyxis_off && !own_image && !std::exchange(reported, true)) {
        report.add(
            "PC59", place_in(script, option.place), "options of pyxis, which this image does not switch on",
            "Enable it in OnNodeConfigured of head and queue (scripts named for pyxis), or run the container another "
            "way.",
            Severity::kWarning);
      }
      if (is_mig(option)) {
        report.add("PC59", place_in(script, option.place), "a MIG slice is asked for", {}, Severity::kWarning);
      }
    }
  }
}

constexpr std::array<Check, 3> kScriptChecks = {check_mounts_of_scripts, check_shared_nodes, check_image};

}  // namespace

std::span<const Check> script_checks() {
  return kScriptChecks;
}

}  // namespace millrace::pcluster
