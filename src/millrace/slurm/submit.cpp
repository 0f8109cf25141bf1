// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/submit.h"

#include <algorithm>
#include <chrono>

#include "millrace/base/text/ascii.h"
#include "millrace/slurm/commands.h"
#include "millrace/slurm/queue.h"

namespace millrace::slurm {

namespace {

bool has(const CommandOutput& output, std::string_view words) {
  return output.err.find(words) != std::string::npos;
}

ErrorCode code_of(const CommandOutput& output) {
  if (has(output, "Unable to contact") || has(output, "Socket timed out") || has(output, "Connection refused")) {
    return ErrorCode::kUnavailable;
  }
  if (has(output, "Invalid job id")) return ErrorCode::kNotFound;
  if (has(output, "denied")) return ErrorCode::kPermissionDenied;
  return ErrorCode::kInvalidArgument;
}

Status run_for_ids(std::vector<std::string> words, std::span<const std::string> ids, const AskOptions& options) {
  words.insert(words.end(), ids.begin(), ids.end());
  ASSIGN_OR_RETURN(const CommandOutput output, run_slurm(words, options));
  if (!output.ok) return fail(code_of(output), "{}: {}", words[0], reason_of(output));
  return {};
}

}  // namespace

Result<SubmittedJob> parse_submitted(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const size_t end = line.find(';');
  SubmittedJob job{std::string(line.substr(0, end)), {}};
  if (end != std::string_view::npos) job.cluster = line.substr(end + 1);
  if (job.id.empty() || !std::ranges::all_of(job.id, is_digit)) {
    return fail(ErrorCode::kCorruption, "sbatch printed no job id but: {}", line.substr(0, 200));
  }
  return job;
}

std::vector<std::string> submit_command(std::span<const std::string> options, const std::string& script,
                                        std::span<const std::string> arguments) {
  std::vector<std::string> words{"sbatch", "--parsable"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(script);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Result<SubmittedJob> submit(const std::vector<std::string>& command, const AskOptions& options,
                            const std::vector<std::string>& variables) {
  // The job gets the caller's environment as it is, so this is not run_slurm().
  auto ran = run_command(command, options.time_limit, options.stop, kMaxCommandOutput, variables);
  if (!ran && ran.error().code() == ErrorCode::kTimeout) {
    return fail(ErrorCode::kTimeout, "sbatch: no answer in {} s; look with squeue whether the job is queued",
                std::chrono::duration_cast<std::chrono::seconds>(options.time_limit).count());
  }
  ASSIGN_OR_RETURN(const CommandOutput output, with_context(std::move(ran), "sbatch"));
  if (!output.ok) return fail(code_of(output), "sbatch: {}", reason_of(output));
  return parse_submitted(output.out);
}

TestedJob parse_tested(bool accepted, std::string words) {
  constexpr std::string_view kMark = " to start at ";
  TestedJob tested{.accepted = accepted, .words = std::move(words), .start = {}};
  const size_t at = tested.words.find(kMark);
  if (!accepted || at == std::string::npos) return tested;
  const std::string_view time = std::string_view(tested.words).substr(at + kMark.size());
  tested.start = parse_local_time(time.substr(0, time.find(' ')));
  return tested;
}

Result<TestedJob> test_submission(std::vector<std::string> command, const AskOptions& options) {
  command.insert(command.begin() + 1, "--test-only");
  ASSIGN_OR_RETURN(const CommandOutput output, run_slurm(command, options));
  if (!output.ok && code_of(output) == ErrorCode::kUnavailable) {
    return fail(ErrorCode::kUnavailable, "sbatch: {}", reason_of(output));
  }
  return parse_tested(output.ok, reason_of(output));
}

Status cancel(std::span<const std::string> ids, const AskOptions& options) {
  return run_for_ids({"scancel"}, ids, options);
}

Status requeue(std::span<const std::string> ids, const AskOptions& options) {
  std::string list;
  for (const std::string& id : ids) list += (list.empty() ? "" : ",") + id;
  return run_for_ids({"scontrol", "requeue"}, std::span(&list, 1), options);
}

}  // namespace millrace::slurm
