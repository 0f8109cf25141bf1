// SPDX-License-Identifier: Apache-2.0
// Options beside each other, and values that Slurm does not expand: SB41 to SB44. What the tables say was seen on Slurm
// 22.05 (tests/e2e/test_job_lint_slurm.py).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/jobs/checks.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::jobs {

namespace {

// --- what sbatch and srun refuse together

struct Pair {
  std::string_view one, other;
};
constexpr Pair kRefused[] = {
    {"mem", "mem-per-cpu"},
    {"mem", "mem-per-gpu"},
    {"mem-per-cpu", "mem-per-gpu"},
    {"gpus-per-task", "ntasks-per-gpu"},
    {"ntasks-per-node", "ntasks-per-gpu"},
    {"cpus-per-gpu", "cpus-per-task"},
    {"core-spec", "thread-spec"},
};
constexpr Pair kRefusedBySrun[] = {{"exact", "whole"}, {"exclusive", "overlap"}};

void check_refused(const Options& options, std::span<const Pair> pairs, std::string_view program,
                   FindingReport& report) {
  for (const Pair& pair : pairs) {
    const Option* one = options.find(pair.one);
    const Option* other = options.find(pair.other);
    if (one == nullptr || other == nullptr) continue;
    const Option* later = one->place.line > other->place.line ? one : other;
    report.add("SB43", later->place, fmt::format("{} refuses --{} beside --{}", program, pair.other, pair.one),
               "Keep one of the two.");
  }
}

// One that is nothing without another.
void check_needed(const Job& job, FindingReport& report) {
  const Options& options = job.options();
  const Option* per_socket = options.find("gpus-per-socket");
  if (per_socket != nullptr && !options.has("sockets-per-node") && !options.has("extra-node-info"))
    report.add("SB43", per_socket->place, "sbatch refuses --gpus-per-socket without --sockets-per-node",
               "Use --gpus-per-node.");
  const Option* per_task = options.find("gpus-per-task");
  const bool counted = options.has("gpus") || options.has("ntasks") || options.has("ntasks-per-node");
  if (per_task != nullptr && !counted)
    report.add("SB43", per_task->place, "sbatch refuses --gpus-per-task without --ntasks or --gpus", "Add --ntasks.");
  const Option* per_gpu = options.find("ntasks-per-gpu");
  if (per_gpu != nullptr && job.gpu_option() == nullptr && !options.has("ntasks"))
    report.add("SB43", per_gpu->place, "sbatch refuses --ntasks-per-gpu without GPUs or --ntasks", "Add --gpus.");
}

// GPUs that are counted in two ways, of which sbatch makes two numbers.
void check_gpu_numbers(const Job& job, FindingReport& report) {
  const Options& options = job.options();
  const auto gpus_of = [&](std::string_view name) -> std::optional<int64_t> {
    const Option* option = options.find(name);
    return option == nullptr ? std::nullopt : std::optional(slurm::parse_gpus(option->value).count);
  };
  const std::optional<int64_t> all = gpus_of("gpus"), per_node = gpus_of("gpus-per-node"),
                               per_task = gpus_of("gpus-per-task"), tasks = options.number("ntasks");
  const Option* gpus = options.find("gpus");
  const bool fixed_nodes = parse_whole(options.value("nodes")).has_value();
  if (all && per_node && fixed_nodes && *all != *per_node * job.nodes()) {
    report.add(
        "SB43", gpus->place,
        fmt::format("{} GPUs, and {} nodes of {} have {}", *all, job.nodes(), *per_node, *per_node * job.nodes()),
        "Keep --gpus-per-node.");
  }
  if (all && per_task && tasks && *all != *per_task * *tasks) {
    report.add("SB43", gpus->place,
               fmt::format("{} GPUs, and {} tasks of {} have {}", *all, *tasks, *per_task, *per_task * *tasks),
               "Keep --gpus-per-task.");
  }
}

void check_ranges(const Job& job, FindingReport& report) {
  const Options& options = job.options();
  const std::string_view nodes = options.value("nodes");
  const size_t dash = nodes.find('-');
  const auto least = parse_whole(nodes.substr(0, dash));
  const auto most = dash == std::string_view::npos ? least : parse_whole(nodes.substr(dash + 1));
  if (least && most && *most < *least)
    report.add("SB43", options.find("nodes")->place, fmt::format("at least {} nodes and at most {}", *least, *most),
               "Write the smaller number first.");
  const auto time = slurm::parse_time_limit(options.value("time")),
             shortest = slurm::parse_time_limit(options.value("time-min"));
  if (time && shortest && *shortest > *time)
    report.add("SB43", options.find("time-min")->place, "--time-min is longer than --time",
               "Lower it, or raise --time.");
  const auto tasks = options.number("ntasks"), per_node = options.number("ntasks-per-node");
  if (tasks && per_node && most && *most > 0 && dash == std::string_view::npos && *tasks > *per_node * *most) {
    // With one task more, Slurm spreads them as it likes; from then on no node can hold them.
    report.add("SB43", options.find("ntasks")->place,
               fmt::format("{} tasks, and {} nodes of {} hold {}", *tasks, *most, *per_node, *per_node * *most),
               "Make --ntasks the product of the two, or leave it out.");
  }
  for (const Option& name : options.all()) {
    const bool plain = name.name == "nodelist" && name.value.find_first_of("[,") == std::string::npos;
    if (plain && options.value("exclude") == name.value)
      report.add("SB43", name.place, fmt::format("{} is asked for and excluded", name.value), "Keep one of the two.");
  }
}

void check_refused_pairs(const Job& job, const JobContext&, FindingReport& report) {
  check_refused(job.options(), kRefused, "sbatch", report);
  check_needed(job, report);
  check_gpu_numbers(job, report);
  check_ranges(job, report);
  for (const Launch& launch : job.launches()) {
    if (!launch.srun) continue;
    check_refused(launch.options, kRefused, "srun", report);
    check_refused(launch.options, kRefusedBySrun, "srun", report);
    const Option* per_gpu = launch.options.find("ntasks-per-gpu");
    if (per_gpu != nullptr && job.options().has("ntasks-per-node") && !launch.options.has("ntasks-per-node"))
      report.add("SB43", per_gpu->place, "srun refuses --ntasks-per-gpu in a job with --ntasks-per-node",
                 "Keep one of the two.");
  }
}

// --- what changes another option's meaning

constexpr Pair kLaterWins[] = {{"requeue", "no-requeue"}, {"exclusive", "oversubscribe"}};

void check_later_ones(const Job& job, FindingReport& report) {
  const Options& options = job.options();
  for (const Pair& pair : kLaterWins) {
    const Option* one = options.find(pair.one);
    const Option* other = options.find(pair.other);
    if (one == nullptr || other == nullptr) continue;
    const bool one_later =
        std::pair(one->place.line, one->place.column) > std::pair(other->place.line, other->place.column);
    const Option& last = one_later ? *one : *other;
    report.add("SB44", last.place,
               fmt::format("--{} and --{}: the later one counts, which is this", pair.one, pair.other));
  }
  std::map<std::string_view, const Option*> seen;
  for (const Option& option : options.all()) {
    const auto [before, is_new] = seen.try_emplace(option.name, &option);
    if (is_new || before->second->value == option.value) continue;
    report.add("SB44", option.place,
               fmt::format("--{}={} replaces {} of line {}", option.name, option.value, before->second->value,
                           before->second->place.line));
    before->second = &option;
  }
}

void check_tasks_and_nodes(const Job& job, FindingReport& report) {
  const Options& options = job.options();
  const Option* tasks = options.find("ntasks");
  const auto count = options.number("ntasks"), per_node = options.number("ntasks-per-node"),
             nodes = parse_whole(options.value("nodes"));
  if (!count || !nodes || *nodes < 1) return;
  if (*count < *nodes) {
    report.add("SB44", tasks->place,
               fmt::format("{} task{} on {} nodes: sbatch takes {} node{}", *count, *count == 1 ? "" : "s", *nodes,
                           *count, *count == 1 ? "" : "s"),
               "Use --ntasks-per-node.");
  } else if (per_node && *count < *per_node * *nodes) {
    report.add("SB44", tasks->place,
               fmt::format("--ntasks={} counts, and --ntasks-per-node={} is only the most that a node gets", *count,
                           *per_node),
               fmt::format("Leave --ntasks out, or make it {}.", *per_node * *nodes));
  }
}

void check_changed_meanings(const Job& job, const JobContext&, FindingReport& report) {
  check_later_ones(job, report);
  check_tasks_and_nodes(job, report);
}

// --- what sbatch does not expand

bool is_path_option(std::string_view name) {
  return name == "chdir" || name == "output" || name == "error" || name == "input";
}

void check_variables(const Job& job, const JobContext&, FindingReport& report) {
  // Numbers and times that are none are refused (SB34); a comment may hold anything.
  static const std::set<std::string_view> kElsewhere = {
      "comment", "wrap", "time", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-task", "cpus-per-gpu"};
  for (const Option& option : job.options().all()) {
    if (kElsewhere.count(option.name) > 0) continue;
    const size_t dollar = option.value.find('$');
    const bool variable = dollar != std::string::npos && dollar + 1 < option.value.size() &&
                          (shell::is_name(option.value.substr(dollar + 1, 1)) || option.value[dollar + 1] == '{' ||
                           option.value[dollar + 1] == '(');
    const bool command = contains(option.value, "`");
    const bool home = is_path_option(option.name) && option.value.starts_with("~");
    if (!variable && !command && !home) continue;
    report.add("SB42", option.place,
               fmt::format("sbatch takes '{}' of --{} as it is written", option.value, option.name),
               home && !variable ? "Write the whole path." : "");
  }
}

// --- what reaches the tasks

struct Exported {
  bool all = false, none = false, path = false;
};
// Slurm takes the words in any case.
Exported read_export(std::string_view value) {
  Exported read;
  for (const std::string_view one : split(value, ',')) {
    const std::string word = upper_case(one);
    read.all = read.all || word == "ALL";
    read.none = read.none || word == "NONE" || word == "NIL";
    read.path = read.path || one == "PATH" || one.starts_with("PATH=");
  }
  return read;
}

bool touches_export_environment(const Job& job) {
  const bool set = std::any_of(job.definitions().begin(), job.definitions().end(),
                               [](const Definition& each) { return each.assignment->name == "SLURM_EXPORT_ENV"; });
  return set || std::any_of(job.commands().begin(), job.commands().end(), [](const Command& command) {
           const auto& words = command.statement->words;
           return command.statement->name() == "unset" && words.size() > 1 &&
                  std::any_of(words.begin(), words.end(),
                              [](const shell::Word& word) { return word.source == "SLURM_EXPORT_ENV"; });
         });
}

void check_exports(const Job& job, const JobContext&, FindingReport& report) {
  const Option* of_job = job.options().find("export");
  const Exported job_wide = of_job == nullptr ? Exported{.all = true} : read_export(of_job->value);
  bool reported = job_wide.all || job_wide.path || touches_export_environment(job);
  for (const Launch& launch : job.launches()) {
    if (!launch.srun || launch.command.empty()) continue;
    const Option* option = launch.options.find("export");
    if (option == nullptr) {
      if (!std::exchange(reported, true)) {
        report.add(
            "SB41", of_job->place,
            fmt::format("the srun of line {} inherits --export={}: its tasks get neither PATH nor what this script "
                        "exports",
                        launch.statement->place.line, of_job->value),
            "Add --export=ALL to srun.");
      }
      continue;
    }
    const Exported step = read_export(option->value);
    if (step.all || step.path || !option->has_value) continue;
    report.add("SB41", option->place,
               fmt::format("the tasks get {} and neither PATH nor what this script exports",
                           step.none ? "no variable" : option->value),
               step.none ? "" : fmt::format("Write --export=ALL,{}.", option->value),
               step.none ? std::optional(Severity::kWarning) : std::nullopt);
  }
}

constexpr JobCheck kPairChecks[] = {check_refused_pairs, check_changed_meanings, check_variables, check_exports};

}  // namespace

std::span<const JobCheck> pair_checks() {
  return kPairChecks;
}

}  // namespace millrace::jobs
