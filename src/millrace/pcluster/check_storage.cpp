// SPDX-License-Identifier: Apache-2.0
// Volumes and file systems: those of PC30 to PC40, PC42 and PC43 that are not about FSx for Lustre (check_lustre.cpp).
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

// --- EBS

struct VolumeType {
  std::string_view name;
  int64_t least_gib, most_gib;
  int64_t least_iops = 0, most_iops = 0;  // 0: cannot be chosen
  int64_t iops_per_gib = 0;
};
constexpr VolumeType kVolumeTypes[] = {
    {"standard", 1, 1024},
    {"gp2", 1, 16384},
    {"st1", 500, 16384},
    {"sc1", 500, 16384},
    {"gp3", 1, 16384, 3000, 16000, 500},
    {"io1", 4, 16384, 100, 64000, 50},
    {"io2", 4, 65536, 100, 256000, 1000},
};
constexpr int64_t kDefaultGp3Iops = 3000, kDefaultEbsGib = 40;

void check_iops(const VolumeType& type, const Node& volume, std::optional<int64_t> size, FindingReport& report) {
  const Node* node = volume.find("Iops");
  const std::optional<int64_t> iops = int_at(&volume, "Iops");
  if (!iops || *iops == 0) return;
  if (type.most_iops == 0) {
    report.add("PC30", node->at, fmt::format("Iops cannot be chosen for {}", type.name));
  } else if (*iops < type.least_iops || *iops > type.most_iops) {
    report.add("PC30", node->at,
               fmt::format("{} has {} to {} IOPS, not {}", type.name, type.least_iops, type.most_iops, *iops));
  } else if (size && *iops > *size * type.iops_per_gib) {
    report.add("PC30", node->at,
               fmt::format("{} has at most {} IOPS for each GiB: {} for {} GiB, not {}", type.name, type.iops_per_gib,
                           *size * type.iops_per_gib, *size, *iops));
  }
}

void check_throughput(const VolumeType& type, const Node& volume, FindingReport& report) {
  const std::optional<int64_t> rate = int_at(&volume, "Throughput");
  if (!rate) return;
  const Node& node = *volume.find("Throughput");
  const int64_t iops = int_at(&volume, "Iops").value_or(kDefaultGp3Iops);
  if (type.name != "gp3") {
    report.add("PC30", node.at, fmt::format("Throughput cannot be chosen for {}", type.name));
  } else if (*rate < 125 || *rate > 1000) {
    report.add("PC30", node.at, fmt::format("gp3 has 125 to 1000 MB/s, not {}", *rate));
  } else if (*rate * 4 > iops) {
    report.add("PC30", node.at,
               fmt::format("gp3 has at most 0.25 MB/s for each of its {} IOPS: {}, not {}", iops, iops / 4, *rate));
  }
}

void check_volume(const Node* volume, std::optional<int64_t> default_gib, FindingReport& report) {
  if (volume == nullptr) return;
  const std::string_view name = volume->find("VolumeType") == nullptr ? "gp3" : text_at(volume, "VolumeType");
  const auto type = std::find_if(std::begin(kVolumeTypes), std::end(kVolumeTypes),
                                 [&](const VolumeType& t) { return t.name == name; });
  if (type == std::end(kVolumeTypes)) {
    report.add("PC30", volume->find("VolumeType")->at,
               fmt::format("'{}' is not a volume type: gp3, gp2, io1, io2, st1, sc1 or standard", name));
    return;
  }
  const std::optional<int64_t> given = int_at(volume, "Size");
  if (given && (*given < type->least_gib || *given > type->most_gib)) {
    report.add("PC30", volume->find("Size")->at,
               fmt::format("{} has {} to {} GiB, not {}", name, type->least_gib, type->most_gib, *given));
    return;
  }
  check_iops(*type, *volume, given ? given : default_gib, report);
  check_throughput(*type, *volume, report);
}

// ParallelCluster's own images have a size, and a root volume is no smaller.
void check_root_size(const Cluster& cluster, const Node* volume, const Node* group, FindingReport& report) {
  const std::optional<int64_t> size = int_at(volume, "Size");
  const std::optional<int64_t> image = release_limit("root_volume_gib", cluster.options.version);
  const bool own_image =
      at(&cluster.root, {"Image", "CustomAmi"}) != nullptr || at(group, {"Image", "CustomAmi"}) != nullptr;
  if (!size || !image || own_image || *size < 1 || *size >= *image) return;
  report.add("PC30", volume->find("Size")->at,
             fmt::format("the image of ParallelCluster {} has {} GiB, and this volume {}",
                         to_string(cluster.options.version), *image, *size),
             fmt::format("Use {} GiB or more, or leave Size out.", *image));
}

void check_root(const Cluster& cluster, const Node* volume, const Node* group, FindingReport& report) {
  check_volume(volume, std::nullopt, report);
  check_root_size(cluster, volume, group, report);
}

void check_volumes(const Cluster& cluster, FindingReport& report) {
  check_root(cluster, at(cluster.head, {"LocalStorage", "RootVolume"}), cluster.head, report);
  for (const Queue& queue : cluster.queues) {
    check_root(cluster, at(queue.node, {"ComputeSettings", "LocalStorage", "RootVolume"}), queue.node, report);
  }
  for (const Storage& storage : cluster.storages) {
    if (storage.type == "Ebs" && !storage.existing) check_volume(storage.settings, kDefaultEbsGib, report);
  }
}

void check_root_encryption(const Cluster& cluster, FindingReport& report) {
  std::optional<bool> first;
  for (const Queue& queue : cluster.queues) {
    const Node* root = at(queue.node, {"ComputeSettings", "LocalStorage", "RootVolume"});
    const bool encrypted = bool_at(root, "Encrypted").value_or(true);
    if (!first) first = encrypted;
    if (encrypted == *first) continue;
    report.add("PC31", root == nullptr ? queue.node->at : place_of(*root, "Encrypted"),
               fmt::format("{} has {} root volumes and {} {}", queue.name, encrypted ? "encrypted" : "plain",
                           cluster.queues.front().name, encrypted ? "plain ones" : "encrypted ones"));
  }
}

// --- counts

bool is_fsx(std::string_view type) {
  return type.starts_with("Fsx") || type == "FileCache";
}

void check_storage_counts(const Cluster& cluster, FindingReport& report) {
  int64_t new_fsx = 0, new_efs = 0, raids = 0, volumes = 0, old_fsx = 0, old_efs = 0;
  const auto count = [&](int64_t& counter, int64_t most, const Storage& storage, std::string_view what) {
    if (++counter > most) {
      report.add("PC32", storage.node->find("StorageType")->at,
                 fmt::format("{} number {}; at most {}", what, counter, most));
    }
  };
  const int64_t most_old = cluster.options.version < Version{3, 2, 0} ? 1 : 20;
  for (const Storage& storage : cluster.storages) {
    if (storage.type == "FsxLustre" && !storage.existing) {
      count(new_fsx, 1, storage, "new FSx file system");
    } else if (is_fsx(storage.type)) {
      count(old_fsx, most_old, storage, "existing FSx file system");
    } else if (storage.type == "Efs" && storage.existing) {
      count(old_efs, most_old, storage, "existing EFS file system");
    } else if (storage.type == "Efs") {
      count(new_efs, 1, storage, "new EFS file system");
    } else if (storage.type == "Ebs" && at(storage.settings, "Raid") != nullptr) {
      count(raids, 1, storage, "RAID");
    } else if (storage.type == "Ebs") {
      count(volumes, 5, storage, "EBS volume");
    }
  }
}

void check_existing(const Cluster& cluster, FindingReport& report) {
  constexpr std::array<std::string_view, 7> kFixedByBackup = {
      "DeploymentType", "PerUnitStorageThroughput", "StorageCapacity", "ImportPath",
      "ExportPath",     "ImportedFileChunkSize",    "KmsKeyId"};
  constexpr std::array<std::string_view, 4> kBesideEfs = {"FileSystemId", "EncryptionInTransit", "IamAuthorization",
                                                          "AccessPointId"};
  for (const Storage& storage : cluster.storages) {
    if (storage.settings == nullptr) continue;
    const bool lustre = storage.type == "FsxLustre", efs = storage.type == "Efs";
    const bool file_system = storage.settings->find("FileSystemId") != nullptr;
    const bool backup = storage.settings->find("BackupId") != nullptr;
    for (const Entry& entry : storage.settings->entries) {
      const bool beside_efs = std::find(kBesideEfs.begin(), kBesideEfs.end(), entry.key) != kBesideEfs.end();
      const bool fixed = std::find(kFixedByBackup.begin(), kFixedByBackup.end(), entry.key) != kFixedByBackup.end();
      if (file_system && ((lustre && entry.key != "FileSystemId") || (efs && !beside_efs))) {
        report.add("PC37", entry.at, fmt::format("{} beside FileSystemId", entry.key));
      } else if (lustre && !file_system && backup && fixed) {
        report.add("PC37", entry.at, fmt::format("{} beside BackupId", entry.key));
      }
    }
  }
}

// --- mounts and names

constexpr std::array<std::string_view, 23> kReserved = {"/bin",
                                                        "/boot",
                                                        "/dev",
                                                        "/etc",
                                                        "/lib",
                                                        "/lib64",
                                                        "/media",
                                                        "/mnt",
                                                        "/opt",
                                                        "/opt/parallelcluster",
                                                        "/opt/parallelcluster/shared",
                                                        "/opt/parallelcluster/shared_login_nodes",
                                                        "/opt/slurm",
                                                        "/opt/intel",
                                                        "/proc",
                                                        "/root",
                                                        "/run",
                                                        "/sbin",
                                                        "/srv",
                                                        "/sys",
                                                        "/tmp",
                                                        "/usr",
                                                        "/var"};

// Directories of the nodes' own disks: as they are set, and /scratch where a type has disks.
std::set<std::string> ephemeral_directories(const Cluster& cluster) {
  std::set<std::string> found;
  const auto add = [&](const Node* storage, bool has_disks) {
    std::string path(text_at(at(storage, "EphemeralVolume"), "MountDir"));
    if (path.empty() && has_disks) path = "/scratch";
    if (!path.empty()) found.insert(path[0] == '/' ? path : "/" + path);
  };
  const Instance* head = find_instance(text_at(cluster.head, "InstanceType"));
  add(at(cluster.head, "LocalStorage"), head != nullptr && head->nvme_gb > 0);
  for (const Queue& queue : cluster.queues) {
    const bool disks = std::any_of(queue.resources.begin(), queue.resources.end(), [](const Resource& r) {
      return std::any_of(r.known.begin(), r.known.end(), [](const Instance* i) { return i->nvme_gb > 0; });
    });
    add(at(queue.node, {"ComputeSettings", "LocalStorage"}), disks);
  }
  return found;
}

bool is_inside(std::string_view path, std::string_view folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

void check_mounts(const Cluster& cluster, FindingReport& report) {
  const std::set<std::string> local = ephemeral_directories(cluster);
  for (size_t i = 0; i < cluster.storages.size(); ++i) {
    const Storage& storage = cluster.storages[i];
    const Node* place = storage.node->find("MountDir");
    if (place == nullptr || storage.mount.empty()) continue;
    if (std::find(kReserved.begin(), kReserved.end(), storage.mount) != kReserved.end()) {
      report.add("PC40", place->at, fmt::format("{} belongs to the system", storage.mount));
    }
    if (storage.mount == "/NONE" || storage.mount == "/none") report.add("PC40", place->at, "NONE is not a directory");
    if (storage.mount == "/home" && storage.type == "FileCache")
      report.add("PC40", place->at, "a File Cache cannot be /home");
    for (size_t j = 0; j < i; ++j) {
      const Storage& other = cluster.storages[j];
      if (storage.mount == other.mount)
        report.add("PC40", place->at, fmt::format("{} is the mount point of {} already", storage.mount, other.name));
      if (is_inside(storage.mount, other.mount) || is_inside(other.mount, storage.mount)) {
        report.add("PC40", place->at, fmt::format("{} and {} lie inside each other", storage.mount, other.mount));
      }
    }
    for (const std::string& path : local) {
      if (storage.mount == path || is_inside(storage.mount, path) || is_inside(path, storage.mount)) {
        report.add("PC40", place->at, fmt::format("{} and the nodes' own disks at {} collide", storage.mount, path));
      }
    }
  }
}

void check_storage_sections(const Cluster& cluster, FindingReport& report) {
  constexpr std::string_view kSigns = "+-=._:/@ ";
  for (const Storage& storage : cluster.storages) {
    if (const Node* name = storage.node->find("Name"); name != nullptr) {
      const bool letters = std::all_of(storage.name.begin(), storage.name.end(), [&](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) > 127 ||
               kSigns.find(c) != std::string_view::npos;
      });
      if (!letters || storage.name.size() > 30 || storage.name == "default")
        report.add("PC42", name->at, fmt::format("'{}' is not a name for storage", storage.name));
    }
    const std::string_view own = settings_of(storage.type);
    for (const Entry& entry : storage.node->entries) {
      if (entry.key.ends_with("Settings") && !own.empty() && entry.key != own) {
        report.add("PC42", entry.at, fmt::format("{} with StorageType {}", entry.key, storage.type),
                   fmt::format("Use {}.", own));
      }
    }
    const bool provisioned = text_at(storage.settings, "ThroughputMode") == "provisioned";
    if (storage.type == "Efs" && provisioned != (at(storage.settings, "ProvisionedThroughput") != nullptr)) {
      report.add("PC42", place_of(*storage.node, own),
                 "ThroughputMode: provisioned and ProvisionedThroughput go together");
    }
    const bool needs = storage.type == "FsxOpenZfs" || storage.type == "FsxOntap" || storage.type == "FileCache";
    if (needs && storage.settings == nullptr)
      report.add("PC42", storage.node->at, fmt::format("{} needs {}", storage.type, own));
  }
}

void check_deletion(const Cluster& cluster, FindingReport& report) {
  for (const Storage& storage : cluster.storages) {
    const bool managed =
        (storage.type == "Ebs" || storage.type == "Efs" || storage.type == "FsxLustre") && !storage.existing;
    const std::string_view policy = text_at(storage.settings, "DeletionPolicy");
    if (!managed || policy == "Retain" || policy == "Snapshot") continue;
    const std::string_view section = settings_of(storage.type);
    const yaml::Place place =
        storage.settings == nullptr ? place_of(*storage.node, "StorageType") : place_of(*storage.node, section);
    report.add("PC43", policy.empty() ? place : storage.settings->find("DeletionPolicy")->at,
               fmt::format("{} is deleted with the cluster", storage.name.empty() ? storage.mount : storage.name));
  }
}

constexpr std::array<Check, 7> kStorageChecks = {check_volumes,  check_root_encryption, check_storage_counts,
                                                 check_existing, check_mounts,          check_storage_sections,
                                                 check_deletion};

}  // namespace

std::span<const Check> storage_checks() {
  return kStorageChecks;
}

}  // namespace millrace::pcluster
