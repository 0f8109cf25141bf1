// SPDX-License-Identifier: Apache-2.0
// What job scripts assume of the cluster: PC41, PC55, PC59. Words are searched for, line by line; comments but #SBATCH
// are passed over, and variables, braces and included files are not followed.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

#include "millrace/cluster/config/check.h"
#include "millrace/formats/yaml/text.h"

namespace millrace::cluster {

namespace {

using yaml::Node;

bool is_path_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

struct Word {
  std::string_view text;
  size_t at = 0;  // in its line
};

// "/fsx1" of "cp /fsx1/data", "--out=/fsx1" and "\"/fsx1\"", and not of "s3://b/fsx1", "../fsx1" or "$HOME/fsx1".
std::vector<Word> first_folders(std::string_view line) {
  std::vector<Word> found;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool begins =
        line[i] == '/' && (i == 0 || std::string_view(" \t\"'=:,;(<>&|`").find(line[i - 1]) != std::string_view::npos);
    if (!begins || (i > 0 && line[i - 1] == ':' && line.substr(i).starts_with("//"))) continue;
    size_t end = i + 1;
    while (end < line.size() && is_path_letter(line[end])) ++end;
    if (end > i + 1) found.push_back({line.substr(i, end - i), i});
    i = end - 1;
  }
  return found;
}

// Calls `look(line, its number)` for what a shell or sbatch reads.
template <class Look>
void each_line(const Script& script, Look&& look) {
  int64_t number = 0;
  for (const std::string_view line : yaml::split_lines(script.text)) {
    ++number;
    const size_t start = line.find_first_not_of(" \t");
    if (start == std::string_view::npos) continue;
    if (line[start] != '#' || line.substr(start).starts_with("#SBATCH")) look(line, number);
  }
}

Finding& add_at(Report& report, std::string_view rule, Severity severity, const Script& script, const yaml::Place& at,
                std::string message) {
  Finding& finding = report.add(rule, severity, at, std::move(message));
  finding.file = script.file;
  return finding;
}

// "/fsx" of "/fsx1": what folders look like that are meant to be mounts.
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

void check_mounts_of_scripts(const Cluster& cluster, Report& report) {
  if (cluster.options.scripts.empty()) return;
  std::set<std::string_view> declared, used;
  for (const Storage& storage : cluster.storages) declared.insert(first_folder(storage.mount));
  for (const Script& script : cluster.options.scripts) {
    std::set<std::string_view> told;
    each_line(script, [&](std::string_view line, int64_t number) {
      for (const Word& word : first_folders(line)) {
        used.insert(word.text);
        if (declared.contains(word.text) || is_local(cluster, word.text) || !looks_like_a_mount(cluster, word.text))
          continue;
        if (!told.insert(word.text).second) continue;
        add_at(report, "PC41", Severity::kError, script, {number, yaml::characters(line.substr(0, word.at)) + 1},
               fmt::format("{} is not mounted by {}", word.text, cluster.options.file));
      }
    });
  }
  for (const Storage& storage : cluster.storages) {
    if (storage.mount.empty() || storage.mount == "/home" || used.contains(first_folder(storage.mount))) continue;
    report
        .add("PC41", Severity::kWarning, storage.node->find("MountDir")->at,
             fmt::format("none of the scripts uses {}", storage.mount))
        .fix = "Remove it if nothing else needs it.";
  }
}

// The number behind "--gpus-per-node=" or "--gres=gpu:h200:" in a line.
std::optional<int64_t> gpus_per_node(std::string_view line) {
  for (const std::string_view flag : {"--gpus-per-node=", "--gpus-per-node ", "--gres=gpu:", "--gres gpu:"}) {
    const size_t at = line.find(flag);
    if (at == std::string_view::npos) continue;
    std::string_view rest = line.substr(at + flag.size());
    rest = rest.substr(0, rest.find_first_of(" \t,"));
    rest = rest.substr(rest.rfind(':') == std::string_view::npos ? 0 : rest.rfind(':') + 1);
    int64_t count = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), count);
    if (error == std::errc() && end == rest.data() + rest.size()) return count;
  }
  return std::nullopt;
}

void check_shared_nodes(const Cluster& cluster, Report& report) {
  for (const Queue& queue : cluster.queues) {
    int64_t most = 0;
    for (const Resource& resource : queue.resources) most = std::max(most, resource.gpus());
    if (bool_at(queue.node, "JobExclusiveAllocation") != true || most == 0) continue;
    for (const Script& script : cluster.options.scripts) {
      each_line(script, [&](std::string_view line, int64_t number) {
        const std::optional<int64_t> gpus = gpus_per_node(line);
        if (!gpus || *gpus >= most) return;
        add_at(report, "PC55", Severity::kWarning, script, {number, 1},
               fmt::format("{} of {} GPUs, and {} gives each job whole nodes (JobExclusiveAllocation)", *gpus, most,
                           queue.name));
      });
    }
  }
}

bool is_mig(std::string_view line) {
  if (line.find("--gres") == std::string_view::npos && line.find("--gpus") == std::string_view::npos) return false;
  for (const std::string_view slice : {"1g.", "2g.", "3g.", "4g.", "7g.", ":mig"}) {
    if (line.find(slice) != std::string_view::npos) return true;
  }
  return false;
}

bool names_pyxis(const Node& node) {
  if (node.text.find("pyxis") != std::string::npos) return true;
  return std::any_of(node.items.begin(), node.items.end(), names_pyxis) ||
         std::any_of(node.entries.begin(), node.entries.end(),
                     [](const yaml::Entry& e) { return names_pyxis(e.value); });
}

void check_image(const Cluster& cluster, Report& report) {
  const bool pyxis_off = cluster.options.version >= Version{3, 11, 1} || cluster.options.version < Version{3, 11, 0};
  const bool own_image = at(&cluster.root, {"Image", "CustomAmi"}) != nullptr || names_pyxis(cluster.root);
  for (const Script& script : cluster.options.scripts) {
    each_line(script, [&](std::string_view line, int64_t number) {
      const size_t container = line.find("--container-");
      if (container != std::string_view::npos && pyxis_off && !own_image) {
        add_at(report, "PC59", Severity::kWarning, script, {number, yaml::characters(line.substr(0, container)) + 1},
               "options of pyxis, which this image does not switch on")
            .fix =
            "Enable it in OnNodeConfigured of head and queue (scripts named for pyxis), or run the container another "
            "way.";
      }
      if (is_mig(line)) add_at(report, "PC59", Severity::kWarning, script, {number, 1}, "a MIG slice is asked for");
    });
  }
}

constexpr std::array<Check, 3> kScriptChecks = {check_mounts_of_scripts, check_shared_nodes, check_image};

}  // namespace

std::span<const Check> script_checks() {
  return kScriptChecks;
}

}  // namespace millrace::cluster
