// SPDX-License-Identifier: Apache-2.0
// FSx for Lustre: deployments, sizes, links to buckets, backups.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "millrace/base/text/ascii.h"
#include "millrace/pcluster/check.h"

namespace millrace::pcluster {

namespace {

using yaml::Entry;
using yaml::Node;

struct Lustre {
  const Node& settings;
  std::string_view deployment = "SCRATCH_2";
  bool hdd = false;
  std::optional<int64_t> unit, capacity;
  bool persistent() const { return deployment.starts_with("PERSISTENT_"); }
};

Lustre read_lustre(const Node& settings) {
  Lustre lustre{.settings = settings};
  if (settings.find("DeploymentType") != nullptr) lustre.deployment = text_at(&settings, "DeploymentType");
  lustre.hdd = text_at(&settings, "StorageType") == "HDD";
  lustre.unit = int_at(&settings, "PerUnitStorageThroughput");
  lustre.capacity = int_at(&settings, "StorageCapacity");
  return lustre;
}

template <class Look>
void each_lustre(const Cluster& cluster, Look&& look) {
  static const Node kEmpty{.kind = Node::Kind::kMapping};
  for (const Storage& storage : cluster.storages) {
    if (storage.type == "FsxLustre")
      look(storage, read_lustre(storage.settings == nullptr ? kEmpty : *storage.settings));
  }
}

bool is_new(const Lustre& lustre) {
  return lustre.settings.find("FileSystemId") == nullptr && lustre.settings.find("BackupId") == nullptr;
}

bool known_deployment(const Lustre& lustre) {
  return lustre.deployment == "SCRATCH_1" || lustre.deployment == "SCRATCH_2" || lustre.deployment == "PERSISTENT_1" ||
         lustre.deployment == "PERSISTENT_2";
}

void check_deployment(const Cluster& cluster, FindingReport& report) {
  each_lustre(cluster, [&](const Storage& storage, const Lustre& lustre) {
    if (!is_new(lustre) || !known_deployment(lustre)) return;
    if (lustre.persistent() && !lustre.unit) {
      report.add("PC33", place_of(lustre.settings, "DeploymentType"),
                 fmt::format("{} needs PerUnitStorageThroughput", lustre.deployment));
    }
    if (lustre.persistent()) return;
    for (const char* key : {"PerUnitStorageThroughput", "KmsKeyId"}) {
      if (const Entry* entry = lustre.settings.entry(key); entry != nullptr) {
        report.add("PC33", entry->at,
                   fmt::format("{} is for PERSISTENT types, and {} is {}", key, storage.name, lustre.deployment));
      }
    }
  });
}

std::span<const int64_t> units_of(const Lustre& lustre) {
  static constexpr int64_t kHdd[] = {12, 40}, kFirst[] = {50, 100, 200}, kSecond[] = {125, 250, 500, 1000};
  if (lustre.hdd) return kHdd;
  return lustre.deployment == "PERSISTENT_1" ? std::span<const int64_t>(kFirst) : std::span<const int64_t>(kSecond);
}

void check_unit(const Cluster& cluster, FindingReport& report) {
  each_lustre(cluster, [&](const Storage&, const Lustre& lustre) {
    const bool wrong_word = !known_deployment(lustre);
    if (!is_new(lustre) || !lustre.unit || (!lustre.persistent() && !wrong_word)) return;
    const std::span<const int64_t> units = units_of(lustre);
    if (std::find(units.begin(), units.end(), *lustre.unit) != units.end()) return;
    std::string list;
    for (const int64_t unit : units) list += fmt::format("{}{}", list.empty() ? "" : ", ", unit);
    report.add("PC34", lustre.settings.find("PerUnitStorageThroughput")->at,
               fmt::format("{} is not a throughput of {}{}: {}", *lustre.unit, lustre.deployment,
                           lustre.hdd ? " on HDD" : "", list));
  });
}

int64_t step_of(const Lustre& lustre) {
  if (lustre.deployment == "SCRATCH_1") return 3600;
  if (lustre.hdd) return lustre.unit == 12 ? 6000 : 1800;
  return 2400;
}

void check_capacity(const Cluster& cluster, FindingReport& report) {
  each_lustre(cluster, [&](const Storage& storage, const Lustre& lustre) {
    if (!is_new(lustre)) return;
    if (!lustre.capacity) {
      if (lustre.settings.find("StorageCapacity") == nullptr)
        report.add("PC35", storage.node->at, fmt::format("{} has no StorageCapacity", storage.name));
      return;
    }
    const int64_t gib = *lustre.capacity, step = step_of(lustre);
    const bool small = !lustre.hdd && (gib == 1200 || (gib == 2400 && lustre.deployment == "SCRATCH_1"));
    if (gib < 1 || small || gib % step == 0) return;
    report.add("PC35", lustre.settings.find("StorageCapacity")->at,
               fmt::format("{} GiB; {} comes in steps of {} GiB", gib, lustre.deployment, step),
               fmt::format("Take {} GiB.", (gib + step - 1) / step * step));
  });
}

void check_disks(const Cluster& cluster, FindingReport& report) {
  each_lustre(cluster, [&](const Storage&, const Lustre& lustre) {
    if (lustre.hdd && lustre.deployment != "PERSISTENT_1") {
      report.add("PC36", lustre.settings.find("StorageType")->at,
                 fmt::format("HDD comes with PERSISTENT_1, not {}", lustre.deployment));
    }
    if (!lustre.hdd && lustre.settings.find("DriveCacheType") != nullptr) {
      report.add("PC36", place_of(lustre.settings, "DriveCacheType"), "DriveCacheType is for HDD");
    }
  });
}

std::string_view bucket_of(std::string_view url) {
  if (!url.starts_with("s3://")) return {};
  return url.substr(5, url.find('/', 5) - 5);
}

void check_links(const Cluster& cluster, FindingReport& report) {
  each_lustre(cluster, [&](const Storage&, const Lustre& lustre) {
    const Node& settings = lustre.settings;
    const bool import = settings.find("ImportPath") != nullptr;
    const Entry* links = settings.entry("DataRepositoryAssociations");
    for (const char* key : {"ImportedFileChunkSize", "ExportPath", "AutoImportPolicy"}) {
      if (const Entry* entry = settings.entry(key); entry != nullptr && !import) {
        report.add("PC38", entry->at, fmt::format("{} without ImportPath", key));
      }
    }
    if (links != nullptr && (import || settings.find("ExportPath") != nullptr)) {
      report.add("PC38", links->at, "DataRepositoryAssociations beside ImportPath or ExportPath");
    }
    if (links != nullptr && links->value.items.size() > 8) {
      report.add("PC38", links->at, fmt::format("{} associations; at most 8", links->value.items.size()));
    }
    const auto bucket = cluster.facts.buckets.find(bucket_of(text_at(&settings, "ImportPath")));
    const std::string_view region = text_at(&cluster.root, "Region");
    if (settings.find("AutoImportPolicy") != nullptr && bucket != cluster.facts.buckets.end() && !region.empty() &&
        bucket->second != region) {
      report.add(
          "PC38", place_of(settings, "AutoImportPolicy"),
          fmt::format("the bucket {} is in {}; automatic import stays in the region", bucket->first, bucket->second));
    }
  });
}

void check_backups(const Cluster& cluster, FindingReport& report) {
  each_lustre(cluster, [&](const Storage&, const Lustre& lustre) {
    const Node& settings = lustre.settings;
    const Entry* days = settings.entry("AutomaticBackupRetentionDays");
    const bool backups = days != nullptr && yaml::as_int(days->value).value_or(0) > 0;
    for (const char* key : {"DailyAutomaticBackupStartTime", "CopyTagsToBackups"}) {
      if (const Entry* entry = settings.entry(key); entry != nullptr && !backups) {
        report.add("PC38", entry->at, fmt::format("{} without AutomaticBackupRetentionDays", key));
      }
    }
    if (!backups) return;
    const bool linked = std::any_of(settings.entries.begin(), settings.entries.end(), [](const Entry& e) {
      return e.key == "ImportPath" || e.key == "ExportPath" || e.key == "AutoImportPolicy" ||
             e.key == "ImportedFileChunkSize" || e.key == "DataRepositoryAssociations";
    });
    if (linked) report.add("PC38", days->at, "a file system that is linked to S3 has no backups");
    if (known_deployment(lustre) && !lustre.persistent())
      report.add("PC38", days->at, fmt::format("{} has no backups", lustre.deployment));
  });
}

// --- what comments beside the numbers say

// The first "1000 MB/s" or "7 GB/s" of a comment in the lines, as MB/s.
std::optional<double> stated_rate(const yaml::Document& document, int64_t line) {
  for (const yaml::Comment& comment : document.comments) {
    if (comment.at.line != line) continue;
    for (const auto& [unit, factor] : {std::pair<std::string_view, double>{"MB/s", 1}, {"GB/s", 1000}}) {
      const size_t at = comment.text.find(unit);
      if (at == std::string::npos || comment.text.substr(at).starts_with(std::string(unit) + "/")) continue;
      size_t end = at;
      while (end > 0 && comment.text[end - 1] == ' ') --end;
      size_t begin = end;
      while (begin > 0 &&
             (is_digit(comment.text[begin - 1]) || comment.text[begin - 1] == '.' || comment.text[begin - 1] == ','))
        --begin;
      std::string number = comment.text.substr(begin, end - begin);
      number.erase(std::remove(number.begin(), number.end(), ','), number.end());
      if (!number.empty() && is_digit(number[0])) return std::strtod(number.c_str(), nullptr) * factor;
    }
  }
  return std::nullopt;
}

void check_rates(const Cluster& cluster, FindingReport& report) {
  each_lustre(cluster, [&](const Storage& storage, const Lustre& lustre) {
    if (!is_new(lustre) || !lustre.unit || !lustre.capacity) return;
    const yaml::Place place = lustre.settings.find("PerUnitStorageThroughput")->at;
    const double rate = static_cast<double>(*lustre.capacity) / 1024 * static_cast<double>(*lustre.unit);
    const int64_t gpus = cluster.max_gpus();
    std::string message = fmt::format("{}: {} GiB x {} MB/s for each TiB = {:.0f} MB/s", storage.name, *lustre.capacity,
                                      *lustre.unit, rate);
    if (gpus > 0) message += fmt::format(", {:.1f} MB/s for each of {} GPUs", rate / static_cast<double>(gpus), gpus);
    message += fmt::format("; a checkpoint of 1 TB takes {:.0f} s", 1e6 / rate);
    const std::optional<double> stated = stated_rate(cluster.document, place.line);
    const bool differs = stated && (*stated < rate * 0.98 || *stated > rate * 1.02);
    if (differs) message += fmt::format("; the comment says {:.0f} MB/s", *stated);
    report.add("PC39", place, std::move(message), differs ? "" : "Nothing, if the plan counts with it.",
               differs ? Severity::kWarning : Severity::kNote);
  });
}

constexpr std::array<Check, 7> kLustreChecks = {check_deployment, check_unit,    check_capacity, check_disks,
                                                check_links,      check_backups, check_rates};

}  // namespace

std::span<const Check> lustre_checks() {
  return kLustreChecks;
}

}  // namespace millrace::pcluster
