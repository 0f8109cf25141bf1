// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/plan_partitions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "millrace/plan/catalogue.h"

namespace millrace::cli {

namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_known(std::string_view name) {
  return plan::find_gpu(name).has_value();
}

// "gpu4090" of "gpu4090-03"
std::string_view head_of(std::string_view node) {
  return node.substr(0, node.find_first_of("-_."));
}

std::string gpu_name(const slurm::Node& node, const std::string& type, const std::string& partition, GpuNames& names) {
  if (const auto given = names.find(node.name)) return *given;
  if (const auto given = names.find(type)) return *given;
  if (is_known(type)) return type;
  for (const std::string& feature : node.features) {
    if (const auto given = names.find(feature)) return *given;
    if (is_known(feature)) return feature;
  }
  if (const auto given = names.find(partition)) return *given;
  for (const std::string_view name : {head_of(node.name), std::string_view(partition)}) {
    if (is_known(name)) return std::string(name);
  }
  return type.empty() ? "unknown" : type;
}

// A job needs CPUs, so a node without free ones has no free GPUs.
int64_t free_gpus(const slurm::Node& node, const slurm::GpuKind& kind) {
  return node.cpus_used >= node.cpus ? 0 : std::max<int64_t>(0, kind.count - kind.used);
}

bool waits_for_nodes(const slurm::Job& job) {
  return job.state == "PENDING" && (job.reason == "Resources" || job.reason == "Priority" || job.reason == "None");
}

bool is_in(const slurm::Job& job, std::string_view partition) {
  return ("," + job.partition + ",").find(fmt::format(",{},", partition)) != std::string::npos;
}

struct KindNode {
  const slurm::Node* node;
  slurm::GpuKind gpus;
};

// Jobs tell the number of their GPUs, not the kind. What a node of several kinds gives back is unknown.
void add_release(const slurm::Job& job, int64_t gpus, const std::vector<KindNode>& nodes, plan::Partition& partition) {
  for (const std::string& name : job.node_list) {
    const auto found =
        std::find_if(nodes.begin(), nodes.end(), [&](const KindNode& each) { return each.node->name == name; });
    if (found == nodes.end() || found->node->gpu_kinds().size() > 1) continue;
    partition.releases.push_back(
        {static_cast<size_t>(found - nodes.begin()), static_cast<double>(*job.time_left_s), gpus});
  }
}

void add_jobs(const slurm::Cluster& cluster, const std::vector<KindNode>& nodes, plan::Partition& partition) {
  for (const slurm::Job& job : cluster.jobs) {
    if (waits_for_nodes(job) && is_in(job, partition.name) && job.gpus.value_or(1) > 0) ++partition.pending_jobs;
    if (job.node_list.empty()) continue;
    const int64_t each = job.gpus.value_or(0) / static_cast<int64_t>(job.node_list.size());
    if (job.time_left_s && each > 0) add_release(job, each, nodes, partition);
  }
}

// Jobs of this partition are preempted by another.
bool is_preempted(const slurm::Cluster& cluster, const slurm::Partition& partition) {
  return partition.preempted &&
         std::any_of(cluster.partitions.begin(), cluster.partitions.end(),
                     [&](const slurm::Partition& other) { return other.priority_tier > partition.priority_tier; });
}

// Nodes with the same number, name and gres.conf type of GPUs.
struct KindKey {
  std::string gpu, type;
  int64_t count;
  auto operator<=>(const KindKey&) const = default;
};

// How a job asks for the nodes of one kind among `all` of the partition, when gres.conf gives its GPUs no type.
void add_constraint(const std::map<KindKey, std::vector<KindNode>>& all, const KindKey& key,
                    plan::Partition& partition) {
  if (!key.type.empty() || all.size() == 1) return;
  const auto has = [&](const KindNode& each) { return contains(each.node->features, key.gpu); };
  const bool only_these = std::all_of(all.begin(), all.end(), [&](const auto& kind) {
    const auto& nodes = kind.second;
    return kind.first.gpu == key.gpu ? std::all_of(nodes.begin(), nodes.end(), has)
                                     : std::none_of(nodes.begin(), nodes.end(), has);
  });
  if (only_these) {
    partition.constraint = key.gpu;
  } else {
    partition.among_others = true;
  }
}

void add_kinds(const slurm::Cluster& cluster, const slurm::Partition& from, GpuNames& names,
               std::vector<plan::Partition>& to) {
  const bool preempted = is_preempted(cluster, from);
  std::map<KindKey, std::vector<KindNode>> kinds;
  for (const slurm::Node& node : cluster.nodes) {
    if (!node.usable || !contains(node.partitions, from.name)) continue;
    for (const slurm::GpuKind& gpus : node.gpu_kinds()) {
      if (gpus.count > 0)
        kinds[{gpu_name(node, gpus.type, from.name, names), gpus.type, gpus.count}].push_back({&node, gpus});
    }
  }
  for (const auto& [key, nodes] : kinds) {
    const slurm::Node& first = *nodes.front().node;
    plan::Partition partition{.name = from.name,
                              .gpu = key.gpu,
                              .gpu_type = key.type,
                              .gpus_per_node = key.count,
                              .cpus_per_node = first.cpus,
                              .memory_mib = first.memory_mib,
                              .whole_nodes = from.whole_nodes,
                              .preempted = preempted};
    for (const KindNode& each : nodes) partition.free_gpus.push_back(free_gpus(*each.node, each.gpus));
    if (from.max_time_s) partition.max_time_s = static_cast<double>(*from.max_time_s);
    add_constraint(kinds, key, partition);
    add_jobs(cluster, nodes, partition);
    to.push_back(std::move(partition));
  }
}

// Partitions of a file: each is of one kind, known by its own name or as the file calls its GPU.
void name_gpus(std::vector<plan::Partition>& partitions, GpuNames& names) {
  for (plan::Partition& partition : partitions) {
    auto given = names.find(partition.name);
    if (!given) given = names.find(partition.gpu);
    if (given) partition.gpu = *given;
  }
}

}  // namespace

Result<GpuNames> GpuNames::of(const std::vector<std::string>& flags) {
  GpuNames names;
  for (const std::string& flag : flags) {
    const size_t equals = flag.find('=');
    ASSIGN_OR_RETURN(const std::vector<std::string> all, slurm::expand_hostlist(flag.substr(0, equals)));
    for (const std::string& name : all) names.by_name_[name] = names.given_.size();
    names.given_.push_back({flag, flag.substr(equals + 1)});
  }
  return names;
}

std::optional<std::string> GpuNames::find(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  Given& given = given_[found->second];
  given.used = true;
  return given.gpu;
}

Status GpuNames::check_all_used() const {
  for (const Given& given : given_) {
    if (!given.used) {
      return fail(ErrorCode::kNotFound,
                  "--gpu-of {}: it names no node or type of gres with GPUs, and no partition whose GPUs are not known "
                  "already (`millrace plan gpus --from-slurm` lists them; name the type to correct one)",
                  given.flag);
    }
  }
  return {};
}

void add_partition_flags(CLI::App& app, PartitionFlags& flags) {
  CLI::Option* file =
      app.add_option("--partitions", flags.file, "Partitions as this JSON file has them")->option_text("FILE");
  app.add_flag("--from-slurm", flags.from_slurm, "Partitions as this machine's Slurm has them now")->excludes(file);
  app.add_option("--gpu-of", flags.gpu_of,
                 "The GPU of nodes (n[1-4]), of a type of gres, or of a partition whose gres has none; may be repeated")
      ->option_text("NAME=GPU");
  app.add_option("--partition", flags.only, "Only this one; may be repeated")->option_text("NAME");
}

void check_partition_flags(const PartitionFlags& flags, bool required) {
  if (required && flags.file.empty() && !flags.from_slurm) {
    throw CLI::ValidationError("--partitions", "is required, or --from-slurm");
  }
  for (const std::string& text : flags.gpu_of) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) throw CLI::ValidationError("--gpu-of", fmt::format("'{}' is not NAME=GPU", text));
    usage_value("--gpu-of", plan::find_gpu(text.substr(equals + 1)));
  }
}

std::vector<plan::Partition> partitions_of(const slurm::Cluster& cluster, GpuNames& names) {
  std::vector<plan::Partition> partitions;
  for (const slurm::Partition& partition : cluster.partitions) {
    if (partition.up) add_kinds(cluster, partition, names, partitions);
  }
  return partitions;
}

Result<KnownPartitions> known_partitions(const PartitionFlags& flags, const std::stop_token& stop) {
  KnownPartitions known;
  ASSIGN_OR_RETURN(GpuNames names, GpuNames::of(flags.gpu_of));
  std::string source = flags.file;
  if (flags.from_slurm) {
    ASSIGN_OR_RETURN(const slurm::Cluster cluster, slurm::ask({.stop = stop}));
    known.partitions = partitions_of(cluster, names);
    source = fmt::format("Slurm {} (scontrol, squeue), now", cluster.version);
    if (cluster.schedules_memory()) {
      known.why.notes.push_back(
          fmt::format("memory is scheduled ({}): a job without --mem takes its partition's default, or all",
                      cluster.select_parameters));
    }
  } else {
    ASSIGN_OR_RETURN(const std::string text, read_plan_file(flags.file));
    ASSIGN_OR_RETURN(known.partitions, with_context(plan::parse_partitions(text), flags.file));
    name_gpus(known.partitions, names);
  }
  RETURN_IF_ERROR(names.check_all_used());
  for (const std::string& name : flags.only) {
    if (std::none_of(known.partitions.begin(), known.partitions.end(),
                     [&](const auto& each) { return each.name == name; })) {
      return fail(ErrorCode::kNotFound, "{}: no partition with GPUs is called '{}'", source, name);
    }
  }
  if (!flags.only.empty())
    std::erase_if(known.partitions, [&](const auto& each) { return !contains(flags.only, each.name); });
  known.why.terms.push_back(
      {"partitions", plan::Range::point(static_cast<double>(known.partitions.size())), "", source});
  return known;
}

}  // namespace millrace::cli
