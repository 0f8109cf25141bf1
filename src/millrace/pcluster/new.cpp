// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/new.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "millrace/formats/yaml/yaml.h"
#include "millrace/pcluster/instances.h"
#include "millrace/pcluster/lint.h"
#include "millrace/pcluster/schema.h"

namespace millrace::pcluster {

namespace {

using yaml::Node;

struct ReservationSpec {
  std::string id;
  int64_t count = 0;
};
struct BucketSpec {
  std::string name;
  bool write = false;
};
struct StorageSpec {
  yaml::Place at;
  std::string mount, id;
  int64_t gib = 0, unit = 0;
};
struct DatabaseSpec {
  std::string uri, user, secret;
};

struct Spec {
  std::string region, instance, head, os, subnet, head_subnet, key, ssh_from = "10.0.0.0/8", setup_script;
  int64_t count = 0, models = 1;
  double longest_job_days = 14;
  bool capacity_block = false;
  std::vector<ReservationSpec> reservations;
  std::vector<std::string> security_groups;
  std::vector<BucketSpec> buckets;
  std::vector<StorageSpec> storage;
  std::optional<DatabaseSpec> database;
  const Instance* type = nullptr;
};

// --- reading
// ----------------------------------------------------------------------------------------------------------

class SpecReader {
 public:
  explicit SpecReader(std::string_view file) : file_(file) {}

  using Take = std::function<Status(const Node&)>;
  using Takes = std::map<std::string_view, Take>;

  Result<Spec> read(std::string_view text) {
    const yaml::Document document = yaml::parse(text);
    if (!document.problems.empty()) return refuse(document.problems.front().at, document.problems.front().message);
    Spec spec;
    RETURN_IF_ERROR(mapping(document.root, takes(spec)));
    for (const char* key : {"region", "instance", "count", "subnet"}) {
      if (document.root.find(key) == nullptr) return refuse({1, 1}, fmt::format("'{}' is missing", key));
    }
    spec.type = find_instance(spec.instance);
    if (spec.type == nullptr) {
      return refuse(
          document.root.find("instance")->at,
          fmt::format("{} is not among the {} instance types that are known", spec.instance, instances().size()));
    }
    RETURN_IF_ERROR(check(document.root, spec));
    return spec;
  }

 private:
  tl::unexpected<Error> refuse(const yaml::Place& at, std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument, "{}:{}:{}: {}", file_, at.line, at.column, what);
  }

  Status mapping(const Node& node, const Takes& takes) const {
    if (!node.is_mapping()) return refuse(node.at, "keys and values belong here");
    for (const yaml::Entry& entry : node.entries) {
      const auto found = takes.find(entry.key);
      if (found == takes.end()) {
        std::string known;
        for (const auto& [name, ignored] : takes) known += (known.empty() ? "" : ", ") + std::string(name);
        return refuse(entry.at, fmt::format("unknown key '{}'; there are {}", entry.key, known));
      }
      RETURN_IF_ERROR(found->second(entry.value));
    }
    return {};
  }

  Take text(std::string& out) const {
    return [this, &out](const Node& node) -> Status {
      if (!node.is_scalar() || node.text.empty()) return refuse(node.at, "a text belongs here");
      out = node.text;
      return {};
    };
  }
  Take count(int64_t& out, int64_t least) const {
    return [this, &out, least](const Node& node) -> Status {
      const std::optional<int64_t> value = yaml::as_int(node);
      if (!value || *value < least || *value > 1'000'000'000) {
        return refuse(node.at, fmt::format("a whole number from {} belongs here", least));
      }
      out = *value;
      return {};
    };
  }
  // One item, or a list of them.
  Take each(Take take) const {
    return [take = std::move(take)](const Node& node) -> Status {
      if (!node.is_sequence()) return take(node);
      for (const Node& item : node.items) RETURN_IF_ERROR(take(item));
      return {};
    };
  }

  Status reservation(const Node& node, Spec& spec) const {
    ReservationSpec& out = spec.reservations.emplace_back();
    if (node.is_scalar()) return text(out.id)(node);
    return mapping(node, {{"id", text(out.id)}, {"count", count(out.count, 1)}});
  }
  Status bucket(const Node& node, Spec& spec) const {
    BucketSpec& out = spec.buckets.emplace_back();
    if (node.is_scalar()) return text(out.name)(node);
    const Take write = [this, &out](const Node& value) -> Status {
      const std::optional<bool> yes = yaml::as_bool(value);
      if (!yes) return refuse(value.at, "true or false belongs here");
      out.write = *yes;
      return {};
    };
    return mapping(node, {{"name", text(out.name)}, {"write", write}});
  }
  Status storage(const Node& node, Spec& spec) const {
    StorageSpec& out = spec.storage.emplace_back();
    out.at = node.at;
    RETURN_IF_ERROR(mapping(node, {{"mount", text(out.mount)},
                                   {"id", text(out.id)},
                                   {"gib", count(out.gib, 1)},
                                   {"mbps_per_tib", count(out.unit, 1)}}));
    if (out.mount.empty()) return refuse(node.at, "'mount' is missing");
    if (out.id.empty() == (out.gib == 0))
      return refuse(node.at, "storage has 'id' (an existing Lustre) or 'gib' and 'mbps_per_tib' (a new one)");
    if (out.gib > 0 && out.unit == 0) return refuse(node.at, "'mbps_per_tib' is missing");
    return {};
  }

  Takes takes(Spec& spec) const {
    const Take models = [this, &spec](const Node& node) -> Status {
      if (!node.is_sequence()) return count(spec.models, 1)(node);
      spec.models = static_cast<int64_t>(node.items.size());
      return {};
    };
    const Take block = [this, &spec](const Node& node) -> Status {
      if (node.text != "capacity-block" && node.text != "on-demand")
        return refuse(node.at, "capacity-block or on-demand belongs here");
      spec.capacity_block = node.text == "capacity-block";
      return {};
    };
    const Take days = [this, &spec](const Node& node) -> Status {
      const std::optional<double> value = yaml::as_number(node);
      if (!value || !(*value > 0) || *value > 3653)
        return refuse(node.at, "a number of days, at most 3653, belongs here");
      spec.longest_job_days = *value;
      return {};
    };
    const Take group = [this, &spec](const Node& node) -> Status {
      return text(spec.security_groups.emplace_back())(node);
    };
    const Take database = [this, &spec](const Node& node) -> Status {
      DatabaseSpec& out = spec.database.emplace();
      return mapping(node, {{"uri", text(out.uri)}, {"user", text(out.user)}, {"secret", text(out.secret)}});
    };
    return {{"region", text(spec.region)},
            {"instance", text(spec.instance)},
            {"count", count(spec.count, 1)},
            {"reservation", each([this, &spec](const Node& node) { return reservation(node, spec); })},
            {"capacity", block},
            {"subnet", text(spec.subnet)},
            {"head_subnet", text(spec.head_subnet)},
            {"head", text(spec.head)},
            {"os", text(spec.os)},
            {"key", text(spec.key)},
            {"ssh_from", text(spec.ssh_from)},
            {"security_groups", each(group)},
            {"buckets", each([this, &spec](const Node& node) { return bucket(node, spec); })},
            {"storage", each([this, &spec](const Node& node) { return storage(node, spec); })},
            {"setup_script", text(spec.setup_script)},
            {"database", database},
            {"models", models},
            {"longest_job_days", days}};
  }

  // What the written file could not show.
  Status check(const Node& root, Spec& spec) const {
    if (spec.models > spec.count) {
      return refuse(root.find("models")->at,
                    fmt::format("{} models and {} nodes: each model needs one of its own", spec.models, spec.count));
    }
    if (spec.capacity_block && spec.reservations.empty()) {
      return refuse(root.find("capacity")->at, "a Capacity Block is named by its reservation, and there is none");
    }
    if (spec.reservations.size() == 1 && spec.reservations[0].count == 0) spec.reservations[0].count = spec.count;
    int64_t reserved = 0;
    for (const ReservationSpec& reservation : spec.reservations) {
      if (reservation.count == 0)
        return refuse(root.find("reservation")->at, "with several reservations each needs its 'count'");
      reserved += reservation.count;
    }
    if (!spec.reservations.empty() && reserved != spec.count) {
      return refuse(root.find("count")->at, fmt::format("{} nodes and {} reserved ones", spec.count, reserved));
    }
    return {};
  }

  std::string_view file_;
};

// --- writing
// ----------------------------------------------------------------------------------------------------------

class Writer {
 public:
  // "  Key: value"; the line ends with the colon for an empty value.
  void line(int depth, std::string_view key, std::string_view value = {}) {
    text += fmt::format("{:{}}{}:{}{}\n", "", depth * 2, key, value.empty() ? "" : " ", value);
  }
  void named(int depth, std::string_view key, const std::string& value) { line(depth, key, yaml::scalar(value)); }
  void item(int depth, const std::string& value) {
    text += fmt::format("{:{}}- {}\n", "", depth * 2, yaml::scalar(value));
  }
  // "  - Key: value", the first line of an item that is a mapping.
  void first(int depth, std::string_view key, const std::string& value) {
    first_number(depth, key, yaml::scalar(value));
  }
  void first_number(int depth, std::string_view key, const std::string& value) {
    text += fmt::format("{:{}}- {}: {}\n", "", depth * 2, key, value);
  }
  std::string text;
};

std::string_view default_os(const Version& version) {
  return version >= Version{3, 10, 0} ? "alinux2023" : "ubuntu2204";
}

// 8 vCPUs up to 16 nodes, 16 up to 64, 32 beyond: for slurmctld and the shared directories of the head node.
std::string default_head(const Spec& spec) {
  const std::string_view family = spec.type->arm64 ? "m7g" : "m6i";
  return fmt::format("{}.{}", family, spec.count <= 16 ? "2xlarge" : spec.count <= 64 ? "4xlarge" : "8xlarge");
}

// The shortest retention of CloudWatch that is long enough.
int64_t retention_days(double days) {
  constexpr int64_t kOffered[] = {14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653};
  return *std::find_if(std::begin(kOffered), std::end(kOffered),
                       [&](int64_t d) { return static_cast<double>(d) >= days; });
}

std::string script_bucket(std::string_view url) {
  return url.starts_with("s3://") ? std::string(url.substr(5, url.find('/', 5) - 5)) : std::string();
}

void write_head(const Spec& spec, Writer& out) {
  out.line(0, "HeadNode");
  out.named(1, "InstanceType", spec.head.empty() ? default_head(spec) : spec.head);
  out.line(1, "SharedStorageType", "Efs");  // /home is not served by the head node
  out.line(1, "Networking");
  out.named(2, "SubnetId", spec.head_subnet.empty() ? spec.subnet : spec.head_subnet);
  if (!spec.security_groups.empty()) {
    out.line(2, "AdditionalSecurityGroups");
    for (const std::string& group : spec.security_groups) out.item(3, group);
  }
  out.line(1, "Ssh");
  if (!spec.key.empty()) out.named(2, "KeyName", spec.key);
  out.named(2, "AllowedIps", spec.ssh_from);
  out.line(1, "LocalStorage");
  out.line(2, "RootVolume");
  out.line(3, "Size", "200");
  out.line(3, "VolumeType", "gp3");
  out.line(1, "Iam");
  out.line(2, "AdditionalIamPolicies");
  out.first(3, "Policy", "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore");
}

void write_slurm_settings(const Spec& spec, Writer& out) {
  const Instance& type = *spec.type;
  out.line(1, "SlurmSettings");
  out.line(2, "ScaledownIdletime", "10");
  out.line(2, "EnableMemoryBasedScheduling", "true");
  if (spec.database) {
    out.line(2, "Database");
    out.named(3, "Uri", spec.database->uri);
    out.named(3, "UserName", spec.database->user);
    out.named(3, "PasswordSecretArn", spec.database->secret);
  }
  // The share of each accelerator (or CPU) of the 95 % that Slurm gives out.
  const int64_t shares = type.gpus > 0 ? type.gpus : type.vcpus;
  out.line(2, "CustomSlurmSettings");
  out.first_number(3, type.gpus > 0 ? "DefMemPerGPU" : "DefMemPerCPU",
                   std::to_string(type.memory_mib * 95 / 100 / shares));
}

void write_queue_iam(const Spec& spec, Writer& out) {
  std::vector<BucketSpec> buckets = spec.buckets;
  const std::string tools = script_bucket(spec.setup_script);
  const bool known = std::any_of(buckets.begin(), buckets.end(), [&](const BucketSpec& b) { return b.name == tools; });
  if (!tools.empty() && !known) buckets.push_back({tools, false});
  out.line(3, "Iam");
  if (!buckets.empty()) {
    out.line(4, "S3Access");
    for (const BucketSpec& bucket : buckets) {
      out.first(5, "BucketName", bucket.name);
      if (bucket.write) out.line(6, "EnableWriteAccess", "true");
    }
  }
  out.line(4, "AdditionalIamPolicies");
  out.first(5, "Policy", "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore");
  out.first(5, "Policy", "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryReadOnly");
}

void write_networking(const Spec& spec, Writer& out) {
  out.line(3, "Networking");
  out.line(4, "SubnetIds");
  out.item(5, spec.subnet);
  if (!spec.security_groups.empty()) {
    out.line(4, "AdditionalSecurityGroups");
    for (const std::string& group : spec.security_groups) out.item(5, group);
  }
  if (spec.capacity_block) return;
  out.line(4, "PlacementGroup");
  out.line(5, "Enabled", spec.reservations.empty() ? "true" : "false");
}

void write_resource(const Spec& spec, std::string_view name, const ReservationSpec* reservation, Writer& out) {
  const Instance& type = *spec.type;
  out.first(4, "Name", std::string(name));
  out.named(5, "InstanceType", spec.instance);
  const int64_t count = reservation == nullptr ? spec.count : reservation->count;
  out.line(5, "MinCount", std::to_string(reservation == nullptr ? 0 : count));
  out.line(5, "MaxCount", std::to_string(count));
  if (type.efa_interfaces > 0) {
    out.line(5, "Efa");
    out.line(6, "Enabled", "true");
  }
  if (reservation != nullptr) {
    out.line(5, "CapacityReservationTarget");
    out.named(6, "CapacityReservationId", reservation->id);
  }
  if (type.gpus == 0) return;
  const int64_t sockets = type.vcpus >= 96 ? 2 : 1, threads = type.arm64 ? 1 : 2;
  out.line(5, "CustomSlurmSettings");
  out.line(6, "Sockets", std::to_string(sockets));
  out.line(6, "CoresPerSocket", std::to_string(std::max<int64_t>(1, type.vcpus / sockets / threads)));
  out.line(6, "ThreadsPerCore", std::to_string(threads));
}

void write_queue(const Spec& spec, Writer& out) {
  out.line(1, "SlurmQueues");
  out.first(2, "Name", "train");
  out.line(3, "CapacityType", spec.capacity_block ? "CAPACITY_BLOCK" : "ONDEMAND");
  out.line(3, "ComputeSettings");
  out.line(4, "LocalStorage");
  out.line(5, "RootVolume");
  out.line(6, "Size", "200");
  out.line(6, "VolumeType", "gp3");
  if (spec.type->nvme_gb > 0) {
    out.line(5, "EphemeralVolume");
    out.line(6, "MountDir", "/scratch");
  }
  if (!spec.setup_script.empty()) {
    out.line(3, "CustomActions");
    out.line(4, "OnNodeConfigured");
    out.named(5, "Script", spec.setup_script);
  }
  write_queue_iam(spec, out);
  if (spec.type->maker == Maker::kNvidia) {
    out.line(3, "HealthChecks");
    out.line(4, "Gpu");
    out.line(5, "Enabled", "true");
  }
  write_networking(spec, out);
  out.line(3, "ComputeResources");
  if (spec.reservations.empty()) write_resource(spec, "nodes", nullptr, out);
  for (size_t i = 0; i < spec.reservations.size(); ++i) {
    write_resource(spec, fmt::format("reserved-{}", i + 1), &spec.reservations[i], out);
  }
}

void write_storage(const Spec& spec, Writer& out) {
  if (spec.storage.empty()) return;
  out.line(0, "SharedStorage");
  for (size_t i = 0; i < spec.storage.size(); ++i) {
    const StorageSpec& storage = spec.storage[i];
    out.first(1, "Name", fmt::format("storage-{}", i + 1));
    out.named(2, "MountDir", storage.mount);
    out.line(2, "StorageType", "FsxLustre");
    out.line(2, "FsxLustreSettings");
    if (!storage.id.empty()) {
      out.named(3, "FileSystemId", storage.id);
      continue;
    }
    out.line(3, "DeploymentType", "PERSISTENT_2");
    out.line(3, "StorageCapacity", std::to_string(storage.gib));
    out.line(3, "PerUnitStorageThroughput", std::to_string(storage.unit));
    out.line(3, "DataCompressionType", "LZ4");
    out.line(3, "DeletionPolicy", "Retain");
  }
}

void write_rest(const Spec& spec, Writer& out) {
  out.line(0, "Monitoring");
  out.line(1, "Logs");
  out.line(2, "CloudWatch");
  out.line(3, "Enabled", "true");
  out.line(3, "RetentionInDays", std::to_string(retention_days(spec.longest_job_days)));
  out.line(3, "DeletionPolicy", "Retain");
  out.line(1, "Dashboards");
  out.line(2, "CloudWatch");
  out.line(3, "Enabled", "true");
  out.line(0, "Imds");
  out.line(1, "ImdsSupport", "v2.0");
  out.line(0, "Tags");
  out.first(1, "Key", "Models");
  out.named(2, "Value", std::to_string(spec.models));
}

std::string write_config(const Spec& spec, const Version& version) {
  Writer out;
  out.text = fmt::format("# Written by millrace cluster new for ParallelCluster {}.\n", to_string(version));
  if (!spec.database) out.text += "# millrace: ignore-file PC53 -- no accounting database was named\n";
  out.named(0, "Region", spec.region);
  out.line(0, "Image");
  out.named(1, "Os", spec.os.empty() ? std::string(default_os(version)) : spec.os);
  write_head(spec, out);
  out.line(0, "Scheduling");
  out.line(1, "Scheduler", "slurm");
  out.line(1, "ScalingStrategy", "all-or-nothing");
  write_slurm_settings(spec, out);
  write_queue(spec, out);
  write_storage(spec, out);
  write_rest(spec, out);
  return out.text;
}

}  // namespace

Result<std::string> new_config(std::string_view spec_text, std::string_view spec_file, const Version& version) {
  if (version < kOldestForNew) {
    return fail(ErrorCode::kInvalidArgument, "what is written needs ParallelCluster {} or newer, not {}",
                to_string(kOldestForNew), to_string(version));
  }
  ASSIGN_OR_RETURN(const Spec spec, SpecReader(spec_file).read(spec_text));
  std::string text = write_config(spec, version);
  // The rules decide whether a cluster can be made of it; each that speaks is a reason not to write the file.
  ASSIGN_OR_RETURN(const std::vector<Finding> findings,
                   lint_config(text, {.file = "cluster.yaml", .version = version}));
  std::string reasons;
  for (const Finding& finding : findings) {
    if (finding.severity() == Severity::kNote || finding.suppressed_because) continue;
    reasons +=
        fmt::format("{}{} [{}] ({})", reasons.empty() ? "" : "; ", finding.message, finding.rule->id, finding.advice());
  }
  if (!reasons.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: no cluster can be made of this: {}", spec_file, reasons);
  return text;
}

}  // namespace millrace::pcluster
