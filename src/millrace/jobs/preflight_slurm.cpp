// SPDX-License-Identifier: Apache-2.0
// The questions of `job check` that Slurm answers: partition, limits, accounts, nodes.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "millrace/jobs/demand.h"
#include "millrace/jobs/preflight_parts.h"
#include "millrace/slurm/accounts.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::jobs {

namespace {

constexpr int64_t kMinute = 60;

bool has_name(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The groups of this process's user.
std::vector<std::string> group_names() {
  std::vector<gid_t> ids(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  ids.resize(static_cast<size_t>(std::max(0, ::getgroups(static_cast<int>(ids.size()), ids.data()))));
  ids.push_back(::getegid());
  std::vector<std::string> names;
  for (const gid_t id : ids) {
    group entry{};
    group* found = nullptr;
    std::array<char, 16384> buffer;
    if (getgrgid_r(id, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
      names.emplace_back(found->gr_name);
    }
  }
  return names;
}

// "1-02:03:00" as Slurm writes it, without seconds.
std::string limit_text(std::optional<int64_t> seconds) {
  if (!seconds) return "no limit";
  const int64_t minutes = *seconds / kMinute, hours = minutes / 60, days = hours / 24;
  return days > 0 ? fmt::format("{}-{:02}:{:02}:00", days, hours % 24, minutes % 60)
                  : fmt::format("{:02}:{:02}:00", hours, minutes % 60);
}

struct Trouble {
  std::string_view rule, option;
  std::string message;
  std::optional<Severity> severity = {};
};

const slurm::Partition* find_partition(const Preflight& check, std::string_view name) {
  const auto& all = check.cluster->partitions;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  return found == all.end() ? nullptr : &*found;
}

void add_entry(const Preflight& check, const slurm::Partition& partition, std::vector<Trouble>& troubles) {
  const auto add = [&](std::string message, std::optional<Severity> severity = {}) {
    troubles.push_back({"JC02", "partition", std::move(message), severity});
  };
  if (!partition.up) {
    const bool starts_later = partition.state == "DOWN";
    add(fmt::format("partition {} is {}: it {}", partition.name, partition.state,
                    starts_later ? "queues jobs and starts none" : "takes no jobs"),
        starts_later ? std::optional(Severity::kWarning) : std::nullopt);
  }
  const std::string account = check.held("account", "SBATCH_ACCOUNT"), qos = check.held("qos", "SBATCH_QOS");
  if (!partition.groups.empty() && ::geteuid() != 0) {  // Slurm lets root in
    const auto mine = group_names();
    const auto in = [&](const std::string& name) { return has_name(partition.groups, name); };
    if (std::none_of(mine.begin(), mine.end(), in)) {
      add(fmt::format("partition {} is for the groups {}, and you are in {}", partition.name,
                      fmt::join(partition.groups, ", "), fmt::join(mine, ", ")));
    }
  }
  const auto compare = [&](std::string_view what, const std::string& given, const auto& allowed, const auto& denied) {
    if (given.empty()) return;
    if (!allowed.empty() && !has_name(allowed, given)) {
      add(fmt::format("partition {} is for the {} {}, and the job asks for {}", partition.name, what,
                      fmt::join(allowed, ", "), given));
    }
    if (has_name(denied, given)) add(fmt::format("partition {} is closed for the {} {}", partition.name, what, given));
  };
  compare("account", account, partition.accounts, partition.denied_accounts);
  compare("QOS", qos, partition.qos, partition.denied_qos);
}

void add_limits(const Preflight& check, const slurm::Partition& partition, std::vector<Trouble>& troubles) {
  const auto time = slurm::parse_time_limit(check.held("time", "SBATCH_TIMELIMIT"));
  if (time && partition.max_time_s && *time > *partition.max_time_s) {
    troubles.push_back({"JC03", "time",
                        fmt::format("the job asks for {}, and partition {} allows {}", limit_text(time), partition.name,
                                    limit_text(partition.max_time_s))});
  }
  const int64_t nodes = demand_of(check.asked).nodes;
  if (partition.max_nodes && nodes > *partition.max_nodes) {
    troubles.push_back({"JC03", "nodes",
                        fmt::format("the job asks for {} nodes, and partition {} allows a job {}", nodes,
                                    partition.name, *partition.max_nodes)});
  }
  if (nodes < partition.min_nodes) {
    troubles.push_back({"JC03", "nodes",
                        fmt::format("the job asks for {} nodes, and partition {} takes jobs from {} on", nodes,
                                    partition.name, partition.min_nodes)});
  }
}

std::vector<Trouble> troubles_with(const Preflight& check, const std::string& name) {
  const slurm::Partition* partition = find_partition(check, name);
  std::vector<Trouble> troubles;
  if (partition == nullptr) {
    std::vector<std::string> names;
    for (const slurm::Partition& each : check.cluster->partitions) names.push_back(each.name);
    troubles.push_back(
        {"JC02", "partition", fmt::format("there is no partition {}; there are {}", name, fmt::join(names, ", "))});
    return troubles;
  }
  add_entry(check, *partition, troubles);
  add_limits(check, *partition, troubles);
  return troubles;
}

std::string partition_text(const Preflight& check, const slurm::Partition& partition) {
  const auto time = slurm::parse_time_limit(check.held("time", "SBATCH_TIMELIMIT"));
  const auto given = time ? time : partition.default_time_s ? partition.default_time_s : partition.max_time_s;
  return fmt::format("{} takes jobs; the job's limit is {}{}, the partition's {}", partition.name, limit_text(given),
                     time ? "" : " for want of --time", limit_text(partition.max_time_s));
}

// --- accounts

struct Asked {
  std::string account, qos, partition;
  std::optional<int64_t> time;
  Demand demand;
};

// Why a limit of one job forbids it; empty where none does.
std::string over_limit(const slurm::Limits& limits, const Asked& asked) {
  if (const auto wall = limits.find("MaxWall"); wall != limits.end()) {
    const auto most = slurm::parse_time_limit(wall->second);
    if (most && asked.time && *asked.time > *most) {
      return fmt::format("MaxWall={}, and the job asks for {}", wall->second, limit_text(asked.time));
    }
  }
  const Demand& demand = asked.demand;
  const int64_t gpus = std::max(demand.total_gpus, demand.gpus * demand.nodes);
  for (const char* name : {"MaxTRES", "MaxTRESPerUser", "GrpTRES"}) {
    const auto limit = limits.find(name);
    if (limit == limits.end()) continue;
    const auto counts = slurm::parse_tres(limit->second);
    for (const auto& [resource, wanted] :
         {std::pair("gres/gpu", gpus), std::pair("node", demand.nodes), std::pair("cpu", demand.cpus * demand.nodes)}) {
      const auto most = counts.find(resource);
      if (most != counts.end() && wanted > most->second) {
        return fmt::format("{} {}={}, and the job asks for {}", name, resource, most->second, wanted);
      }
    }
  }
  return {};
}

std::vector<const slurm::Association*> usable_associations(const slurm::Accounts& accounts, const Asked& asked) {
  std::vector<const slurm::Association*> usable;
  for (const slurm::Association& each : accounts.associations) {
    const bool account = asked.account.empty() || each.account == asked.account;
    const bool partition = each.partition.empty() || each.partition == asked.partition;
    if (account && partition) usable.push_back(&each);
  }
  return usable;
}

void check_qos(Preflight& check, const slurm::Accounts& accounts, const Asked& asked,
               const std::vector<const slurm::Association*>& usable, std::optional<Severity> severity) {
  std::set<std::string> names;
  for (const slurm::Association* each : usable) names.insert(each->qos.begin(), each->qos.end());
  if (!asked.qos.empty() && names.count(asked.qos) == 0) {
    return check.problem("JC04", check.place_of("qos"),
                         fmt::format("QOS {} is not yours{}; yours are {}", asked.qos,
                                     asked.account.empty() ? "" : " with account " + asked.account,
                                     names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
                         {}, severity);
  }
  const std::string held = !asked.qos.empty() ? asked.qos : usable[0]->default_qos;
  if (const slurm::Qos* qos = accounts.find_qos(held); qos != nullptr) {
    if (const std::string why = over_limit(qos->limits, asked); !why.empty()) {
      return check.problem("JC04", check.place_of("qos"), fmt::format("QOS {} has {}", held, why),
                           "Ask for less, or use another --qos.", severity);
    }
  }
  if (const std::string why = over_limit(usable[0]->limits, asked); !why.empty() && usable.size() == 1) {
    return check.problem("JC04", check.place_of("account"), fmt::format("account {} has {}", usable[0]->account, why),
                         "Ask for less, or use another --account.", severity);
  }
  check.fine("accounts",
             fmt::format("account {}{} is yours", usable[0]->account, held.empty() ? "" : " with QOS " + held));
}

// --- nodes

struct Counts {
  int64_t all = 0, fitting = 0, free = 0, gpus = 0, free_gpus = 0, total_gpus = 0;
  int64_t most_gpus = 0, most_cpus = 0, most_memory = 0, with_gpus = 0, with_cpus = 0, with_memory = 0;
};

Counts count_nodes(const Preflight& check, const std::string& partitions, const Demand& demand) {
  Counts counts;
  for (const slurm::Node& node : check.cluster->nodes) {
    if (!is_in(node, partitions)) continue;
    ++counts.all;
    const int64_t gpus = gpus_of(node, demand, false);
    counts.total_gpus += gpus;
    counts.most_gpus = std::max(counts.most_gpus, gpus);
    counts.most_cpus = std::max(counts.most_cpus, node.cpus);
    counts.most_memory = std::max(counts.most_memory, node.memory_mib);
    counts.with_gpus += gpus >= demand.gpus ? 1 : 0;
    counts.with_cpus += node.cpus >= demand.cpus ? 1 : 0;
    counts.with_memory += node.memory_mib >= demand.memory_mib ? 1 : 0;
    if (!fits(node, demand, false)) continue;
    ++counts.fitting;
    counts.gpus += gpus;
    if (!node.usable) continue;
    counts.free_gpus += gpus_of(node, demand, true);
    counts.free += fits(node, demand, true) ? 1 : 0;
  }
  return counts;
}

std::set<std::string> gpu_types(const Preflight& check, const std::string& partitions) {
  std::set<std::string> types;
  for (const slurm::Node& node : check.cluster->nodes) {
    if (!is_in(node, partitions)) continue;
    for (const slurm::GpuKind& kind : node.gpu_kinds()) types.insert(kind.type.empty() ? "untyped" : kind.type);
  }
  return types;
}

std::string gpu_name(const Demand& demand) {
  return demand.gpu_type.empty() ? "GPUs" : demand.gpu_type + " GPUs";
}

void tell_gpus(Preflight& check, const std::string& partitions, const Demand& demand, const Counts& counts) {
  const Place place = check.job.gpu_option() != nullptr ? check.job.gpu_option()->place : job_place(check.job);
  const auto types = gpu_types(check, partitions);
  if (counts.total_gpus == 0) {
    return check.problem("JC05", place,
                         fmt::format("partition {} has no {}; it has {}", partitions, gpu_name(demand),
                                     types.empty() ? "none at all" : fmt::format("{}", fmt::join(types, ", "))));
  }
  if (demand.total_gpus > counts.gpus) {
    return check.problem("JC05", place,
                         fmt::format("the job asks for {} {}, and partition {} has {} on nodes that fit",
                                     demand.total_gpus, gpu_name(demand), partitions, counts.gpus));
  }
  check.problem(
      "JC05", place,
      fmt::format("the job asks for {} {} on each of {} nodes; {} of {} nodes of partition {} have them, {} at most",
                  demand.gpus, gpu_name(demand), demand.nodes, counts.with_gpus, counts.all, partitions,
                  counts.most_gpus));
}

void tell_memory_or_cpus(Preflight& check, const std::string& partitions, const Demand& demand, const Counts& counts) {
  if (counts.with_cpus < demand.nodes) {
    return check.problem(
        "JC06", check.place_of("cpus-per-task"),
        fmt::format("the job asks for {} CPUs on each of {} nodes; the nodes of partition {} have {} at most",
                    demand.cpus, demand.nodes, partitions, counts.most_cpus));
  }
  if (counts.with_memory < demand.nodes) {
    return check.problem(
        "JC06", check.place_of("mem"),
        fmt::format("the job asks for {} MiB on each of {} nodes; the nodes of partition {} have {} at most",
                    demand.memory_mib, demand.nodes, partitions, counts.most_memory));
  }
  check.problem("JC06", check.place_of("nodes"),
                fmt::format("the job asks for {}; {} of {} nodes of partition {} could hold a share",
                            demand_text(demand), counts.fitting, counts.all, partitions));
}

}  // namespace

void check_partition(Preflight& check) {
  const std::vector<std::string> names = check.partitions();
  if (names.empty()) {
    return check.problem("JC02", job_place(check.job),
                         "the job names no partition, and the cluster has no default one");
  }
  std::vector<std::vector<Trouble>> all;
  for (const std::string& name : names) all.push_back(troubles_with(check, name));
  const bool one_is_fine = std::any_of(all.begin(), all.end(), [](const auto& troubles) { return troubles.empty(); });
  for (size_t i = 0; i < names.size(); ++i) {
    if (all[i].empty()) check.fine("partition", partition_text(check, *find_partition(check, names[i])));
    for (const Trouble& trouble : all[i]) {
      const auto severity = one_is_fine ? std::optional(Severity::kNote) : trouble.severity;
      check.problem(trouble.rule, check.place_of(trouble.option), trouble.message, {}, severity);
    }
  }
}

void check_accounts(Preflight& check) {
  const auto accounts = slurm::ask_accounts(user_name(), check.slurm);
  if (!accounts) {
    const bool none = accounts.error().code() == ErrorCode::kUnsupported;
    return none ? check.fine("accounts", "the cluster keeps none, so any may be named")
                : check.unknown("accounts", accounts.error().to_string());
  }
  const auto partitions = check.partitions();
  const Asked asked{.account = check.held("account", "SBATCH_ACCOUNT"),
                    .qos = check.held("qos", "SBATCH_QOS"),
                    .partition = partitions.empty() ? "" : partitions[0],
                    .time = slurm::parse_time_limit(check.held("time", "SBATCH_TIMELIMIT")),
                    .demand = demand_of(check.asked)};
  // Where the controller enforces none of it, a wrong name is charged to nobody, and the job runs.
  const bool enforced = contains(check.cluster->enforced, "associations") ||
                        contains(check.cluster->enforced, "limits") || contains(check.cluster->enforced, "qos");
  const auto severity = enforced ? std::nullopt : std::optional(Severity::kWarning);
  const auto usable = usable_associations(*accounts, asked);
  if (!usable.empty()) return check_qos(check, *accounts, asked, usable, severity);
  std::set<std::string> names;
  for (const slurm::Association& each : accounts->associations) names.insert(each.account);
  check.problem("JC04", check.place_of("account"),
                fmt::format("account {} is not yours in partition {}; yours are {}",
                            asked.account.empty() ? "(none named)" : asked.account, asked.partition,
                            names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))),
                {}, severity);
}

void check_nodes(Preflight& check) {
  std::string partitions;
  for (const std::string& name : check.partitions()) partitions += (partitions.empty() ? "" : ",") + name;
  const Demand demand = demand_of(check.asked);
  const Counts counts = count_nodes(check, partitions, demand);
  if (counts.all == 0) return;  // JC02 says why
  const bool asks_gpus = demand.gpus > 0 || demand.total_gpus > 0;
  const bool few_gpus = asks_gpus && (counts.with_gpus < demand.nodes || counts.gpus < demand.total_gpus);
  if (few_gpus) {
    tell_gpus(check, partitions, demand, counts);
  } else if (asks_gpus) {
    check.fine("gpus", fmt::format("{} of {} {} of partition {} are free now", counts.free_gpus, counts.gpus,
                                   gpu_name(demand), partitions));
  }
  if (counts.fitting < demand.nodes && !few_gpus) {
    tell_memory_or_cpus(check, partitions, demand, counts);
  } else if (counts.fitting >= demand.nodes) {
    check.fine("nodes", fmt::format("{}: {} of {} nodes of partition {} could hold a share, {} now",
                                    demand_text(demand), counts.fitting, counts.all, partitions, counts.free));
  }
}

}  // namespace millrace::jobs
