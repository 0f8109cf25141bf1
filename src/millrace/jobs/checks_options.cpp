// SPDX-License-Identifier: Apache-2.0
// Checks of the #SBATCH lines.
#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text/units.h"
#include "millrace/jobs/checks.h"
#include "millrace/jobs/container_image.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::jobs {

namespace {

constexpr int64_t kHour = 3600;

std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash == 0 ? 1 : slash);
}

// The place where the script creates `folder`, or a folder below it, for which `folder` may have existed before.
const shell::Statement* made_by(const Job& job, std::string_view folder, bool& itself) {
  for (const Command& command : job.commands()) {
    if (command.statement->name() != "mkdir") continue;
    for (const shell::Word& word : command.statement->words) {
      const auto path = job.value(word);
      if (!path || path->starts_with('-')) continue;
      itself = *path == folder || *path == std::string(folder) + "/";
      if (itself || path->starts_with(std::string(folder) + "/")) return command.statement;
    }
  }
  return nullptr;
}

void check_log_folders(const Job& job, const JobContext&, FindingReport& report) {
  for (const Option& option : job.options().all()) {
    if (option.name != "output" && option.name != "error") continue;
    const std::string_view folder = folder_of(option.value);
    if (folder.empty() || folder == "/") continue;
    bool itself = false;
    if (const shell::Statement* maker = made_by(job, folder, itself); maker != nullptr) {
      report.add("SB01", option.place,
                 fmt::format("{} is made in line {} of the script, after Slurm has tried to open the log", folder,
                             maker->place.line),
                 fmt::format("Run `mkdir -p {}` before sbatch.", folder),
                 itself ? std::nullopt : std::optional(Severity::kWarning));
    } else if (contains(folder, "%")) {
      // %x and %u are known before the job is; its number is not.
      const bool by_number = contains(folder, "%j") || contains(folder, "%J") || contains(folder, "%A");
      report.add("SB01", option.place,
                 fmt::format("Slurm does not make folders, so {} must be there under its full name", folder), {},
                 by_number ? std::nullopt : std::optional(Severity::kWarning));
    } else if (folder.front() != '/') {
      report.add("SB01", option.place,
                 fmt::format("{} is looked for in the folder where sbatch is run, and nothing makes it there", folder),
                 "Name the whole path of a folder that exists.", Severity::kWarning);
    }
  }
}

void check_container(const Options& options, const JobContext& context, FindingReport& report) {
  const Option* image = options.find("container-image");
  if (image == nullptr) return;
  if (const std::string fixed = with_registry_mark(image->value); fixed != image->value) {
    report.add("SB05", image->place, fmt::format("pyxis reads {} as an image of the default registry", image->value),
               fmt::format("Write {}.", fixed));
  }
  if (context.cluster != nullptr && !context.cluster->containers && !context.cluster->hyperpod) {
    report.add("SB05", image->place,
               fmt::format("nothing in {} installs pyxis, and ParallelCluster has it off by default since 3.11.1",
                           context.cluster->source),
               {}, Severity::kWarning);
  }
}

void check_containers(const Job& job, const JobContext& context, FindingReport& report) {
  check_container(job.options(), context, report);
  for (const Launch& launch : job.launches()) check_container(launch.options, context, report);
}

void check_time(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch()) return;
  const Option* time = job.options().find("time");
  if (time == nullptr)
    return report.add("SB06", job_place(job), "no --time: the partition's limit holds, which may be none");
  if (slurm::is_unlimited(time->value))
    return report.add("SB06", time->place, "--time=UNLIMITED: a job that hangs holds its nodes until somebody looks");
  if (!slurm::parse_time_limit(time->value)) {
    report.add("SB34", time->place, fmt::format("'{}' is not a time limit", time->value),
               "Write minutes, HH:MM:SS or D-HH:MM:SS.");
  }
}

// --- signals and requeue

bool is_long_training(const Job& job) {
  const auto limit = slurm::parse_time_limit(job.options().value("time"));
  const bool trains =
      std::any_of(job.launches().begin(), job.launches().end(), [](const Launch& launch) { return launch.training; });
  return limit && *limit >= kHour && trains;
}

// The signal's name in "B:USR1@120", without SIG.
std::string signal_name(std::string_view value) {
  value = value.substr(0, value.find('@'));
  if (const size_t colon = value.rfind(':'); colon != std::string_view::npos) value.remove_prefix(colon + 1);
  if (value.starts_with("SIG")) value.remove_prefix(3);
  if (value == "10") return "USR1";
  if (value == "12") return "USR2";
  return std::string(value);
}

const shell::Statement* trap_on(const Job& job, std::string_view signal) {
  for (const Command& command : job.commands()) {
    const auto& words = command.statement->words;
    if (command.statement->name() != "trap" || words.size() < 3 || command.in_step) continue;
    for (size_t i = 2; i < words.size(); ++i) {
      if (signal_name(words[i].text()) == signal) return command.statement;
    }
  }
  return nullptr;
}

void check_signal(const Job& job, const JobContext&, FindingReport& report) {
  const Option* signal = job.options().find("signal");
  if (signal == nullptr) {
    if (is_long_training(job))
      report.add("SB07", job.options().find("time")->place, "nothing tells the training before this limit ends it");
    return;
  }
  const std::string name = signal_name(signal->value);
  const bool to_batch =
      signal->value.starts_with("B:") || signal->value.starts_with("RB:") || signal->value.starts_with("BR:");
  if (to_batch && trap_on(job, name) == nullptr) {
    report.add("SB07", signal->place,
               fmt::format("{} goes to the batch shell, which has no trap for it and is ended by it", name),
               fmt::format("Add `trap handler {}`.", name));
  }
  if (!to_batch && trap_on(job, name) != nullptr) {
    report.add("SB07", signal->place,
               fmt::format("without B: {} goes to the steps only, so the trap in this script never runs", name),
               fmt::format("Write --signal=B:{}.", signal->value));
  }
}

bool requeues(const Job& job) {
  if (job.options().has("requeue")) return true;
  return std::any_of(job.commands().begin(), job.commands().end(), [](const Command& command) {
    const auto& words = command.statement->words;
    return command.statement->name() == "scontrol" && words.size() > 1 && words[1].text() == "requeue";
  });
}

// By its own letters, or by those of the variables in it: "${ARGS[@]}".
bool says_where_it_goes_on(const Job& job, const shell::Word& word) {
  const auto says = [](std::string_view text) {
    for (const std::string_view sign :
         {"resume", "restore", "checkpoint", "ckpt", "restart", "continue", "RESTART_COUNT"}) {
      if (contains(text, sign)) return true;
    }
    return false;
  };
  if (says(word.source)) return true;
  return std::any_of(word.parts.begin(), word.parts.end(), [&](const shell::Part& part) {
    if (part.kind != shell::Part::Kind::kVariable) return false;
    return std::any_of(job.definitions().begin(), job.definitions().end(), [&](const Definition& each) {
      const shell::Assignment& assignment = *each.assignment;
      return assignment.name == part.text &&
             (says(assignment.value.source) || std::any_of(assignment.items.begin(), assignment.items.end(),
                                                           [&](const shell::Word& item) { return says(item.source); }));
    });
  });
}

void check_requeue(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_batch() || !requeues(job)) return;
  const Option* requeue = job.options().find("requeue");
  const Place place = requeue != nullptr ? requeue->place : job_place(job);
  if (job.options().value("open-mode") != "append")
    report.add("SB09", place, "the job may be requeued, and its log is then emptied", "Add --open-mode=append.");
  for (const Launch& launch : job.launches()) {
    const bool resumes = std::any_of(launch.command.begin(), launch.command.end(),
                                     [&](const shell::Word& word) { return says_where_it_goes_on(job, word); });
    const bool reads_itself = launch.command.size() <= 2;  // all is in a configuration file
    if (launch.training && !resumes && !reads_itself) {
      report.add("SB09", launch.statement->place,
                 "the job may be requeued, and nothing here says where the training goes on",
                 "Give it its checkpoint or resume option.");
    }
  }
}

// --- GPUs and nodes

void check_gpu_request(const Job& job, const JobContext& context, FindingReport& report) {
  const Options& options = job.options();
  const bool by_gres = contains(options.value("gres"), "gpu");
  for (const Option& option : options.all()) {
    const bool by_gpus = option.name == "gpus" || option.name == "gpus-per-node" || option.name == "gpus-per-task";
    if (by_gres && by_gpus)
      report.add("SB10", option.place, fmt::format("--{} beside --gres={}", option.name, options.value("gres")));
  }
  for (const slurm::Gres& gres : slurm::parse_gres(options.value("gres"))) {
    if (gres.name == "gpu" && parse_whole(gres.type)) {
      report.add("SB11", options.find("gres")->place,
                 fmt::format("'{}' has the count before the type", options.value("gres")));
    }
  }
  const Option* asked = job.gpu_option();
  if (asked == nullptr) return;
  if (asked->name != "gres" && parse_whole(job.gpu_type())) {
    report.add("SB11", asked->place, fmt::format("'{}' has the count before the type", asked->value));
  }
  constexpr int64_t kMostInAnyServer = 16;
  const ClusterFacts::Partition* partition = partition_of(job, context);
  if (partition == nullptr || !partition->known_instance) {
    if (job.gpus_per_node() > kMostInAnyServer)
      report.add("SB12", asked->place,
                 fmt::format("{} GPUs of one node, more than any server has", job.gpus_per_node()));
    return;
  }
  if (!job.gpu_type().empty() && !partition->gpu_type.empty() && job.gpu_type() != partition->gpu_type &&
      !parse_whole(job.gpu_type())) {
    report.add("SB11", asked->place,
               fmt::format("the nodes of {} have GPUs of type {}, not {}", partition->name, partition->gpu_type,
                           job.gpu_type()));
  }
  if (job.gpus_per_node() > partition->gpus) {
    report.add("SB12", asked->place,
               fmt::format("{} GPUs of one node, and a node of {} ({}) has {}", job.gpus_per_node(), partition->name,
                           partition->instance, partition->gpus));
  }
}

void check_memory(const Job& job, const JobContext& context, FindingReport& report) {
  const Options& options = job.options();
  const bool asked = options.has("mem") || options.has("mem-per-gpu") || options.has("mem-per-cpu");
  const bool counted = context.cluster != nullptr && context.cluster->memory_scheduling;
  if (asked || !job.is_batch() || !counted) return;
  if (const Option* exclusive = options.find("exclusive"); exclusive != nullptr) {
    report.add("SB15", exclusive->place, "--exclusive without --mem=0: all GPUs and CPUs, and only the default memory",
               "Add --mem=0.");
  } else {
    report.add("SB15", job_place(job),
               fmt::format("{} schedules memory, and this job asks for none, so it takes a node's whole memory",
                           context.cluster->source));
  }
}

void check_plan(const Job& job, const JobContext& context, FindingReport& report) {
  const Option* nodes = job.options().find("nodes");
  if (context.plan == nullptr || nodes == nullptr) return;
  const std::string_view name = job.options().value("job-name");
  for (const PlanFacts::Allocation& each : context.plan->allocations) {
    const bool meant =
        name == each.name ||
        (name.starts_with(each.name) && std::string_view("-_.").find(name[each.name.size()]) != std::string_view::npos);
    if (meant && each.nodes != job.nodes()) {
      report.add("SB16", nodes->place,
                 fmt::format("{} gives {} {} nodes, and this job asks for {}", context.plan->source, each.name,
                             each.nodes, nodes->value));
    }
  }
}

void check_partition(const Job& job, const JobContext& context, FindingReport& report) {
  const Option* option = job.options().find("partition");
  if (context.cluster == nullptr || context.cluster->partitions.empty()) return;
  const ClusterFacts::Partition* partition = partition_of(job, context);
  if (option != nullptr && partition == nullptr && !contains(option->value, ",")) {
    std::string names;
    for (const auto& each : context.cluster->partitions) names += (names.empty() ? "" : ", ") + each.name;
    return report.add("SB17", option->place,
                      fmt::format("{} has no partition {}; it has {}", context.cluster->source, option->value, names));
  }
  if (partition == nullptr) return;
  const Option* nodes = job.options().find("nodes");
  if (nodes != nullptr && partition->nodes > 0 && job.nodes() > partition->nodes) {
    report.add("SB16", nodes->place,
               fmt::format("{} nodes of {}, which has {}", job.nodes(), partition->name, partition->nodes),
               "Ask for fewer, or raise MaxCount.");
  }
  if (partition->dynamic && job.nodes() > 1 && job.options().value("wait-all-nodes") != "1") {
    report.add("SB22", nodes != nullptr ? nodes->place : job_place(job),
               fmt::format("the nodes of {} boot for the job, and it does not wait for all of them", partition->name));
  }
}

// --- dependencies, arrays, pins

bool waits_for_success(std::string_view dependency) {
  for (const std::string_view kind : {"afterok", "aftercorr", "afternotok"}) {
    if (contains(dependency, kind)) return true;
  }
  return false;
}

void check_dependency(const Options& options, FindingReport& report) {
  const Option* dependency = options.find("dependency");
  if (dependency == nullptr || !waits_for_success(dependency->value)) return;
  const std::string_view kills = options.value("kill-on-invalid-dep");
  if (kills != "yes")
    report.add("SB26", dependency->place,
               fmt::format("--dependency={} waits for ever when that job fails", dependency->value));
}

void check_dependencies(const Job& job, const JobContext&, FindingReport& report) {
  check_dependency(job.options(), report);
  for (const Command& command : job.commands()) {
    if (command.statement->name() == "sbatch")
      check_dependency(slurm::read_command_line(command.statement->words).options, report);
  }
}

void check_array(const Job& job, const JobContext&, FindingReport& report) {
  if (!job.is_array()) return;
  for (const Option& option : job.options().all()) {
    const bool names_log = option.name == "output" || option.name == "error";
    const bool differs =
        contains(option.value, "%a") || contains(option.value, "%j") || contains(option.value, "/dev/null");
    if (names_log && !differs)
      report.add("SB27", option.place, fmt::format("all elements of the array write to {}", option.value));
  }
  const bool millrace = contains(job.text(), "millrace prepare");  // takes its task from the environment
  if (!contains(job.text(), "SLURM_ARRAY_TASK_ID") && !millrace) {
    report.add("SB27", job.options().find("array")->place,
               "nothing in the script uses SLURM_ARRAY_TASK_ID: unless the program itself reads it, all elements do "
               "the same work",
               {}, Severity::kWarning);
  }
}

void check_pins(const Job& job, const JobContext& context, FindingReport& report) {
  if (const Option* pin = job.options().find("nodelist"); pin != nullptr)
    report.add("SB30", pin->place, fmt::format("pinned to {}", pin->value));
  if (const Option* resume = job.options().find("auto-resume"); resume != nullptr)
    report.add("SB29", resume->place, "--auto-resume is an option of srun, and sbatch refuses it");
  for (const Launch& launch : job.launches()) {
    const Option* step_resume = launch.options.find("auto-resume");
    if (step_resume != nullptr && context.cluster != nullptr && !context.cluster->hyperpod) {
      report.add("SB29", step_resume->place,
                 fmt::format("--auto-resume exists on HyperPod only, and {} is not a HyperPod cluster",
                             context.cluster->source));
    }
  }
}

// A script that this one writes.
bool in_here_document(const Job& job, int64_t line) {
  const auto& documents = job.script().here_documents;
  return std::any_of(documents.begin(), documents.end(), [&](const shell::HereDocument& each) {
    return line >= each.place.line && line < each.place.line + std::count(each.body.begin(), each.body.end(), '\n');
  });
}

void check_sbatch_lines(const Job& job, const JobContext&, FindingReport& report) {
  for (const shell::Problem& each : job.sbatch().unread) {
    if (!in_here_document(job, each.place.line)) report.add("SB33", each.place, each.message);
  }
  for (const shell::Problem& each : job.sbatch().rejected) report.add("SB34", each.place, each.message);
  for (const Option& option : job.options().all()) {
    if (option.known || option.name == "auto-resume") continue;
    if (slurm::is_step_option(option.name)) {
      report.add("SB34", option.place, fmt::format("--{} is an option of srun, and sbatch refuses it", option.name),
                 "Move it to the srun command.");
      continue;
    }
    const std::string_view nearest = slurm::nearest_sbatch_option(option.name);
    if (nearest.empty()) {
      report.add("SB34", option.place,
                 fmt::format("sbatch itself knows no option --{}; a plug-in of the site may", option.name), {},
                 Severity::kWarning);
    } else {
      report.add("SB34", option.place, fmt::format("sbatch knows no option --{}", option.name),
                 fmt::format("Write --{}, if that is meant.", nearest));
    }
  }
  constexpr std::string_view kNumbers[] = {"ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-task",
                                           "cpus-per-gpu"};
  for (const Option& option : job.options().all()) {
    const bool number = std::find(std::begin(kNumbers), std::end(kNumbers), option.name) != std::end(kNumbers);
    const bool typed_gpus = option.name == "gpus-per-task" && contains(option.value, ":");
    if (number && option.has_value && !typed_gpus && !parse_whole(option.value)) {
      report.add("SB34", option.place, fmt::format("--{} wants a number, not '{}'", option.name, option.value),
                 contains(option.value, "$")
                     ? "sbatch expands no variables in #SBATCH lines; pass the option on sbatch's command line."
                     : "");
    }
  }
}

constexpr JobCheck kOptionChecks[] = {check_log_folders, check_containers,   check_time,   check_signal,
                                      check_requeue,     check_gpu_request,  check_memory, check_plan,
                                      check_partition,   check_dependencies, check_array,  check_pins,
                                      check_sbatch_lines};

}  // namespace

std::span<const JobCheck> option_checks() {
  return kOptionChecks;
}

Place job_place(const Job& job) {
  return job.is_batch() ? job.sbatch().first : Place{1, 1};
}

const ClusterFacts::Partition* partition_of(const Job& job, const JobContext& context) {
  if (context.cluster == nullptr) return nullptr;
  const auto& partitions = context.cluster->partitions;
  const Option* option = job.options().find("partition");
  if (option == nullptr) return partitions.size() == 1 ? partitions.data() : nullptr;
  const auto found =
      std::find_if(partitions.begin(), partitions.end(), [&](const auto& each) { return each.name == option->value; });
  return found == partitions.end() ? nullptr : &*found;
}

}  // namespace millrace::jobs
