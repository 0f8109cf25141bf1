// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/command.h"
#include "millrace/cli/lint_flags.h"
#include "millrace/jobs/cluster.h"
#include "millrace/jobs/env_lint.h"
#include "millrace/jobs/lint.h"
#include "millrace/jobs/new.h"

namespace millrace::cli {

namespace {

struct JobLintArgs {
  LintFlags lint;
  std::string cluster_file, plan_file;
};

Status run_job_lint(const JobLintArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, jobs::all_job_rules(), context));
  if (answered) return {};
  std::vector<std::string> texts;
  for (const std::string& path : args.lint.files) {
    ASSIGN_OR_RETURN(std::string text, read_lint_input(path));
    texts.push_back(std::move(text));
  }
  std::vector<jobs::ScriptFile> files;
  for (size_t i = 0; i < texts.size(); ++i) files.push_back({args.lint.files[i], texts[i]});
  std::optional<jobs::ClusterFacts> cluster_facts;
  if (!args.cluster_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, read_lint_input(args.cluster_file));
    ASSIGN_OR_RETURN(cluster_facts, jobs::read_cluster_facts(args.cluster_file, text));
  }
  std::optional<jobs::PlanFacts> plan_facts;
  if (!args.plan_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, read_lint_input(args.plan_file));
    ASSIGN_OR_RETURN(plan_facts, jobs::read_plan_facts(args.plan_file, text));
  }
  const jobs::JobContext known{cluster_facts ? &*cluster_facts : nullptr, plan_facts ? &*plan_facts : nullptr};
  print_findings(args.lint, jobs::all_job_rules(), jobs::lint_jobs(files, known), std::ssize(files), context);
  return {};
}

struct JobNewArgs {
  std::string kind, out, time, cluster_file;
  std::optional<int64_t> gpus, cpus_per_gpu, monitor_s;
  std::string log_dir = "logs";
  bool shared = false;
  std::vector<std::string> stage, save, follow;
  jobs::JobSpec spec;
};

struct KindDefaults {
  std::string_view name;
  jobs::JobKind kind;
  std::string_view time;
  int64_t gpus;
  bool exclusive;
};
constexpr KindDefaults kJobKinds[] = {{"train", jobs::JobKind::kTrain, "24:00:00", 8, true},
                                      {"preprocess", jobs::JobKind::kPreprocess, "4:00:00", 0, false},
                                      {"validate", jobs::JobKind::kValidate, "30:00", 8, true},
                                      {"nccl", jobs::JobKind::kNccl, "1:00:00", 8, true},
                                      {"storage-test", jobs::JobKind::kStorage, "1:00:00", 0, true},
                                      {"groot", jobs::JobKind::kGroot, "24:00:00", 8, true}};

// "SRC=DST"
jobs::Copy parse_copy(const std::string& flag, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw CLI::ValidationError(flag, "'" + text + "' is not SRC=DST");
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// Defaults that depend on the kind.
void complete_job_spec(JobNewArgs& args) {
  jobs::JobSpec& spec = args.spec;
  const auto* kind = std::find_if(std::begin(kJobKinds), std::end(kJobKinds),
                                  [&](const KindDefaults& each) { return each.name == args.kind; });
  spec.kind = kind->kind;
  spec.time = args.time.empty() ? std::string(kind->time) : args.time;
  spec.gpus_per_node = args.gpus.value_or(kind->gpus);
  spec.cpus_per_gpu = args.cpus_per_gpu.value_or(spec.cpus_per_gpu);
  spec.exclusive = kind->exclusive && !args.shared;
  spec.monitor_s = args.monitor_s.value_or(spec.gpus_per_node > 0 ? spec.monitor_s : 0);
  spec.log_dir = std::filesystem::absolute(args.log_dir).lexically_normal().string();
  if (const Status fits = jobs::check_header(spec); !fits) {
    const std::string said = fits.error().message();
    const size_t flag = said.find(": ");
    throw CLI::ValidationError(said.substr(0, flag), said.substr(flag + 2));
  }
  for (const std::string& text : args.stage) spec.stage.push_back(parse_copy("--stage", text));
  for (const std::string& text : args.save) spec.save.push_back(parse_copy("--save", text));
  for (const std::string& text : args.follow) spec.follow.push_back(parse_copy("--follow", text));
}

Status write_script(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail(ErrorCode::kPermissionDenied, "cannot write {}", path);
  return {};
}

// Options that the torchrun on PATH lacks, where there is one; that of the nodes, or of a container, may be another.
void note_missing_options(const jobs::JobSpec& spec, Context& context) {
  constexpr std::chrono::seconds kPatience{60};  // it imports torch
  std::vector<std::string> wanted;
  if (!spec.numa_binding.empty()) wanted.emplace_back("--numa-binding");
  if (!spec.event_log_handler.empty()) wanted.emplace_back("--event-log-handler");
  if (spec.virtual_local_rank) wanted.emplace_back("--virtual-local-rank");
  if (wanted.empty() || !spec.image.empty()) return;
  const auto help = run_command({"torchrun", "--help"}, kPatience, context.stop);
  if (!help || !help->ok) return;
  for (const std::string& option : wanted) {
    if (help->out.find(option) != std::string::npos) continue;
    context.out.note(fmt::format("the torchrun on PATH has no {}; a newer PyTorch has it", option));
  }
}

Status run_job_new(const JobNewArgs& args, Context& context) {
  jobs::JobSpec spec = args.spec;
  std::optional<jobs::ClusterFacts> facts;
  if (!args.cluster_file.empty()) {
    ASSIGN_OR_RETURN(const std::string file, read_lint_input(args.cluster_file));
    ASSIGN_OR_RETURN(facts, jobs::read_cluster_facts(args.cluster_file, file));
    RETURN_IF_ERROR(
        jobs::fit_to_cluster(spec, *facts, {.gpus = args.gpus.has_value(), .cpus = args.cpus_per_gpu.has_value()}));
  }
  ASSIGN_OR_RETURN(const std::string text, jobs::write_job(spec));
  note_missing_options(spec, context);
  if (spec.kind == jobs::JobKind::kPreprocess && spec.tasks > jobs::kDefaultArrayTasks) {
    context.out.note(
        fmt::format("{} tasks are more than the {} that sbatch takes by default; `scontrol show config` tells the "
                    "MaxArraySize of the cluster",
                    spec.tasks, jobs::kDefaultArrayTasks));
  }
  const jobs::ScriptFile file{args.out.empty() ? args.kind : args.out, text};
  for (const Finding& finding : jobs::lint_jobs(std::span(&file, 1), {facts ? &*facts : nullptr, nullptr})) {
    if (!finding.suppressed_because) context.out.note(finding_text(finding));
  }
  const Json object{{"type", "job_script"},
                    {"kind", args.kind},
                    {"path", args.out.empty() ? Json(nullptr) : Json(args.out)},
                    {"log_dir", args.spec.log_dir},
                    {"script", text}};
  if (args.out.empty()) {
    context.out.print(object, text);
    return {};
  }
  // Slurm does not make the folder, and without it the job fails silently.
  std::error_code error;
  std::filesystem::create_directories(args.spec.log_dir, error);
  if (error) context.out.note(fmt::format("make the folder of the log before sbatch: mkdir -p {}", args.spec.log_dir));
  RETURN_IF_ERROR(write_script(args.out, text));
  context.out.print(
      object, fmt::format("{}: submit it with sbatch {}; the log goes to {}\n", args.out, args.out, args.spec.log_dir));
  return {};
}

void add_job_new_flags(CLI::App& app, JobNewArgs& args) {
  jobs::JobSpec& spec = args.spec;
  const auto number = [&app](const char* flag, int64_t& value, int64_t least, const char* description) {
    app.add_option(flag, value, description)->check(CLI::Range(least, kMaxCount))->option_text("N");
  };
  std::vector<std::string> kinds;
  for (const KindDefaults& each : kJobKinds) kinds.emplace_back(each.name);
  app.add_option("KIND", args.kind, "train, preprocess, validate, nccl, storage-test or groot")
      ->required()
      ->check(CLI::IsMember(kinds))
      ->option_text(" ");
  app.add_option("COMMAND", spec.command, "Behind --: what train runs; more flags of prepare for preprocess")
      ->option_text(" ");
  app.add_option("--out", args.out, "Write the script here and make the log's folder (default: standard output)")
      ->option_text("FILE");
  app.add_option("--name", spec.name, "Name of the job (default: the kind)")->option_text("NAME");
  app.add_option("--partition", spec.partition, "Partition (default: the cluster's)")->option_text("NAME");
  app.add_option("--account", spec.account, "Account that is charged")->option_text("NAME");
  number("--nodes", spec.nodes, 1, "Nodes (default: 1)");
  app.add_option("--gpus", args.gpus, "GPUs of each node (default: 8; preprocess, storage-test: 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{16}))
      ->option_text("N");
  app.add_option("--gpu-type", spec.gpu_type, "GPU type as Slurm names it, such as h200 (default: any)")
      ->option_text("TYPE");
  app.add_option("--cpus-per-gpu", args.cpus_per_gpu,
                 "CPUs for each GPU, or for the task where there are none (default: 12)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_option("--cluster", args.cluster_file,
                 "ParallelCluster file: it gives the missing facts about GPUs, CPUs, EFA and nodes that boot")
      ->option_text("FILE");
  app.add_option("--time", args.time, "Time limit (default: 24:00:00; less for tests and preprocess)")
      ->option_text("LIMIT");
  app.add_option("--log-dir", args.log_dir, "Folder of the logs, which every node sees (default: logs)")
      ->option_text("DIR");
  app.add_flag("--shared", args.shared, "Share the nodes with other jobs");
  app.add_option(
         "--mem", spec.mem_per_gpu,
         "With shared nodes: memory for each GPU, or of the job where there are none; 80GiB, or as Slurm writes it, "
         "80G")
      ->option_text("SIZE");
  add_choice_flag(
      app, "--launcher", {"torchrun", "srun"}, [&spec](const std::string& name) { spec.torchrun = name == "torchrun"; },
      "Processes of train: started by torchrun, or one task for each GPU by srun (default: torchrun)");
  add_choice_flag(
      app, "--numa-binding", {"node", "socket", "exclusive", "core-complex"},
      [&spec](const std::string& name) { spec.numa_binding = name; },
      "torchrun binds each process to the CPUs near its GPU (PyTorch 2.9)");
  app.add_option("--event-log-handler", spec.event_log_handler, "torchrun's handler of its events")
      ->option_text("NAME");
  app.add_flag("--virtual-local-rank", spec.virtual_local_rank,
               "torchrun shows each process its GPU alone, as device 0");
  app.add_flag("--efa", spec.efa, "The nodes have EFA");
  app.add_flag("--wait-all-nodes", spec.wait_all_nodes, "Nodes boot for the job: start when all are there");
  app.add_option("--monitor", args.monitor_s,
                 "Seconds between samples of what every node does, 0 for none (default: 60; without GPUs: 0)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
  constexpr int64_t kLongestSignal = 65535;  // of sbatch
  app.add_option("--signal", spec.signal_s,
                 "Seconds before the limit to save and requeue, 0 for neither (default: 300)")
      ->check(CLI::Range(int64_t{0}, kLongestSignal))
      ->option_text("N");
  number("--max-restarts", spec.max_restarts, 0,
         "Requeue after this many failures, unless three starts come no step further (default: 0; needs --signal)");
  app.add_option("--image", spec.image, "Container of pyxis: registry#image:tag or a .sqsh file")->option_text("IMAGE");
  app.add_option("--mount", spec.mounts, "Mount of the container, SRC:DST; may be repeated")
      ->option_text("SRC:DST")
      ->allow_extra_args(false);
  app.add_option("--stage", args.stage, "Copied to every node before the start; may be repeated")
      ->option_text("URL=DIR")
      ->allow_extra_args(false);
  app.add_option("--save", args.save,
                 "Every node's DIR: copied at the end and after a limit, brought back at the start; may be repeated")
      ->option_text("DIR=URL")
      ->allow_extra_args(false);
  app.add_option(
         "--follow", args.follow,
         "Checkpoints (checkpoint-N of the Hugging Face Trainer) in DIR: copied while it trains, the newest brought "
         "back at the start; may be repeated")
      ->option_text("DIR=URL")
      ->allow_extra_args(false);
  number("--follow-keep", spec.follow_keep, 1, "Checkpoints that stay at the URL of --follow (default: 3)");
  app.add_option("--input", spec.inputs, "preprocess: raw text; groot: the dataset")
      ->option_text("PATH")
      ->allow_extra_args(false);
  app.add_option("--tokenizer", spec.tokenizer, "preprocess: tokenizer.json")->option_text("FILE");
  app.add_option("--output", spec.output, "preprocess: where the shards go; groot: the checkpoints")
      ->option_text("URL");
  number("--tasks", spec.tasks, 1, "preprocess: tasks of the array (default: 10)");
  number("--tasks-at-once", spec.tasks_at_once, 0, "preprocess: tasks that run at one time, 0 for all (default: 0)");
  app.add_option("--folder", spec.folder, "storage-test: the shared folder")->option_text("DIR");
  number("--file-mib", spec.file_mib, 4, "storage-test: MiB that each node writes (default: 4096)");
  number("--files", spec.files, 1, "storage-test: empty files that each node makes, stats and removes (default: 1000)");
  add_choice_flag(
      app, "--groot-version", {"1.5", "1.6", "1.7"},
      [&spec](const std::string& version) { spec.groot_version = version; },
      "groot: that of your checkout of Isaac-GR00T (default: 1.7)");
  app.add_option("--base-model", spec.base_model, "groot: the model to tune (default: NVIDIA's of that version)")
      ->option_text("MODEL");
  app.add_option("--embodiment", spec.embodiment,
                 "groot: the robot, as Isaac-GR00T names it; new_embodiment for one of your own")
      ->option_text("TAG");
  app.add_option("--modality-config", spec.modality_config,
                 "groot 1.6 and 1.7: Python file that registers a new embodiment")
      ->option_text("FILE");
  app.add_option("--data-config", spec.data_config, "groot 1.5: the name of the robot's data in its DATA_CONFIG_MAP")
      ->option_text("NAME");
  number("--global-batch-size", spec.global_batch_size, 1, "groot: samples of a step over all GPUs (default: 64)");
  number("--micro-batch-size", spec.micro_batch_size, 1,
         "groot: samples that a GPU holds at once; a larger step is accumulated (default: what the plan recommends for "
         "--gpu-type)");
  number("--max-steps", spec.max_steps, 1, "groot: steps (default: 10000)");
  number("--save-steps", spec.save_steps, 1, "groot: steps between checkpoints (default: 1000)");
}

struct EnvLintArgs {
  LintFlags lint;
  jobs::EnvContext environment;
};

std::string own_environment() {
  std::string text;
  for (char** each = environ; *each != nullptr; ++each) text += std::string(*each) + "\n";
  return text;
}

Status run_env_lint(const EnvLintArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, jobs::all_env_rules(), context));
  if (answered) return {};
  std::vector<Finding> findings;
  if (args.lint.files.empty()) {
    findings = jobs::lint_environment({"environment", own_environment()}, args.environment);
    for (Finding& finding : findings) finding.line = 0;  // the environment has no lines
  }
  for (const std::string& path : args.lint.files) {
    ASSIGN_OR_RETURN(const std::string text, read_lint_input(path));
    const auto found = jobs::lint_environment({path, text}, args.environment);
    findings.insert(findings.end(), found.begin(), found.end());
  }
  print_findings(args.lint, jobs::all_env_rules(), std::move(findings),
                 std::max<int64_t>(1, std::ssize(args.lint.files)), context);
  return {};
}

}  // namespace

void add_job(Verbs& verbs) {
  CLI::App& job = verbs.add_group("job", "Write, check, submit and follow batch scripts for Slurm");
  auto spec = std::make_shared<JobNewArgs>();
  CLI::App& fresh = verbs.add(
      job, "new", "Write a batch script that passes the lint",
      {"millrace job new train --nodes 4 --gpus 8 --out train.sbatch -- train.py --resume latest",
       "millrace job new preprocess --input '/fsx/raw/*.txt' --tokenizer tokenizer.json --output s3://b/shards --tasks "
       "32",
       "millrace job new storage-test --nodes 2 --folder /fsx/bench --cluster cluster.yaml"},
      [spec](Context& context) { return run_job_new(*spec, context); }, [spec] { complete_job_spec(*spec); });
  add_job_new_flags(fresh, *spec);
  auto args = std::make_shared<JobLintArgs>();
  CLI::App& lint = verbs.add(
      job, "lint", "Check batch scripts offline, as Slurm, the shell, NCCL and EFA will read them",
      {"millrace job lint train.sbatch", "millrace job lint *.sbatch --cluster cluster.yaml --fail-on warning",
       "millrace job lint --explain SB03"},
      [args](Context& context) { return run_job_lint(*args, context); }, [args] { check_lint_flags(args->lint); });
  add_lint_flags(lint, args->lint);
  lint.add_option("--cluster", args->cluster_file,
                  "ParallelCluster file: partitions, GPUs, CPUs, EFA and mounts that the scripts must fit")
      ->option_text("FILE");
  lint.add_option("--plan", args->plan_file, "The output of `millrace plan nodes --json`: the nodes of each model")
      ->option_text("FILE");
  add_job_check(verbs, job);
  add_job_submit(verbs, job);
  add_job_runs(verbs, job);
  add_job_logs(verbs, job);
  add_job_why(verbs, job);
}

void add_env(Verbs& verbs) {
  CLI::App& env = verbs.add_group("env", "Check the environment that NCCL, EFA and torch see");
  auto args = std::make_shared<EnvLintArgs>();
  CLI::App& lint = verbs.add(
      env, "lint", "Check the variables that a script sets, the output of env, or without FILE its own environment",
      {"millrace env lint nccl_env.sh", "millrace env lint nccl_env.sh --nodes 32 --efa",
       "millrace env lint train.sbatch --json"},
      [args](Context& context) { return run_env_lint(*args, context); });
  add_lint_flags(lint, args->lint);
  lint.add_option("--nodes", args->environment.nodes, "Nodes of the job (default: from the file)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  lint.add_flag("--efa", args->environment.efa,
                "The traffic goes over EFA (default: when FI_PROVIDER or FI_EFA_ is set for it)");
}

}  // namespace millrace::cli
