// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/commands.h"

#include <chrono>

#include "millrace/base/text/strings.h"

namespace millrace::slurm {

namespace {

constexpr size_t kMaxAnswerBytes = size_t{256} << 20;  // a line a job is about 500 bytes

// Settings of the caller would change the output of the commands.
std::vector<std::string> with_plain_output(const std::vector<std::string>& words) {
  std::vector<std::string> all{"env"};
  for (const char* name :
       {"SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_STATES", "SQUEUE_PARTITION", "SQUEUE_USERS", "SQUEUE_ACCOUNT",
        "SQUEUE_QOS", "SQUEUE_NAMES", "SQUEUE_SORT", "SACCT_FORMAT", "SLURM_TIME_FORMAT", "SCANCEL_INTERACTIVE",
        "SCANCEL_NAME", "SCANCEL_PARTITION", "SCANCEL_STATE", "SCANCEL_USER", "SCANCEL_QOS", "SCANCEL_ACCOUNT"}) {
    all.insert(all.end(), {"-u", name});
  }
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

// "error: Unable to open file" of "sbatch: error: Unable to open file"
std::string_view without_prefix(std::string_view line) {
  constexpr std::string_view kMark = "error: ";
  const size_t at = line.find(kMark);
  return at == std::string_view::npos ? line : line.substr(at + kMark.size());
}

}  // namespace

Result<CommandOutput> run_slurm(const std::vector<std::string>& words, const AskOptions& options) {
  auto ran = run_command(with_plain_output(words), options.time_limit, options.stop, kMaxAnswerBytes);
  if (!ran && ran.error().code() == ErrorCode::kTimeout) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.time_limit);
    const bool accounting = words[0].starts_with("sacct");
    return fail(ErrorCode::kTimeout, "{}: Slurm's {} did not answer within {} s; `{}` shows its state", words[0],
                accounting ? "accounting" : "controller", seconds.count(),
                accounting ? "sacctmgr ping" : "scontrol ping");
  }
  ASSIGN_OR_RETURN(CommandOutput output, with_context(std::move(ran), words[0]));
  if (output.status == "exit status 127") {  // env's word for it
    return fail(ErrorCode::kNotFound, "{} is not on PATH: is this a machine of a Slurm cluster?", words[0]);
  }
  return output;
}

Result<std::string> slurm_answer(const std::vector<std::string>& words, const AskOptions& options) {
  ASSIGN_OR_RETURN(CommandOutput output, run_slurm(words, options));
  if (!output.ok) return fail(ErrorCode::kUnavailable, "{}: {}: {}", words[0], output.status, reason_of(output));
  return std::move(output.out);
}

Result<std::string> accounting_answer(std::vector<std::string> words, const AskOptions& options) {
  words.insert(words.begin(), {"sacct", "-n", "-P"});
  ASSIGN_OR_RETURN(CommandOutput output, run_slurm(words, options));
  if (output.ok) return std::move(output.out);
  if (output.err.find("storage is disabled") != std::string::npos) {
    return fail(ErrorCode::kUnsupported, "this cluster keeps no accounting");
  }
  return fail(ErrorCode::kUnavailable, "sacct: {}: {}", output.status, reason_of(output));
}

std::string config_value(std::string_view config, std::string_view name) {
  size_t at = config.find(std::string("\n").append(name).append(" "));
  if (at == std::string_view::npos) return {};
  at = config.find("= ", at);
  if (at == std::string_view::npos) return {};
  return std::string(config.substr(at + 2, config.find('\n', at) - at - 2));
}

std::string reason_of(const CommandOutput& output) {
  std::string reason;
  std::string_view left = output.err;
  while (!left.empty()) {
    const std::string_view line = without_prefix(take_line(left));
    if (line.empty()) continue;
    if (!reason.empty()) reason += "; ";
    reason += line;
  }
  return reason;
}

}  // namespace millrace::slurm
