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

std::string gpu_name(const slurm::Node& node, const std::string& partition) {
  if (const std::string type = node.gpu_type(); !type.empty()) return type;
  for (const std::string& feature : node.features) {
    if (plan::find_gpu(feature)) return feature;
  }
  return plan::find_gpu(partition) ? partition : "unknown";
}

// Of the kind that `node` is; a job needs CPUs, so a node without free ones has no free GPUs.
int64_t free_gpus(const slurm::Node& node) {
  return node.cpus_used >= node.cpus ? 0 : std::max<int64_t>(0, node.gpus() - node.gpus_used());
}

bool waits_for_nodes(const slurm::Job& job) {
  return job.state == "PENDING" && (job.reason == "Resources" || job.reason == "Priority" || job.reason == "None");
}

bool is_in(const slurm::Job& job, std::string_view partition) {
  return ("," + job.partition + ",").find(fmt::format(",{},", partition)) != std::string::npos;
}

void add_jobs(const slurm::Cluster& cluster, const std::vector<std::string>& node_names, plan::Partition& partition) {
  for (const slurm::Job& job : cluster.jobs) {
    if (waits_for_nodes(job) && is_in(job, partition.name) && job.gpus.value_or(1) > 0) ++partition.pending_jobs;
    if (job.node_list.empty()) continue;
    const int64_t each = job.gpus.value_or(0) / static_cast<int64_t>(job.node_list.size());
    for (const std::string& name : job.node_list) {
      const auto found = std::find(node_names.begin(), node_names.end(), name);
      if (found == node_names.end()) continue;
      if (job.time_left_s && each > 0) {
        partition.releases.push_back(
            {static_cast<size_t>(found - node_names.begin()), static_cast<double>(*job.time_left_s), each});
      }
    }
  }
}

// Its jobs give way to those of another.
bool is_preempted(const slurm::Cluster& cluster, const slurm::Partition& partition) {
  return partition.preempted &&
         std::any_of(cluster.partitions.begin(), cluster.partitions.end(),
                     [&](const slurm::Partition& other) { return other.priority_tier > partition.priority_tier; });
}

void add_kinds(const slurm::Cluster& cluster, const slurm::Partition& from, std::vector<plan::Partition>& to) {
  const bool preempted = is_preempted(cluster, from);
  struct Kind {
    std::vector<const slurm::Node*> nodes;
    std::vector<std::string> names;
  };
  std::map<std::pair<std::string, int64_t>, Kind> kinds;
  for (const slurm::Node& node : cluster.nodes) {
    if (!node.usable || node.gpus() == 0 || !contains(node.partitions, from.name)) continue;
    Kind& kind = kinds[{gpu_name(node, from.name), node.gpus()}];
    kind.nodes.push_back(&node);
    kind.names.push_back(node.name);
  }
  for (const auto& [key, kind] : kinds) {
    const slurm::Node& first = *kind.nodes.front();
    plan::Partition partition{.name = from.name,
                              .gpu = key.first,
                              .gpu_type = first.gpu_type(),
                              .gpus_per_node = key.second,
                              .cpus_per_node = first.cpus,
                              .memory_mib = first.memory_mib,
                              .whole_nodes = from.whole_nodes,
                              .preempted = preempted};
    for (const slurm::Node* node : kind.nodes) partition.free_gpus.push_back(free_gpus(*node));
    if (from.max_time_s) partition.max_time_s = static_cast<double>(*from.max_time_s);
    add_jobs(cluster, kind.names, partition);
    to.push_back(std::move(partition));
  }
}

}  // namespace

void add_partition_flags(CLI::App& app, PartitionFlags& flags) {
  CLI::Option* file =
      app.add_option("--partitions", flags.file, "Partitions as this JSON file has them")->option_text("FILE");
  app.add_flag("--from-slurm", flags.from_slurm, "Partitions as this machine's Slurm has them now")->excludes(file);
  app.add_option("--gpu-of", flags.gpu_of, "The GPU of a partition whose gres has no type; may be repeated")
      ->option_text("PARTITION=GPU");
  app.add_option("--partition", flags.only, "Only this one; may be repeated")->option_text("NAME");
}

void check_partition_flags(const PartitionFlags& flags, bool required) {
  if (required && flags.file.empty() && !flags.from_slurm) {
    throw CLI::ValidationError("--partitions", "is required, or --from-slurm");
  }
  for (const std::string& text : flags.gpu_of) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos)
      throw CLI::ValidationError("--gpu-of", fmt::format("'{}' is no PARTITION=GPU", text));
    usage_value("--gpu-of", plan::find_gpu(text.substr(equals + 1)));
  }
}

std::vector<plan::Partition> partitions_of(const slurm::Cluster& cluster) {
  std::vector<plan::Partition> partitions;
  for (const slurm::Partition& partition : cluster.partitions) {
    if (partition.up) add_kinds(cluster, partition, partitions);
  }
  return partitions;
}

Result<KnownPartitions> known_partitions(const PartitionFlags& flags, const std::stop_token& stop) {
  KnownPartitions known;
  std::string source = flags.file;
  if (flags.from_slurm) {
    ASSIGN_OR_RETURN(const slurm::Cluster cluster, slurm::ask({.stop = stop}));
    known.partitions = partitions_of(cluster);
    source = fmt::format("Slurm {} (scontrol, squeue), now", cluster.version);
    if (cluster.schedules_memory()) {
      known.why.notes.push_back(
          fmt::format("memory is scheduled ({}): a job without --mem takes its partition's default, or all",
                      cluster.select_parameters));
    }
  } else {
    ASSIGN_OR_RETURN(const std::string text, read_plan_file(flags.file));
    ASSIGN_OR_RETURN(known.partitions, with_context(plan::parse_partitions(text), flags.file));
  }
  for (const std::string& name : flags.only) {
    if (std::none_of(known.partitions.begin(), known.partitions.end(),
                     [&](const auto& each) { return each.name == name; })) {
      return fail(ErrorCode::kNotFound, "{}: no partition with GPUs is called '{}'", source, name);
    }
  }
  if (!flags.only.empty())
    std::erase_if(known.partitions, [&](const auto& each) { return !contains(flags.only, each.name); });
  for (const std::string& text : flags.gpu_of) {
    const size_t equals = text.find('=');
    for (plan::Partition& partition : known.partitions) {
      if (partition.name == text.substr(0, equals)) partition.gpu = text.substr(equals + 1);
    }
  }
  known.why.terms.push_back(
      {"partitions", plan::Range::point(static_cast<double>(known.partitions.size())), "", source});
  return known;
}

}  // namespace millrace::cli
