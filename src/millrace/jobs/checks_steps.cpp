// SPDX-License-Identifier: Apache-2.0
// Checks of the commands that the job launches, and of their options.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "millrace/base/text/units.h"
#include "millrace/jobs/checks.h"

namespace millrace::jobs {

namespace {

using shell::Statement;
using shell::Word;

// The step's value, else the job's.
std::optional<int64_t> step_number(const Job& job, const Launch& launch, std::string_view name) {
  if (launch.options.has(name)) return launch.options.number(name);
  return job.options().number(name);
}

Place place_of(const Launch& launch, const Option* option) {
  return option != nullptr ? option->place : launch.statement->place;
}

// Tasks of one step on one node; nullopt where the script does not give a number.
std::optional<int64_t> step_tasks_per_node(const Job& job, const Launch& launch) {
  if (launch.options.has("ntasks-per-node")) return launch.options.number("ntasks-per-node");
  if (launch.options.has("ntasks")) {
    const auto tasks = launch.options.number("ntasks");
    const int64_t nodes = launch.options.number("nodes").value_or(job.nodes());
    if (!tasks || nodes == 0) return std::nullopt;
    return (*tasks + nodes - 1) / nodes;
  }
  return job.tasks_per_node() > 0 ? std::optional(job.tasks_per_node()) : std::nullopt;
}

// Another step of the script is right: this one is in the branch for one node.
bool has_srun_torchrun(const Job& job) {
  return std::any_of(job.launches().begin(), job.launches().end(),
                     [](const Launch& each) { return each.srun && each.kind == Launch::Kind::kTorchrun; });
}

bool names_hosts(std::span<const Word> words) {
  return std::any_of(words.begin(), words.end(),
                     [](const Word& word) { return word.source.starts_with('-') && contains(word.source, "host"); });
}

void check_numa_binding(const Job& job, const Launch& launch, FindingReport& report) {
  static constexpr std::string_view kNames[] = {"--numa_binding", "--numa-binding"};
  std::string binding;
  const Word* word = argument_after(launch.command, kNames, binding, job);
  if (word == nullptr || binding.find('$') != std::string::npos) return;  // a variable from outside tells it
  if (!is_one_of(binding, {"node", "socket", "exclusive", "core-complex"})) {
    report.add("SB48", word->place, fmt::format("torchrun knows no --numa-binding {}", binding));
  } else if (job.is_batch() && job.gpu_option() == nullptr && !job.exclusive()) {
    report.add("SB48", word->place, "--numa-binding in a job that asks for no GPUs", {}, Severity::kWarning);
  }
}

void check_torchrun(const Job& job, const Launch& launch, FindingReport& report) {
  check_numa_binding(job, launch, report);
  const int64_t tasks = step_tasks_per_node(job, launch).value_or(1);
  const Option* option = launch.options.find("ntasks-per-node");
  if (option == nullptr) option = job.options().find("ntasks-per-node");
  if (launch.srun && tasks > 1) {
    report.add("SB13", place_of(launch, option),
               fmt::format("{} tasks a node, each of which starts torchrun's whole set of processes", tasks),
               "Use --ntasks-per-node=1 with torchrun.");
  }
  if (!launch.srun && job.nodes() > 1 && !job.runs_itself() && !has_srun_torchrun(job)) {
    report.add("SB13", launch.statement->place, fmt::format("torchrun runs on the first of {} nodes only", job.nodes()),
               "Start it with srun, one task a node.");
  }
  std::string count;
  static constexpr std::string_view kNames[] = {"--nproc_per_node", "--nproc-per-node"};
  const Word* word = argument_after(launch.command, kNames, count, job);
  const auto processes = parse_whole(count);
  if (word != nullptr && processes && job.gpus_per_node() > 0 && *processes != job.gpus_per_node()) {
    report.add("SB13", word->place, fmt::format("{} processes a node for {} GPUs", *processes, job.gpus_per_node()),
               "Make both equal.", *processes < job.gpus_per_node() ? std::optional(Severity::kWarning) : std::nullopt);
  }
}

// It starts the processes of one machine; its flags or configuration file give the number of machines.
void check_accelerate(const Job& job, const Launch& launch, FindingReport& report) {
  const bool launches =
      launch.program == "accelerate" && launch.command.size() > 1 && launch.command[1].source == "launch";
  if (!launches || job.nodes() < 2 || names_hosts(launch.command) || job.runs_itself()) return;
  if (!launch.srun)
    return report.add("SB13", launch.statement->place,
                      fmt::format("accelerate runs on the first of {} nodes only", job.nodes()),
                      "Start it with srun, one task a node.");
  static constexpr std::string_view kMachines[] = {"--num_machines", "--num-machines"},
                                    kConfig[] = {"--config_file", "--config-file"};
  std::string machines, config;
  const bool said = argument_after(launch.command, kMachines, machines, job) != nullptr;
  if (argument_after(launch.command, kConfig, config, job) != nullptr && !said) return;
  if (said && parse_whole(machines) != 1) return;
  report.add(
      "SB13", launch.statement->place,
      fmt::format("accelerate launch for one machine, on {} nodes: each node trains by itself", job.nodes()),
      "Add --num_machines, --num_processes, --machine_rank and --main_process_ip, or a --config_file that has them.");
}

// One process of JAX drives all GPUs of its node.
bool is_jax(const Job& job) {
  return std::any_of(job.definitions().begin(), job.definitions().end(), [](const Definition& each) {
    return each.assignment->name.starts_with("JAX_") || each.assignment->name.starts_with("XLA_");
  });
}

void check_plain_python(const Job& job, const Launch& launch, FindingReport& report) {
  if (is_jax(job)) return;
  const int64_t gpus = job.gpus_per_node();
  const bool starts_its_own = std::any_of(launch.command.begin(), launch.command.end(), [](const Word& word) {
    return word.source.starts_with("--num-gpus") || word.source.starts_with("--num_gpus") ||
           word.source.starts_with("--devices");
  });
  if (starts_its_own) return;
  const bool own_count = launch.options.has("ntasks") || launch.options.has("nodes") || launch.options.has("overlap");
  if (!launch.srun || gpus < 2 || own_count) return;
  const Option* option = launch.options.find("ntasks-per-node");
  if (option == nullptr) option = job.options().find("ntasks-per-node");
  const int64_t tasks = step_tasks_per_node(job, launch).value_or(1);
  const bool per_task = job.options().has("gpus-per-task");
  if (tasks != gpus && !per_task) {
    // Lightning and mp.spawn may want just that.
    report.add("SB13", place_of(launch, option),
               fmt::format("{} task{} a node of plain python for {} GPUs", tasks, tasks == 1 ? "" : "s", gpus),
               "Use --ntasks-per-node=GPUs with srun python, unless the program starts its own processes.",
               Severity::kWarning);
  }
}

// A command that is the value of a variable: SRUN="srun -N2"; $SRUN, or CMD=(srun ...); "${CMD[@]}". It may start what
// it wants where the script does not tell its first word.
bool calls_by_variable(const Job& job, const Statement& statement) {
  if (statement.words.empty()) return false;
  const auto& parts = statement.words[0].parts;
  // Quotes leave an empty text.
  const auto part = std::find_if(parts.begin(), parts.end(), [](const shell::Part& each) {
    return each.kind != shell::Part::Kind::kText || !each.text.empty();
  });
  if (part == parts.end() || part->kind != shell::Part::Kind::kVariable) return false;
  const Definition* known = job.definition(part->text);
  if (known == nullptr) return true;
  const shell::Assignment& assignment = *known->assignment;
  if (assignment.is_array && assignment.items.empty()) return true;
  const auto value = job.value(assignment.is_array ? assignment.items[0] : assignment.value);
  if (!value) return true;
  return is_one_of(base_name(value->substr(0, value->find(' '))),
                   {"srun", "mpirun", "mpiexec", "torchrun", "deepspeed", "accelerate", "ssh", "pdsh", "bash", "sh",
                    "timeout", "env", "time"});
}

void check_launchers(const Job& job, const JobContext&, FindingReport& report) {
  for (const Launch& launch : job.launches()) {
    if (launch.kind == Launch::Kind::kTorchrun) check_torchrun(job, launch, report);
    if (launch.kind == Launch::Kind::kPython && launch.training) check_plain_python(job, launch, report);
    check_accelerate(job, launch, report);
  }
  const bool calls_others = !job.not_followed().empty() ||
                            std::any_of(job.commands().begin(), job.commands().end(), [&](const Command& command) {
                              const std::string name = command.statement->name();
                              return contains(name, "/") || name == "bash" || name == "sh" || name == "submitit" ||
                                     name == "pdsh" || name == "clush" || name == "ssh" || name == "salloc" ||
                                     name == "ray" || names_hosts(command.statement->words) ||
                                     calls_by_variable(job, *command.statement);
                            });
  if (job.is_batch() && job.nodes() > 1 && job.launches().empty() && !calls_others) {
    report.add("SB13", job.options().find("nodes")->place,
               fmt::format("{} nodes, and nothing starts with srun: all runs on the first one", job.nodes()),
               "Start what is for every node with srun.");
  }
}

bool sets(const Job& job, std::string_view name) {
  return std::any_of(job.definitions().begin(), job.definitions().end(),
                     [&](const Definition& each) { return each.assignment->name == name; });
}

bool trains(const Job& job) {
  return std::any_of(job.launches().begin(), job.launches().end(), [](const Launch& each) { return each.training; });
}

void check_cpus(const Job& job, const JobContext& context, FindingReport& report) {
  const bool by_environment = sets(job, "SRUN_CPUS_PER_TASK");
  const Option* asked = job.options().find("cpus-per-task");
  const bool per_gpu = job.options().has("cpus-per-gpu");
  for (const Launch& launch : job.launches()) {
    const bool step_has = by_environment || launch.options.has("cpus-per-task") || launch.options.has("cpus-per-gpu");
    if (launch.command.empty()) continue;  // srun --mpi=list
    if (launch.srun && asked != nullptr && !step_has && !launch.options.has("overlap")) {
      report.add("SB14", launch.statement->place,
                 fmt::format("this srun does not get --cpus-per-task={} on Slurm 22.05 to 23.02", asked->value),
                 "Add --cpus-per-task=\"$SLURM_CPUS_PER_TASK\".");
    }
    if (launch.srun && launch.training && asked == nullptr && !per_gpu && !step_has && !job.exclusive()) {
      report.add("SB14", launch.statement->place, "one CPU a task, data workers included: nothing asks for more",
                 "Add --cpus-per-task to the job and to srun.");
    }
  }
  const ClusterFacts::Partition* partition = partition_of(job, context);
  const auto cpus = job.options().number("cpus-per-task");
  const int64_t tasks = std::max<int64_t>(1, job.tasks_per_node());
  if (!cpus || partition == nullptr || partition->cpus == 0) return;
  if (*cpus * tasks > partition->cpus) {
    report.add("SB14", asked->place, fmt::format("{} x {} CPUs of a node that has {}", tasks, *cpus, partition->cpus),
               {}, Severity::kError);
  } else if (trains(job) && job.exclusive() && *cpus * tasks * 4 < partition->cpus * 3) {
    report.add("SB14", asked->place,
               fmt::format("{} x {} = {} of the node's {} CPUs, and the others stay idle", tasks, *cpus, *cpus * tasks,
                           partition->cpus),
               fmt::format("{} a task is the share.", partition->cpus / tasks));
  }
}

void check_dead_ranks(const Job& job, const JobContext&, FindingReport& report) {
  for (const Launch& launch : job.launches()) {
    const int64_t tasks =
        step_number(job, launch, "ntasks-per-node").value_or(job.tasks_per_node()) * std::max<int64_t>(1, job.nodes());
    const bool many = tasks > 1 || job.options().number("ntasks").value_or(0) > 1;
    const bool ends = launch.options.has("kill-on-bad-exit") || sets(job, "SLURM_KILL_BAD_EXIT");
    if (launch.srun && launch.training && launch.kind != Launch::Kind::kTorchrun && many && !ends) {
      report.add("SB21", launch.statement->place,
                 "when one rank dies the others wait for it until the collective's timeout");
    }
  }
}

void check_mpi(const Job& job, const JobContext& context, FindingReport& report) {
  if (context.cluster != nullptr || contains(job.text(), "--mpi=list")) return;
  for (const Launch& launch : job.launches()) {
    const Option* mpi = launch.options.find("mpi");
    if (mpi != nullptr && mpi->value.starts_with("pmix")) {
      report.add("SB28", mpi->place,
                 fmt::format("--mpi={} fails at once where Slurm was built without it", mpi->value));
    }
  }
}

// --- ports

bool has_fixed_port(std::string_view value) {
  const size_t colon = value.rfind(':');
  if (colon != std::string_view::npos) value.remove_prefix(colon + 1);
  return parse_whole(value).value_or(0) > 0;
}

bool draws_lots(const Word& word) {
  return std::any_of(word.parts.begin(), word.parts.end(), [](const shell::Part& part) {
    const bool arithmetic = part.kind == shell::Part::Kind::kArithmetic && contains(part.text, "RANDOM");
    return arithmetic || (part.kind == shell::Part::Kind::kVariable && part.text == "RANDOM");
  });
}

// $RANDOM itself, from 0 on; not an expression that keeps it in a range.
bool is_bare_random(const Word& word) {
  return std::any_of(word.parts.begin(), word.parts.end(), [](const shell::Part& part) {
    return part.kind == shell::Part::Kind::kVariable && part.text == "RANDOM";
  });
}

constexpr std::string_view kPortFlags[] = {"--master_port",   "--master-port",       "--rdzv_endpoint",
                                           "--rdzv-endpoint", "--main_process_port", "--main-process-port"};

void check_random_port(const Word& word, std::string_view name, bool in_step, FindingReport& report) {
  if (in_step && draws_lots(word)) {
    report.add("SB37", word.place, fmt::format("every task draws another number for {}", name),
               "Derive the port from SLURM_JOB_ID, in the batch shell.");
  } else if (is_bare_random(word)) {
    report.add("SB19", word.place,
               fmt::format("$RANDOM for {} may be below 1024, which only root may bind, or another job's", name));
  }
}

void check_random_ports(const Job& job, const JobContext&, FindingReport& report) {
  for (const Definition& each : job.definitions()) {
    if (each.assignment->name == "MASTER_PORT")
      check_random_port(each.assignment->value, "MASTER_PORT", each.in_step, report);
  }
  for (const Command& command : job.commands()) {
    std::string value;
    const Word* word = argument_after(command.statement->words, kPortFlags, value, job);
    if (word != nullptr) check_random_port(*word, "the rendezvous", command.in_step, report);
  }
}

void check_ports(const Job& job, const JobContext&, FindingReport& report) {
  if (job.exclusive() || !job.is_batch()) return;
  for (const Definition& definition : job.definitions()) {
    const auto value = definition.assignment->value.literal();
    if (definition.assignment->name == "MASTER_PORT" && value && has_fixed_port(*value)) {
      report.add("SB19", definition.assignment->place,
                 fmt::format("MASTER_PORT={} for every job that shares the node", *value));
    }
  }
  for (const Launch& launch : job.launches()) {
    std::string value;
    const Word* word = argument_after(launch.command, kPortFlags, value, job);
    if (word != nullptr && has_fixed_port(value)) {
      report.add("SB19", word->place,
                 fmt::format("the port in {} is the same for every job that shares the node", word->text()));
    }
  }
}

// --- where the nodes meet

bool is_this_host(std::string_view address) {
  if (address.starts_with("tcp://")) address.remove_prefix(6);
  const std::string_view host = address.substr(0, address.rfind(':'));
  for (const std::string_view each : {"localhost", "127.0.0.1", "0.0.0.0", "[::1]"}) {
    if (host == each || address == each) return true;
  }
  return false;
}

bool has_word(std::span<const Word> words, std::string_view wanted) {
  return std::any_of(words.begin(), words.end(), [&](const Word& word) { return word.source == wanted; });
}

// One that says that it is for one node means it: the nodes then work side by side.
void check_meeting_of(const Job& job, const Launch& launch, FindingReport& report) {
  static constexpr std::string_view kNodes[] = {"--nnodes", "--num_machines", "--num-machines"},
                                    kAddresses[] = {"--rdzv_endpoint", "--rdzv-endpoint",   "--master_addr",
                                                    "--master-addr",   "--main_process_ip", "--main-process-ip"};
  std::string nodes, address;
  const bool said = argument_after(launch.command, kNodes, nodes, job) != nullptr;
  if (said && (nodes == "1" || nodes == "1:1")) return;
  const auto severity = said ? std::nullopt : std::optional(Severity::kWarning);
  const Word* word = argument_after(launch.command, kAddresses, address, job);
  if (word != nullptr && is_this_host(address)) {
    report.add("SB37", word->place, fmt::format("on each of {} nodes {} is that node itself", job.nodes(), address), {},
               severity);
  } else if (launch.kind == Launch::Kind::kTorchrun && has_word(launch.command, "--standalone")) {
    report.add("SB37", launch.statement->place,
               fmt::format("--standalone on {} nodes: each trains by itself", job.nodes()), {}, severity);
  }
}

void check_meeting(const Job& job, const JobContext&, FindingReport& report) {
  if (job.nodes() < 2) return;
  bool spread = false;
  for (const Launch& launch : job.launches()) {
    if (!launch.srun || launch.options.number("nodes") == 1) continue;
    spread = spread || launch.training;
    check_meeting_of(job, launch, report);
  }
  for (const Definition& each : job.definitions()) {
    const auto value = job.value(each.assignment->value);
    if (spread && each.assignment->name == "MASTER_ADDR" && value && is_this_host(*value))
      report.add("SB37", each.assignment->place,
                 fmt::format("on each of {} nodes {} is that node itself", job.nodes(), *value));
  }
}

// --- storage tests

bool has_letter_flag(std::span<const Word> words, char letter) {
  return std::any_of(words.begin(), words.end(), [&](const Word& word) {
    return word.source.size() > 1 && word.source[0] == '-' && word.source[1] != '-' &&
           contains(word.source, std::string_view(&letter, 1));
  });
}

void check_storage_tests(const Job& job, const JobContext&, FindingReport& report) {
  for (const Launch& launch : job.launches()) {
    if (launch.program != "ior") continue;
    const bool writes = has_letter_flag(launch.command, 'w'), reads = has_letter_flag(launch.command, 'r');
    const bool reorders = has_letter_flag(launch.command, 'C') || has_letter_flag(launch.command, 'Z');
    if (writes == reads && !reorders)
      report.add("SB36", launch.statement->place, "ior reads back what the same node has written, from its memory");
  }
}

// --- paths

bool is_home(std::string_view path) {
  return path.starts_with("/home/") || path.starts_with("~") || path.starts_with("/root/");
}

bool is_data_flag(std::string_view text) {
  for (const std::string_view part : {"checkpoint", "ckpt", "output", "data", "log", "save", "tensorboard", "cache"}) {
    if (text.starts_with("--") && contains(text, part)) return true;
  }
  return false;
}

// "/fsx2/model1/x" -> "/fsx2"
std::string top_of(std::string_view path) {
  return std::string(path.substr(0, path.find('/', 1)));
}

bool is_system_path(std::string_view top) {
  constexpr std::string_view kSystem[] = {"/tmp",  "/var",  "/usr",  "/opt",   "/etc",     "/dev",
                                          "/proc", "/sys",  "/bin",  "/sbin",  "/lib",     "/run",
                                          "/home", "/root", "/nvme", "/local", "/scratch", "/local_scratch"};
  return std::find(std::begin(kSystem), std::end(kSystem), top) != std::end(kSystem);
}

bool is_mounted(const ClusterFacts& cluster, std::string_view path) {
  return std::any_of(cluster.mounts.begin(), cluster.mounts.end(),
                     [&](const std::string& mount) { return path == mount || path.starts_with(mount + "/"); });
}

void check_mount_of(std::string_view path, Place place, const ClusterFacts& cluster,
                    std::map<std::string, int64_t>& reported, FindingReport& report) {
  if (path.size() < 2 || path[0] != '/' || is_system_path(top_of(path)) || is_mounted(cluster, path)) return;
  if (top_of(path).find_first_of("*?[") != std::string::npos) return;  // a pattern, of --exclude for instance
  if (reported[top_of(path)]++ > 0) return;
  std::string mounts;
  for (const std::string& mount : cluster.mounts) mounts += (mounts.empty() ? "" : ", ") + mount;
  report.add("SB18", place, fmt::format("{} is on no file system that {} mounts ({})", path, cluster.source, mounts));
}

bool has_container(const Job& job) {
  return job.options().has("container-image") ||
         std::any_of(job.launches().begin(), job.launches().end(),
                     [](const Launch& launch) { return launch.options.has("container-image"); });
}

void check_mounts(const Job& job, const JobContext& context, FindingReport& report) {
  if (context.cluster == nullptr || context.cluster->mounts.empty()) return;
  std::map<std::string, int64_t> reported;
  for (const Option& option : job.options().all()) {
    const bool path =
        option.name == "output" || option.name == "error" || option.name == "chdir" || option.name == "input";
    if (path) check_mount_of(option.value, option.place, *context.cluster, reported, report);
    if (option.name != "container-mounts") continue;
    for (std::string_view rest = option.value; !rest.empty();) {
      const std::string_view one = rest.substr(0, rest.find(','));
      check_mount_of(one.substr(0, one.find(':')), option.place, *context.cluster, reported, report);
      rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    }
  }
  if (has_container(job)) return;  // the other paths are those inside
  for (const Command& command : job.commands()) {
    shell::visit_words(*command.statement, [&](const Word& word) {
      const auto path = job.value(word);
      const std::string known = path ? *path : job.known_prefix(word);
      const size_t equals = known.find("=/");
      check_mount_of(equals == std::string::npos ? known : known.substr(equals + 1), word.place, *context.cluster,
                     reported, report);
    });
  }
}

void check_homes(const Job& job, const JobContext&, FindingReport& report) {
  for (const Launch& launch : job.launches()) {
    for (size_t i = 0; i < launch.command.size(); ++i) {
      const std::string text = launch.command[i].text();
      const size_t equals = text.find('=');
      if (!is_data_flag(text)) continue;
      const Word& holder =
          equals != std::string::npos || i + 1 == launch.command.size() ? launch.command[i] : launch.command[i + 1];
      const auto known = job.value(holder);
      const std::string value = known ? *known : holder.source;
      const std::string_view path = equals != std::string::npos
                                        ? std::string_view(value).substr(std::min(value.size(), equals + 1))
                                        : std::string_view(value);
      const bool home =
          is_home(path) || path.starts_with("$HOME") || path.starts_with("\"$HOME") || path.starts_with("${HOME");
      if (home) report.add("SB18", holder.place, fmt::format("{} lies in a home folder", path));
    }
  }
}

void check_array_checkpoints(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_array()) return;
  static constexpr std::string_view kNames[] = {"--checkpoint-dir", "--checkpoint_dir", "--ckpt-dir",
                                                "--ckpt_dir",       "--save-dir",       "--save_dir"};
  for (const Launch& launch : job.launches()) {
    std::string value;
    const Word* word = argument_after(launch.command, kNames, value, job);
    if (word != nullptr && job.value(*word)) {
      report.add("SB23", word->place, fmt::format("all elements of the array write their checkpoints to {}", value),
                 "Put $SLURM_ARRAY_TASK_ID into the path.");
    }
  }
}

void check_efa_share(const Job& job, const JobContext& context, FindingReport& report) {
  const Definition* efa = nullptr;
  for (const Definition& each : job.definitions()) {
    const bool sets = each.assignment->name.starts_with("FI_EFA_") ||
                      (each.assignment->name == "FI_PROVIDER" && each.assignment->value.literal() == "efa");
    if (sets && efa == nullptr) efa = &each;
  }
  if (efa == nullptr || job.gpu_option() == nullptr) return;
  constexpr int64_t kWholeNode = 8;  // of every type with EFA whose size is not known here
  const ClusterFacts::Partition* partition = partition_of(job, context);
  const bool known = partition != nullptr && partition->known_instance;
  const int64_t whole = known ? partition->gpus : kWholeNode;
  if (known && partition->efa_interfaces == 0) {
    report.add("SB31", efa->assignment->place,
               fmt::format("{} of {} has no EFA", partition->instance, partition->name));
  } else if (job.nodes() > 1 && job.gpus_per_node() < whole && !job.exclusive()) {
    report.add("SB31", job.gpu_option()->place,
               fmt::format("{} of {} GPUs a node over EFA: the adapters are shared with the jobs on the others",
                           job.gpus_per_node(), whole));
  }
}

constexpr JobCheck kStepChecks[] = {check_launchers, check_cpus,         check_dead_ranks,        check_mpi,
                                    check_ports,     check_random_ports, check_meeting,           check_storage_tests,
                                    check_mounts,    check_homes,        check_array_checkpoints, check_efa_share};

}  // namespace

std::span<const JobCheck> step_checks() {
  return kStepChecks;
}

const Word* argument_after(std::span<const Word> words, std::span<const std::string_view> names, std::string& value,
                           const Job& job) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string text = words[i].text();
    for (const std::string_view name : names) {
      const bool joined = text.starts_with(name) && text.size() > name.size() && text[name.size()] == '=';
      if (!joined && (text != name || i + 1 == words.size())) continue;
      const Word& holder = joined ? words[i] : words[i + 1];
      const auto known = job.value(holder);
      value = known ? *known : holder.source;
      if (joined) value = value.substr(std::min(value.size(), name.size() + 1));
      return &holder;
    }
  }
  return nullptr;
}

}  // namespace millrace::jobs
