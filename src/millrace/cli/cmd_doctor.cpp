// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "millrace/base/command.h"
#include "millrace/base/io/file_text.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"
#include "millrace/cli/html_report.h"
#include "millrace/cli/job_files.h"
#include "millrace/cli/job_states.h"
#include "millrace/cli/lint_flags.h"
#include "millrace/doctor/diagnose.h"
#include "millrace/jobs/why.h"
#include "millrace/plan/instances.h"

namespace millrace::cli {

namespace {

namespace fs = std::filesystem;

struct DoctorArgs {
  LintFlags lint;
  std::string run, job, instance, watch = "1s", html, here_of_job;
  std::vector<std::string> logs, samples, nccl, flights, folders;
  std::vector<pid_t> pids;
  bool no_stacks = false;
  doctor::WatchOptions watching;
};

Json shown_json(const PublishedProcess& shown) {
  return {{"begun_ns", shown.begun_ns}, {"values", shown.values}};
}

PublishedProcess shown_of(const Json& object) {
  PublishedProcess shown;
  shown.begun_ns = object.value("begun_ns", int64_t{0});
  const Json values = object.value("values", Json::object());
  for (const auto& [name, value] : values.items()) {
    if (value.is_number_integer()) shown.values[name] = value.get<int64_t>();
  }
  return shown;
}

// A process as the doctor of another node prints it for this one. `machine` tells nodes that are one machine.
Json process_json(const doctor::ProcessFacts& process) {
  const char* const node = std::getenv("SLURMD_NODENAME");
  return {{"type", "process"},
          {"node", node != nullptr ? std::string(node) : host_name()},
          {"machine", host_name()},
          {"pid", process.pid},
          {"parent", process.parent},
          {"rank", process.rank},
          {"command", process.command},
          {"states", process.states},
          {"wait", process.wait},
          {"cpu_s", process.cpu_s},
          {"watched_s", process.watched_s},
          {"stack", process.stack},
          {"no_stack", process.no_stack},
          {"shown_first", shown_json(process.shown_first)},
          {"shown", shown_json(process.shown)},
          {"shown_s", process.shown_s}};
}

doctor::ProcessFacts process_of(const Json& line) {
  const auto word = [&](const char* name) { return line.value(name, std::string()); };
  doctor::ProcessFacts process{.host = word("node"),
                               .pid = line.value("pid", 0),
                               .parent = line.value("parent", 0),
                               .rank = line.value("rank", -1),
                               .command = word("command"),
                               .states = word("states"),
                               .wait = word("wait"),
                               .cpu_s = line.value("cpu_s", 0.0),
                               .watched_s = line.value("watched_s", 0.0),
                               .stack = word("stack"),
                               .no_stack = word("no_stack"),
                               .shown_first = shown_of(line.value("shown_first", Json::object())),
                               .shown = shown_of(line.value("shown", Json::object())),
                               .shown_s = line.value("shown_s", 0.0)};
  process.shown.pid = process.shown_first.pid = process.pid;
  return process;
}

// For the doctor of another node, which has started this one by srun.
Status print_processes(const std::string& job, const doctor::WatchOptions& watching, Context& context) {
  ASSIGN_OR_RETURN(const auto processes,
                   doctor::watch_processes(doctor::processes_of_job(job), watching, context.stop));
  for (const doctor::ProcessFacts& process : processes) context.out.print_json(process_json(process));
  return {};
}

// Collects the facts. What cannot be had is named and the rest goes on; only what the user named must be there.
class Examination {
 public:
  Examination(const DoctorArgs& args, Context& context) : args_(args), context_(context) {}

  Result<doctor::Facts> examine() {
    constexpr double kNanoseconds = 1e9;
    facts_.now = static_cast<double>(jobs::now_ns()) / kNanoseconds;
    facts_.instance = args_.instance;
    if (!args_.run.empty()) RETURN_IF_ERROR(look_at_record());
    if (!job_.empty()) RETURN_IF_ERROR(look_at_job());
    logs_.insert(args_.logs.begin(), args_.logs.end());
    samples_.insert(args_.samples.begin(), args_.samples.end());
    RETURN_IF_ERROR(read_logs());
    RETURN_IF_ERROR(read_samples());
    RETURN_IF_ERROR(read_nccl());
    RETURN_IF_ERROR(read_flights());
    RETURN_IF_ERROR(look_at_processes());
    RETURN_IF_ERROR(look_at_mounts());
    return std::move(facts_);
  }

 private:
  void looked(std::string what) { facts_.looked.push_back(std::move(what)); }
  void left_out(std::string what) { facts_.unlooked.push_back(std::move(what)); }

  Status look_at_record() {
    ASSIGN_OR_RETURN(facts_.record, find_record(args_.run));
    looked(fmt::format("the record {} ({})", facts_.record->folder,
                       counted(static_cast<int64_t>(facts_.record->starts.size()), "start")));
    if (job_.empty()) job_ = facts_.record->fact("job_id");
    if (facts_.record->starts.back().loader.is_null()) left_out("the loader: the record has no counters of one");
    if (facts_.record->starts.back().checkpointer.is_null()) {
      left_out("checkpoints: the record has no counters of a checkpointer");
    }
    find_files(facts_.record->folder);
    return {};
  }

  // Logs and samples in a folder, and in `logs` of it or beside it.
  void find_files(const fs::path& folder) {
    for (const fs::path& place : {folder, folder / "logs", folder.parent_path() / "logs"}) {
      std::error_code error;
      for (fs::directory_iterator at(place, error), end; !error && at != end; at.increment(error)) {
        const std::string path = at->path().string(), extension = at->path().extension().string();
        const bool is_file = at->is_regular_file(error);
        if (is_file && (extension == ".log" || extension == ".out" || extension == ".err")) logs_.insert(path);
        if (is_file && (extension == ".csv" || extension == ".jsonl") && doctor::is_samples_file(path)) {
          samples_.insert(path);
        }
        if (is_file && doctor::is_flight_name(at->path().filename().string())) flights_.insert(path);
      }
    }
  }

  // What the ledger and Slurm know. Without either, the job that the user named is an error, one of a record is not.
  Status look_at_job() {
    auto job = find_job_files(job_, context_);
    if (!job && !args_.job.empty()) return tl::unexpected(job.error());
    if (!job) return left_out(fmt::format("job {}: {}", job_, job.error().message())), Status();
    job_ = job->id;
    if (job->details) {
      facts_.job_state = job->details->state;
      if (const auto nodes = job->details->fields.find("NumNodes"); nodes != job->details->fields.end())
        nodes_ = parse_whole(nodes->second).value_or(1);
      if (slurm::is_ended(job->details->state)) facts_.job_evidence = jobs::explain(*job->details, {}).evidence;
      looked(fmt::format("Slurm's job {} ({})", job_, job->details->state));
    } else {
      left_out(fmt::format("Slurm's job {}: {}", job_, job->unknown));
    }
    logs_.merge(job->logs);
    samples_.merge(job->samples);
    return {};
  }

  Status read_logs() {
    int64_t lines = 0;
    for (const std::string& path : logs_) {
      std::error_code unknown;
      auto log = fs::exists(path, unknown) ? doctor::read_log(path, context_.stop)
                                           : Result<doctor::LogFacts>(fail(ErrorCode::kNotFound, "no file {}", path));
      if (!log) return tl::unexpected(log.error());
      lines += log->lines;
      if (log->was_cut) left_out(path + ": what is behind its first 256 MiB");
      facts_.logs.push_back(*std::move(log));
    }
    if (logs_.empty()) return left_out("logs: none was found (--logs FILE)"), Status();
    looked(fmt::format("{} with {} lines", counted(static_cast<int64_t>(logs_.size()), "log"), format_count(lines)));
    return {};
  }

  Status read_samples() {
    for (const std::string& path : samples_) {
      auto samples = doctor::read_samples(path);
      if (!samples && std::find(args_.samples.begin(), args_.samples.end(), path) != args_.samples.end()) {
        return tl::unexpected(samples.error());
      }
      if (!samples) {
        left_out(samples.error().message());
        continue;
      }
      has_gpus_ =
          has_gpus_ || samples->series.lower_bound("millrace_gpu_") != samples->series.lower_bound("millrace_gpv");
      facts_.nodes.push_back(*std::move(samples));
    }
    if (facts_.nodes.empty())
      return left_out("nodes: no samples of `millrace monitor` were found (--samples FILE)"), Status();
    looked(fmt::format("samples of {}", counted(static_cast<int64_t>(facts_.nodes.size()), "node")));
    if (!has_gpus_) left_out("GPUs: the samples have none");
    return {};
  }

  Status read_nccl() {
    for (const std::string& path : args_.nccl) {
      const auto text = read_text(path);
      if (!text) return fail(ErrorCode::kNotFound, "cannot read {}", path);
      std::vector<doctor::NcclRun> runs = doctor::parse_nccl_tests(*text, path);
      if (runs.empty()) return fail(ErrorCode::kInvalidArgument, "{} holds no table of nccl-tests", path);
      for (doctor::NcclRun& run : runs) {
        if (doctor::link_limit(run, args_.instance).gb_per_s <= 0) {
          left_out(fmt::format("{}: the limit of its link is unknown{}", path,
                               run.nodes > 1 && args_.instance.empty() ? " (--instance TYPE)" : ""));
        }
        facts_.nccl.push_back(std::move(run));
      }
      looked("nccl-tests in " + path);
    }
    return {};
  }

  // One alone shows no difference between ranks.
  Status read_flights() {
    flights_.insert(args_.flights.begin(), args_.flights.end());
    std::set<int> ranks;
    int64_t world = 0;
    for (const std::string& path : flights_) {
      auto dump = doctor::read_flight_dump(path);
      const bool named = std::find(args_.flights.begin(), args_.flights.end(), path) != args_.flights.end();
      if (!dump && named) return tl::unexpected(dump.error());
      if (!dump) {
        left_out(dump.error().message());
        continue;
      }
      ranks.insert(dump->rank);
      world = std::max(world, dump->world);
      facts_.flights.push_back(*std::move(dump));
    }
    if (facts_.flights.empty()) return {};
    looked(counted(static_cast<int64_t>(facts_.flights.size()), "dump") + " of the flight recorder");
    std::string missing;
    for (int rank = 0; rank < world; ++rank) {
      if (!ranks.contains(rank)) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (!missing.empty()) left_out("the flight recorder of rank " + missing + ": no dump, it may have died first");
    return {};
  }

  Status look_at_processes() {
    std::vector<pid_t> pids = args_.pids;
    if (facts_.record && facts_.record->status().empty()) {
      for (const pid_t pid : doctor::processes_of_record(facts_.record->folder)) pids.push_back(pid);
    }
    if (!job_.empty()) {
      for (const pid_t pid : doctor::processes_of_job(job_)) pids.push_back(pid);
    }
    const bool by_srun = nodes_ > 1 && facts_.job_state == "RUNNING";
    if (pids.empty() && !by_srun) return left_out("processes: none of this run is on this node"), Status();
    ASSIGN_OR_RETURN(facts_.processes, doctor::watch_processes(pids, args_.watching, context_.stop));
    if (facts_.processes.empty() && !args_.pids.empty()) {
      return fail(ErrorCode::kNotFound, "no process {} on this node", args_.pids.front());
    }
    looked(fmt::format("{} of this node", counted(static_cast<int64_t>(facts_.processes.size()), "process")));
    const auto shown =
        std::ranges::count_if(facts_.processes, [](const auto& each) { return !each.shown.values.empty(); });
    if (shown > 0) looked(fmt::format("the loader and checkpointer of {}", counted(shown, "process")));
    if (by_srun) return look_at_other_nodes();
    const bool other_nodes = facts_.record && parse_whole(facts_.record->fact("nodes")).value_or(1) > 1;
    if (other_nodes) left_out("processes of other nodes: run it there too");
    return {};
  }

  // The same doctor beside the job's steps on each of its nodes.
  Status look_at_other_nodes() {
    std::error_code error;
    const std::string program = fs::read_symlink("/proc/self/exe", error).string(), nodes = std::to_string(nodes_);
    std::vector<std::string> words{"srun",
                                   "--jobid=" + job_,
                                   "--overlap",
                                   "--nodes=" + nodes,
                                   "--ntasks=" + nodes,
                                   "--ntasks-per-node=1",
                                   "--cpus-per-task=1",
                                   "--kill-on-bad-exit=0",
                                   "--job-name=millrace-doctor",
                                   program,
                                   "doctor",
                                   "--here-of-job",
                                   job_,
                                   "--watch",
                                   args_.watch,
                                   "--json",
                                   "--quiet"};
    if (args_.no_stacks) words.push_back("--no-stacks");
    constexpr std::chrono::seconds kStart{30};
    constexpr size_t kMostOutput = 64 << 20;
    const auto done = run_command(words, args_.watching.watch + kStart, context_.stop, kMostOutput);
    if (!done && done.error().code() == ErrorCode::kCancelled) return tl::unexpected(done.error());
    std::set<std::string> seen, machines;
    std::istringstream lines(done ? done->out : "");
    for (std::string text; std::getline(lines, text);) {
      const auto line = Json::parse(text, nullptr, false);
      if (!line.is_object() || line.value("type", "") != "process") continue;
      seen.insert(line.value("node", ""));
      const std::string machine = line.value("machine", "");
      const bool is_new =
          machine != host_name() && machines.insert(fmt::format("{} {}", machine, line.value("pid", 0))).second;
      if (is_new) facts_.processes.push_back(process_of(line));
    }
    if (!seen.empty())
      looked(fmt::format("processes of {} by srun", counted(static_cast<int64_t>(seen.size()), "node")));
    if (static_cast<int64_t>(seen.size()) < nodes_) {
      left_out(fmt::format("processes of {} of {} nodes: {}", nodes_ - static_cast<int64_t>(seen.size()), nodes_,
                           !done       ? done.error().message()
                           : !done->ok ? "srun: " + printable(done->err, 300)
                                       : "none there"));
    }
    return {};
  }

  Status look_at_mounts() {
    std::vector<std::string> folders = args_.folders;
    if (facts_.record) folders.push_back(facts_.record->folder);
    for (const doctor::LogFacts& log : facts_.logs) {
      const std::string folder = fs::path(log.path).parent_path().string();
      folders.push_back(folder.empty() ? "." : folder);
    }
    std::sort(folders.begin(), folders.end());
    folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
    for (const std::string& folder : folders) {
      auto mount = doctor::read_mount(folder);
      if (!mount) return tl::unexpected(mount.error());
      facts_.mounts.push_back(*std::move(mount));
    }
    if (folders.empty()) return left_out("file systems: no folder is known (--folder DIR)"), Status();
    looked(counted(static_cast<int64_t>(folders.size()), "folder") + " for space");
    return {};
  }

  const DoctorArgs& args_;
  Context& context_;
  doctor::Facts facts_;
  std::string job_ = args_.job;
  int64_t nodes_ = 1;  // of the job
  std::set<std::string> logs_, samples_, flights_;
  bool has_gpus_ = false;
};

Json verdict_json(const doctor::Verdict& verdict) {
  const Rule& rule = *verdict.rule;
  return {{"type", "verdict"},
          {"rule", rule.id},
          {"severity", severity_name(rule.severity)},
          {"summary", rule.summary},
          {"reason", rule.reason},
          {"evidence", verdict.evidence},
          {"advice", verdict.advice.empty() ? std::string(rule.fix) : verdict.advice},
          {"source", rule.source}};
}

std::string verdict_text(const doctor::Verdict& verdict) {
  const Rule& rule = *verdict.rule;
  std::string text = fmt::format("{}: {} [{}]\n", severity_name(rule.severity), rule.summary, rule.id);
  for (const std::string& line : verdict.evidence) text += "  - " + printable(line) + "\n";
  text +=
      fmt::format("  why: {}\n  do: {}\n", rule.reason, verdict.advice.empty() ? rule.fix : printable(verdict.advice));
  return text;
}

Status run_doctor(const DoctorArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, doctor::doctor_rules(), context));
  if (answered) return {};
  if (!args.here_of_job.empty()) return print_processes(args.here_of_job, args.watching, context);
  ASSIGN_OR_RETURN(const doctor::Facts facts, Examination(args, context).examine());
  const std::vector<doctor::Verdict> verdicts = doctor::diagnose(facts);
  HtmlReport report(args.html, "millrace doctor");
  FindingCounts counts;
  for (const doctor::Verdict& verdict : verdicts) {
    ++(verdict.rule->severity == Severity::kError ? counts.errors : counts.warnings);
    context.out.print(verdict_json(verdict), verdict_text(verdict));
    report.add(verdict_json(verdict));
  }
  std::string text = verdicts.empty() ? "nothing found\n" : "";
  for (const std::string& what : facts.looked) text += "looked at " + printable(what) + "\n";
  for (const std::string& what : facts.unlooked) text += "not looked at: " + printable(what) + "\n";
  const Json summary = {{"type", "doctor"},
                        {"errors", counts.errors},
                        {"warnings", counts.warnings},
                        {"looked_at", facts.looked},
                        {"not_looked_at", facts.unlooked}};
  context.out.print(summary, text);
  report.add(summary);
  if (facts.record) report.add_input("record", facts.record->name, facts.record->folder);
  for (const doctor::NodeSamples& node : facts.nodes) report.add_input("samples", node.host, node.file);
  if (fails(counts, args.lint.fail_on)) context.out.count_finding();
  return report.write(context);
}

void check_doctor(DoctorArgs& args) {
  constexpr double kLeastSeconds = 0.05, kMostSeconds = 600, kMilliseconds = 1000;
  const double seconds = usage_value("--watch", parse_duration(args.watch)).count();
  if (seconds < kLeastSeconds || seconds > kMostSeconds) throw CLI::ValidationError("--watch", "is 50ms to 10min");
  args.watching.watch = std::chrono::milliseconds(static_cast<int64_t>(seconds * kMilliseconds));
  args.watching.stacks = !args.no_stacks;
  const bool asks = args.lint.list_rules || !args.lint.explain.empty();
  const bool named = !args.here_of_job.empty() || !args.run.empty() || !args.job.empty() || !args.pids.empty() ||
                     !args.logs.empty() || !args.samples.empty() || !args.nccl.empty() || !args.flights.empty() ||
                     !args.folders.empty();
  if (!asks && !named)
    throw CLI::ValidationError("RUN", "name a run, --job, --pid, --logs, --samples, --nccl, --flight or --folder");
  if (!args.instance.empty() && plan::find_instance(args.instance) == nullptr) {
    throw CLI::ValidationError("--instance", args.instance + " is not in the planner's table of EC2 types");
  }
}

}  // namespace

void add_doctor(Verbs& verbs) {
  auto args = std::make_shared<DoctorArgs>();
  CLI::App& app = verbs.add(
      verbs.root(), "doctor", "Diagnose a run, with evidence: memory, data, hangs, slow or failing nodes",
      {"millrace doctor runs/a", "millrace doctor --logs train.log --samples gpu.csv",
       "millrace doctor --nccl nccl.log --instance p5.48xlarge --json"},
      [args](Context& context) { return run_doctor(*args, context); }, [args] { check_doctor(*args); });
  app.add_option("RUN", args->run, "A folder with a record, the name of a run, or the number of its job")
      ->option_text(" ");
  const auto files = [&](const char* flag, std::vector<std::string>& into, const char* description, const char* what) {
    app.add_option(flag, into, description)->option_text(what)->allow_extra_args(false);
  };
  app.add_option("--job", args->job, "Number of a job or name of a submitted run: its logs, samples and processes")
      ->option_text("ID");
  app.add_option("--pid", args->pids, "A process of this node, and all below it; may be repeated")
      ->check(CLI::Range(1, 1 << 30))
      ->option_text("PID")
      ->allow_extra_args(false);
  app.add_option("--here-of-job", args->here_of_job, "Print the processes of a job on this node, for another doctor")
      ->option_text("ID")
      ->group("");
  files("--logs", args->logs, "A log besides those that are found; may be repeated", "FILE");
  files("--samples", args->samples, "Samples of a node from `millrace monitor` or nvidia-smi; may be repeated", "FILE");
  files("--nccl", args->nccl, "Output of nccl-tests; may be repeated", "FILE");
  files("--flight", args->flights, "A rank's dump of PyTorch's flight recorder; may be repeated", "FILE");
  files("--folder", args->folders, "Check whether the file system of this folder is full; may be repeated", "DIR");
  app.add_option("--instance", args->instance, "EC2 type of the nodes, for the limit of their network")
      ->option_text("TYPE");
  app.add_option("--watch", args->watch, "Time to watch processes (default: 1s)")->option_text("TIME");
  app.add_flag("--no-stacks", args->no_stacks, "Do not read the stacks of processes with py-spy or gdb");
  add_choice_flag(
      app, "--fail-on", {"error", "warning", "never"},
      [args](const std::string& word) {
        args->lint.fail_on = word == "error" ? FailOn::kError : word == "warning" ? FailOn::kWarning : FailOn::kNever;
      },
      "Lowest severity that ends with exit status 3 (default: error)");
  add_html_flag(app, args->html);
  app.add_flag("--rules", args->lint.list_rules, "Print all rules as Markdown");
  app.add_option("--explain", args->lint.explain, "Print one rule with its reason, advice and source")
      ->option_text("RULE");
}

}  // namespace millrace::cli
