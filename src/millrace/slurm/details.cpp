// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/details.h"

#include <charconv>

#include "millrace/base/text/strings.h"
#include "millrace/slurm/commands.h"

namespace millrace::slurm {

namespace {

JobDetails details_of(std::map<std::string, std::string, std::less<>> fields) {
  const auto field = [&](std::string_view name) -> std::string {
    const auto found = fields.find(name);
    return found == fields.end() || found->second == "(null)" ? "" : found->second;
  };
  const std::string user = field("UserId");  // "ann(1000)"
  JobDetails job{.number = field("JobId"),
                 .array = field("ArrayJobId"),
                 .task = field("ArrayTaskId"),
                 .name = field("JobName"),
                 .user = user.substr(0, user.find('(')),
                 .state = field("JobState"),
                 .reason = field("Reason"),
                 .output = field("StdOut"),
                 .error = field("StdErr"),
                 .work_dir = field("WorkDir"),
                 .command = field("Command"),
                 .node = field("BatchHost")};
  const std::string restarts = field("Restarts");
  std::from_chars(restarts.data(), restarts.data() + restarts.size(), job.restarts);
  job.fields = std::move(fields);
  return job;
}

}  // namespace

std::string JobDetails::id() const {
  if (array.empty()) return number;
  const bool one = task.find_first_not_of("0123456789") == std::string::npos;
  return one ? array + "_" + task : array + "_[" + task + "]";
}

Result<std::vector<JobDetails>> parse_details(std::string_view text) {
  std::vector<JobDetails> jobs;
  for (const std::string_view line : split(text, '\n')) {
    if (trimmed(line).empty()) continue;
    JobDetails job = details_of(parse_record(line));
    if (job.number.empty()) {
      return fail(ErrorCode::kCorruption, "scontrol's answer has no JobId in: {}", line.substr(0, 200));
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<std::vector<JobDetails>> ask_details(const std::string& id, const AskOptions& options) {
  ASSIGN_OR_RETURN(const CommandOutput output, run_slurm({"scontrol", "-o", "show", "job", id}, options));
  if (!output.ok) {
    if (output.err.find("Invalid job id") != std::string::npos) return std::vector<JobDetails>();
    return fail(ErrorCode::kUnavailable, "scontrol: {}: {}", output.status, reason_of(output));
  }
  return parse_details(output.out);
}

}  // namespace millrace::slurm
