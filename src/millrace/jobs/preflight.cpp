// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/preflight.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>

#include "millrace/jobs/env_lint.h"
#include "millrace/jobs/preflight_parts.h"
#include "millrace/jobs/secrets.h"
#include "millrace/jobs/submit.h"
#include "millrace/jobs/suppressions.h"
#include "millrace/slurm/queue.h"
#include "millrace/slurm/submit.h"

namespace millrace::jobs {

namespace {

constexpr std::string_view kCheckModule = "check";

constexpr Rule kCheckRules[] = {
    {"JC01", Severity::kError, kCheckModule, "the log's folder is there, and you may write to it",
     "Slurm opens the log before the script runs. Where it cannot, the job fails with exit code 0:53 and no log.",
     "Make the folder before you submit: mkdir -p FOLDER", "Slurm 22.05, reproduced"},
    {"JC02", Severity::kError, kCheckModule, "the partition exists, takes jobs, and lets you in",
     "sbatch refuses the job, or the job waits until an administrator opens the partition.",
     "Choose another partition: sinfo -s lists them.", "slurm.conf manual, PartitionName"},
    {"JC03", Severity::kError, kCheckModule, "the partition allows that many nodes for that time",
     "The job waits for ever with the reason PartitionTimeLimit or PartitionNodeLimit, or sbatch refuses it.",
     "Lower --time or --nodes, or choose another partition.", "slurm.conf manual, PartitionName"},
    {"JC04", Severity::kError, kCheckModule, "account and QOS are yours, and their limits allow the job",
     "sbatch refuses the job, or the job waits with a reason that begins with Assoc or QOS.",
     "Use one of yours: sacctmgr show assoc user=$USER", "sacctmgr manual"},
    {"JC05", Severity::kError, kCheckModule, "the partition has the GPUs that the job asks for",
     "No node can hold the job: sbatch refuses it, or it waits for ever.",
     "Ask for GPUs that are there: millrace plan gpus --from-slurm", "sbatch manual"},
    {"JC06", Severity::kError, kCheckModule, "the partition's nodes have the memory and CPUs that the job asks for",
     "No node can hold the job: sbatch refuses it, or it waits for ever.",
     "Lower --mem, --cpus-per-task or --ntasks-per-node.", "sbatch manual"},
    {"JC07", Severity::kError, kCheckModule, "the checkpoints fit into the space, files and quota that are left",
     "The job fails at the first checkpoint that does not fit, hours after it began.",
     "Remove old data, keep fewer checkpoints, or write them elsewhere.", "Millrace"},
    {"JC08", Severity::kWarning, kCheckModule, "the file systems that the script names are mounted here",
     "A path that is missing on the nodes ends the job at once; one that is missing here only cannot be checked.",
     "Correct the path, or look on a node with --probe.", "Millrace"},
    {"JC09", Severity::kError, kCheckModule, "a node of the partition sees the paths that the job uses",
     "What the login node mounts, a compute node may not.",
     "Ask the administrators for the mount, or use another path.", "Millrace"},
    {"JC10", Severity::kError, kCheckModule, "the data are there and sound",
     "The job fails when it opens them, after it has waited for its nodes.",
     "Correct the path; prepare or copy the data again.", "Millrace"},
    {"JC11", Severity::kError, kCheckModule, "the Hugging Face Hub knows you, where the script needs it",
     "Private and gated repositories answer as if they did not exist.", "hf auth login, or set HF_TOKEN.",
     "Hugging Face Hub documentation"},
    {"JC12", Severity::kError, kCheckModule, "the container's image is there, and Slurm can start containers",
     "The step fails before its first line.", "Correct the name or the path of the image; install pyxis.",
     "NVIDIA pyxis"},
    {"JC13", Severity::kError, kCheckModule, "Slurm itself takes the job (sbatch --test-only)",
     "sbatch will refuse it with the same words.", "Change what Slurm names.", "sbatch manual"},
    {"JC14", Severity::kWarning, kCheckModule, "Slurm can be asked", "What depends on the cluster was not checked.",
     "Run it on a machine of the cluster; `scontrol ping` tells whether the controller answers.", "Millrace"},
};

std::vector<Rule> joined_rules(std::initializer_list<std::span<const Rule>> tables) {
  std::vector<Rule> all;
  for (const auto rules : tables) all.insert(all.end(), rules.begin(), rules.end());
  return all;
}

std::vector<KnownWord> known_words(const Job& job, const Options& asked, const std::vector<std::string>& arguments) {
  std::vector<KnownWord> words;
  for (const Command& command : job.commands()) {
    if (command.statement->kind != shell::Statement::Kind::kCommand) continue;
    bool begins = true;
    const bool in_container =
        asked.has("container-image") ||
        std::any_of(command.statement->words.begin(), command.statement->words.end(),
                    [](const shell::Word& word) { return contains(word.source, "--container-image"); });
    for (const shell::Word& word : command.statement->words) {
      if (const auto value = job.value(word)) words.push_back({*value, word.place, begins, in_container, &command});
      begins = false;
    }
  }
  for (const std::string& argument : arguments) words.push_back({.text = argument, .place = {}});
  return words;
}

bool exports_all(const Preflight& check) {
  const std::string_view given = check.asked.value("export");
  return given.empty() || given == "ALL" || given.starts_with("ALL,");
}

}  // namespace

std::span<const Rule> check_rules() {
  return kCheckRules;
}

std::span<const Rule> all_check_rules() {
  static const std::vector<Rule> all = joined_rules({kCheckRules, env_rules(), suppression_rules()});
  return all;
}

std::span<const Rule> rules_of_scripts() {
  static const std::vector<Rule> all = joined_rules({all_job_rules(), kCheckRules});
  return all;
}

void Preflight::problem(std::string_view id, Place place, std::string message, std::string fix,
                        std::optional<Severity> severity) {
  report.findings.push_back({find_rule(kCheckRules, id),
                             job.file(),
                             place.line,
                             place.column,
                             without_secrets(message),
                             std::move(fix),
                             severity,
                             {}});
}

void Preflight::fine(std::string subject, std::string evidence) {
  report.answers.push_back({std::move(subject), true, without_secrets(evidence)});
}

void Preflight::unknown(std::string subject, std::string why) {
  report.answers.push_back({std::move(subject), false, without_secrets(why)});
}

Place Preflight::place_of(std::string_view option) const {
  const Option* found = asked.find(option);
  return found != nullptr ? found->place : job_place(job);
}

std::string Preflight::held(std::string_view option, const char* variable) const {
  const Option* found = asked.find(option);
  const char* of_environment = std::getenv(variable);
  const bool of_command_line = found != nullptr && found->place.line == 0;
  if (!of_command_line && of_environment != nullptr && *of_environment != '\0') return of_environment;
  return found != nullptr ? found->value : "";
}

std::vector<std::string> Preflight::partitions() const {
  std::vector<std::string> names;
  std::string list = held("partition", "SBATCH_PARTITION");
  if (list.empty() && cluster != nullptr) {
    for (const slurm::Partition& each : cluster->partitions) {
      if (each.is_default) list = each.name;
    }
  }
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (end > at) names.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

std::vector<NamedValue> values_of(const std::vector<KnownWord>& words, std::span<const std::string_view> names) {
  std::vector<NamedValue> values;
  const auto is_name = [&](std::string_view text) {
    return std::find(names.begin(), names.end(), text) != names.end();
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    if (const size_t equals = text.find('='); equals != std::string::npos && is_name(text.substr(0, equals))) {
      values.push_back({text.substr(equals + 1), words[i].place, words[i].command, words[i].in_container});
    }
    if (!is_name(text)) continue;
    for (size_t next = i + 1; next < words.size() && !words[next].begins && !words[next].text.starts_with('-');
         ++next) {
      values.push_back({words[next].text, words[next].place, words[next].command, words[next].in_container});
    }
  }
  return values;
}

std::string below_work_dir(const Preflight& check, const std::string& path) {
  if (contains(path, "://") || path.starts_with('/')) return path;
  return (std::filesystem::path(check.work_dir) / path).lexically_normal().string();
}

void check_variables(Preflight& check) {
  const size_t before = check.report.findings.size();
  EnvContext context{.nodes = check.job.nodes()};
  context.all_exported = !check.job.is_batch();
  auto found = check_environment(check.job.file(), variables_of(check.job), context);
  if (exports_all(check)) {
    std::string own;
    for (char** each = environ; *each != nullptr; ++each) own += std::string(*each) + "\n";
    for (Finding& finding : lint_environment({"environment", own}, {.nodes = check.job.nodes()})) {
      finding.line = 0;  // the environment has no lines
      found.push_back(std::move(finding));
    }
  }
  for (Finding& finding : found) {
    finding.message = without_secrets(finding.message);
    check.report.findings.push_back(std::move(finding));
  }
  if (check.report.findings.size() == before) check.fine("environment", "no finding about NCCL, EFA or torch");
}

void check_start(Preflight& check) {
  const auto command = slurm::submit_command(check.request.options, check.request.script, check.request.arguments);
  const auto tested = slurm::test_submission(command, check.slurm);
  if (!tested) return check.unknown("start", tested.error().to_string());
  if (!tested->accepted) {
    return check.problem("JC13", job_place(check.job), "Slurm refuses it: " + tested->words);
  }
  constexpr int64_t kYear = 365 * 24 * 3600, kNanoseconds = 1'000'000'000;
  const int64_t now = now_ns() / kNanoseconds;
  if (!tested->start || *tested->start > now + kYear) {
    return check.fine("start", "Slurm takes it, and cannot tell when it would start");
  }
  check.fine("start", fmt::format("Slurm takes it, and would start it at {}", utc_time(*tested->start)));
}

Result<CheckReport> check_job(const CheckRequest& request, const slurm::AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, read_script(request.script));
  const Job job(request.script, text);
  const Options asked = options_that_hold(job, request.options);
  CheckReport report;
  Preflight check{.request = request,
                  .job = job,
                  .asked = asked,
                  .slurm = options,
                  .work_dir = work_folder(asked),
                  .words = known_words(job, asked, request.arguments),
                  .report = report};
  check_log_folder(check);
  const auto cluster = slurm::ask(options);
  if (cluster) {
    check.cluster = &*cluster;
    check_partition(check);
    check_accounts(check);
    check_nodes(check);
  } else if (cluster.error().code() == ErrorCode::kCancelled) {
    return tl::unexpected(cluster.error());
  } else {
    check.problem("JC14", {}, cluster.error().to_string());
  }
  for (const auto question : {check_checkpoints, check_mounts, check_data, check_login, check_image, check_variables}) {
    if (options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    question(check);
  }
  if (cluster) check_start(check);
  apply_job_suppressions(job, rules_of_scripts(), report.findings);
  sort_findings(report.findings);
  return report;
}

}  // namespace millrace::jobs
