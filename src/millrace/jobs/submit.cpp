// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/submit.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "millrace/base/command.h"
#include "millrace/base/hash/hash.h"
#include "millrace/base/thread/sync.h"
#include "millrace/jobs/facts.h"
#include "millrace/jobs/record.h"
#include "millrace/jobs/secrets.h"
#include "millrace/slurm/queue.h"
#include "millrace/slurm/submit.h"

namespace millrace::jobs {

namespace {

namespace fs = std::filesystem;

// Variables that change how a run behaves. Names that tell a secret never pass (names_secret).
constexpr std::array<std::string_view, 22> kRecordedNames{"CUDA_VISIBLE_DEVICES",
                                                          "OMP_NUM_THREADS",
                                                          "MKL_NUM_THREADS",
                                                          "TOKENIZERS_PARALLELISM",
                                                          "PYTHONPATH",
                                                          "PYTHONUNBUFFERED",
                                                          "VIRTUAL_ENV",
                                                          "CONDA_DEFAULT_ENV",
                                                          "CONDA_PREFIX",
                                                          "LOADEDMODULES",
                                                          "HF_HOME",
                                                          "HF_HUB_CACHE",
                                                          "HF_HUB_OFFLINE",
                                                          "HF_DATASETS_OFFLINE",
                                                          "TRANSFORMERS_OFFLINE",
                                                          "WANDB_MODE",
                                                          "WANDB_PROJECT",
                                                          "PYTORCH_CUDA_ALLOC_CONF",
                                                          "PYTORCH_ALLOC_CONF",
                                                          "CUDA_LAUNCH_BLOCKING",
                                                          "AWS_REGION",
                                                          "AWS_DEFAULT_REGION"};
constexpr std::array<std::string_view, 6> kRecordedPrefixes{"NCCL_",       "FI_",     "OFI_NCCL_",
                                                            "TORCH_NCCL_", "SBATCH_", "MILLRACE_"};

// Places of one start, which a script of `job new` sets: they would differ between any two runs.
constexpr std::array<std::string_view, 3> kOfOneStart{"MILLRACE_NODE", "MILLRACE_PROGRESS", "MILLRACE_RANKS"};

bool is_recorded(std::string_view name) {
  if (std::find(kOfOneStart.begin(), kOfOneStart.end(), name) != kOfOneStart.end()) return false;
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return !names_secret(name) &&
         (std::find(kRecordedNames.begin(), kRecordedNames.end(), name) != kRecordedNames.end() ||
          std::any_of(kRecordedPrefixes.begin(), kRecordedPrefixes.end(), begins));
}

// The environment of this process with `variables`, as the ledger records it.
std::map<std::string, std::string> recorded_environment(const std::vector<std::string>& variables, int64_t* removed) {
  std::map<std::string, std::string> kept;
  const auto add = [&](std::string_view line) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || !is_recorded(line.substr(0, equals))) return;
    kept[std::string(line.substr(0, equals))] = without_secrets(line.substr(equals + 1), removed);
  };
  for (char** each = environ; *each != nullptr; ++each) add(*each);
  for (const std::string& each : variables) add(each);
  return kept;
}

// As sbatch takes it from a #SBATCH line.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

Options options_of(const std::vector<std::string>& words) {
  // On one line, because a value may be a word of its own: "-p", "gpu".
  std::vector<std::string> lines{"#!/bin/bash", "#SBATCH"};
  for (const std::string& word : words) lines.back() += " " + quoted(word);
  return slurm::read_sbatch_lines(lines).options;
}

Result<std::string> joined_dependency(const Options& asked, const std::vector<After>& after) {
  std::string text(asked.value("dependency"));
  if (text.find('?') != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument,
                "the script's --dependency={} joins by '?' (any of them), and --after would need all; name all "
                "dependencies in one place",
                text);
  }
  for (const After& each : after) {
    if (!text.empty()) text += ",";
    text += "after" + each.condition + ":" + each.job_id;
  }
  return text;
}

Status add_dependency(SubmitRequest& request, const Options& asked) {
  if (request.after.empty()) return {};
  ASSIGN_OR_RETURN(const std::string dependency, joined_dependency(asked, request.after));
  request.options.push_back("--dependency=" + dependency);
  // Else a job whose dependency failed waits for ever.
  if (!asked.has("kill-on-invalid-dep")) request.options.emplace_back("--kill-on-invalid-dep=yes");
  return {};
}

std::string absolute_below(const fs::path& folder, std::string_view path) {
  return (fs::path(path).is_absolute() ? fs::path(path) : folder / path).lexically_normal().string();
}

std::optional<GitState> git_state(const std::string& folder, const std::stop_token& stop) {
  constexpr std::chrono::seconds kPatience{5};  // a large tree on a slow file system costs the fact, not the submission
  const auto git = [&](std::vector<std::string> words) -> std::optional<std::string> {
    words.insert(words.begin(), {"git", "-C", folder});
    const auto ran = run_command(words, kPatience, stop);
    if (!ran || !ran->ok) return {};
    return ran->out;
  };
  const auto commit = git({"rev-parse", "HEAD"});
  if (!commit) return {};
  const auto changes = git({"status", "--porcelain", "--untracked-files=no"});
  if (!changes) return {};
  return GitState{commit->substr(0, commit->find('\n')), !changes->empty()};
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string start_facts(const std::string& folder) {
  const auto variable = [](const char* name) -> nlohmann::ordered_json {
    const char* value = std::getenv(name);
    return value == nullptr ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(value);
  };
  int64_t removed = 0;
  nlohmann::ordered_json git = nullptr;
  if (const auto state = git_state(folder, {})) git = {{"commit", state->commit}, {"dirty", state->dirty}};
  const nlohmann::ordered_json facts{{"user", user_name()},
                                     {"host", host_name()},
                                     {"job_id", variable("SLURM_JOB_ID")},
                                     {"restarts", variable("SLURM_RESTART_COUNT")},
                                     {"nodes", variable("SLURM_JOB_NUM_NODES")},
                                     {"gpus_on_node", variable("SLURM_GPUS_ON_NODE")},
                                     {"millrace", MILLRACE_VERSION},
                                     {"git", git},
                                     {"environment", recorded_environment({}, &removed)}};
  return facts.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<After> parse_after(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view condition = text.substr(0, colon);
  const std::string_view id = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const bool known = condition == "ok" || condition == "notok" || condition == "any";
  const bool numeric = !id.empty() && id.find_first_not_of("0123456789_") == std::string_view::npos;
  if (!known || !numeric) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is not ok:ID, notok:ID or any:ID with the number of a job", text);
  }
  return After{std::string(condition), std::string(id)};
}

Result<std::string> read_script(const std::string& path) {
  constexpr size_t kMostBytes = 4 << 20;  // sbatch's own limit (SchedulerParameters=max_script_size) is as large
  std::ifstream file(path, std::ios::binary);
  if (!file) return tl::unexpected(errno_error(errno, "open " + path));
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return tl::unexpected(errno_error(EIO, "read " + path));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMostBytes) return fail(ErrorCode::kInvalidArgument, "{} is larger than 4 MiB", path);
  if (!text.starts_with("#!")) {
    return fail(ErrorCode::kInvalidArgument,
                "{} does not begin with #!, so sbatch refuses it; begin it with #!/bin/bash", path);
  }
  return text;
}

Options options_that_hold(const Job& job, const std::vector<std::string>& command_options) {
  Options all = job.options();
  const Options later = options_of(command_options);
  for (Option option : later.all()) {
    option.place = {0, 0};
    all.add(std::move(option));
  }
  return all;
}

std::string work_folder(const Options& asked) {
  if (!asked.has("chdir")) return fs::current_path().string();
  return absolute_below(fs::current_path(), asked.value("chdir"));
}

// Slurm's defaults: slurm-%j.out, of an array slurm-%A_%a.out; the error goes to the output.
LogFiles log_files(const Options& asked, const std::string& work_dir) {
  const std::string_view output = asked.value("output"), error = asked.value("error");
  const std::string_view standard = asked.has("array") ? "slurm-%A_%a.out" : "slurm-%j.out";
  LogFiles files{absolute_below(work_dir, output.empty() ? standard : output), {}};
  if (!error.empty()) files.error = absolute_below(work_dir, error);
  return files;
}

Result<Submission> plan_submission(const SubmitRequest& given, const slurm::AskOptions& options) {
  SubmitRequest request = given;
  ASSIGN_OR_RETURN(const std::string text, read_script(request.script));
  const Job job(request.script, text);
  RETURN_IF_ERROR(add_dependency(request, options_that_hold(job, request.options)));
  const Options asked = options_that_hold(job, request.options);

  Submission submission;
  RunRecord& record = submission.record;
  submission.script_text = without_secrets(text, &record.secrets_removed);
  submission.command = slurm::submit_command(request.options, request.script, request.arguments);
  submission.variables = request.variables;
  record.name = asked.has("job-name") ? asked.value("job-name") : base_name(request.script);
  record.user = user_name();
  record.host = host_name();
  record.submitted = now();
  record.work_dir = work_folder(asked);
  record.script = absolute_below(fs::current_path(), request.script);
  record.script_hash = to_hex(xxh3_128(text));
  record.script_bytes = std::ssize(text);
  record.arguments = without_secrets(request.arguments, &record.secrets_removed);
  record.options = without_secrets(request.options, &record.secrets_removed);
  for (const Option& option : asked.all()) {
    record.asked[option.name] = names_secret(option.name) ? std::string(kRemovedSecret) : without_secrets(option.value);
  }
  record.array = asked.value("array");
  const LogFiles logs = log_files(asked, record.work_dir);
  record.output = logs.output;
  record.error = logs.error;
  record.data = request.data;
  record.git = git_state(record.work_dir, options.stop);
  record.millrace = MILLRACE_VERSION;
  record.environment = recorded_environment(request.variables, &record.secrets_removed);
  return submission;
}

Status submit(Submission& submission, const Ledger& ledger, const slurm::AskOptions& options) {
  RunRecord& record = submission.record;
  RETURN_IF_ERROR(ledger.prepare(record.submitted));
  ASSIGN_OR_RETURN(const slurm::SubmittedJob job, slurm::submit(submission.command, options, submission.variables));
  record.job_id = job.id;
  record.cluster = job.cluster;
  if (record.cluster.empty()) record.cluster = slurm::ask_cluster_name(options).value_or("");
  return with_context(ledger.add(record, submission.script_text),
                      fmt::format("job {} is queued, but the ledger does not know it", job.id));
}

}  // namespace millrace::jobs
