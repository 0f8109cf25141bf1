// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <span>

#include "millrace/base/text/strings.h"
#include "millrace/slurm/commands.h"
#include "millrace/slurm/fields.h"
#include "millrace/slurm/time_limit.h"

namespace millrace::slurm {

namespace {

std::string unless_none(std::string_view text) {
  for (const std::string_view none : {"None", "(null)", "N/A", "None assigned"}) {
    if (text == none) return {};
  }
  return std::string(text);
}

std::string first_word(std::string_view text) {
  return std::string(text.substr(0, text.find(' ')));
}

// "1,3-9:2" has 5 elements.
int64_t count_in(std::string_view list) {
  int64_t count = 0;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    std::string_view range = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    int64_t step = 1;
    if (const size_t colon = range.find(':'); colon != std::string_view::npos) {
      step = std::max<int64_t>(1, whole_number(range.substr(colon + 1)).value_or(1));
      range = range.substr(0, colon);
    }
    const size_t dash = range.find('-');
    const auto first = whole_number(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : whole_number(range.substr(dash + 1));
    count += first && last && *last >= *first ? (*last - *first) / step + 1 : 1;
  }
  return count;
}

constexpr size_t kJobFields = 15;

// What the lines of squeue and sacct have in the same places.
Result<JobState> job_of_fields(std::span<const std::string_view> fields, std::string_view line,
                               std::string_view program) {
  if (fields.size() < kJobFields) {
    return fail(ErrorCode::kCorruption, "{}'s answer has {} fields for {} in: {}", program, fields.size(), kJobFields,
                line.substr(0, 200));
  }
  return JobState{.id = std::string(fields[0]),
                  .base_id = std::string(base_id(fields[0])),
                  .name = std::string(fields[14]),
                  .user = std::string(fields[11]),
                  .partition = std::string(fields[1]),
                  .state = first_word(fields[2]),
                  .reason = unless_none(fields[3]),
                  .tasks = count_tasks(fields[0]),
                  .node_count = whole_number(fields[4]).value_or(0),
                  .cpus = whole_number(fields[5]).value_or(0),
                  .submitted = parse_local_time(fields[6]),
                  .started = parse_local_time(fields[7]),
                  .ended = parse_local_time(fields[8])};
}

Result<JobState> queue_line(std::string_view line) {
  const auto fields = fields_of(line, kJobFields);
  ASSIGN_OR_RETURN(JobState job, job_of_fields(fields, line, "squeue"));
  job.elapsed_s = parse_time_limit(fields[9]);
  job.limit_s = parse_time_limit(fields[10]);
  job.nodes = std::string(fields[12]);
  job.dependency = unless_none(fields[13]);
  return job;
}

Result<JobState> accounting_line(std::string_view line) {
  const auto fields = fields_of(line, kJobFields);
  ASSIGN_OR_RETURN(JobState job, job_of_fields(fields, line, "sacct"));
  job.elapsed_s = whole_number(fields[9]);
  if (const auto minutes = whole_number(fields[10])) job.limit_s = *minutes * 60;
  job.nodes = unless_none(fields[12]);
  job.exit = std::string(fields[13]);
  return job;
}

// "768" (a wait status) and "3:0" are the same.
std::string exit_text(std::string_view text) {
  const auto status = whole_number(text);
  return status ? fmt::format("{}:{}", *status / 256 % 256, *status % 128) : std::string(text);
}

std::string local_time(int64_t seconds) {
  const time_t time = seconds;
  struct tm parts{};
  localtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts)};
}

}  // namespace

bool is_ended(std::string_view state) {
  static constexpr std::array<std::string_view, 11> kEnded{"COMPLETED", "FAILED",        "TIMEOUT",      "CANCELLED",
                                                           "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",    "BOOT_FAIL",
                                                           "DEADLINE",  "REVOKED",       "LAUNCH_FAILED"};
  return std::find(kEnded.begin(), kEnded.end(), state) != kEnded.end();
}

std::string_view base_id(std::string_view id) {
  return id.substr(0, id.find_first_of("_+"));
}

int64_t count_tasks(std::string_view id) {
  const size_t open = id.find('[');
  if (open == std::string_view::npos) return 1;
  return count_in(id.substr(open + 1, id.find_first_of("%]", open) - open - 1));
}

Result<std::vector<JobState>> parse_queue(std::string_view text) {
  std::vector<JobState> jobs;
  RETURN_IF_ERROR(for_each_line(text, [&](std::string_view line) -> Status {
    ASSIGN_OR_RETURN(jobs.emplace_back(), queue_line(line));
    return {};
  }));
  return jobs;
}

Result<std::vector<JobState>> parse_accounting(std::string_view text) {
  std::vector<JobState> jobs;
  RETURN_IF_ERROR(for_each_line(text, [&](std::string_view line) -> Status {
    ASSIGN_OR_RETURN(jobs.emplace_back(), accounting_line(line));
    return {};
  }));
  return jobs;
}

void add_exits(std::string_view text, std::span<JobState> jobs) {
  constexpr size_t kIdWidth = 64;
  std::map<std::string_view, JobState*> by_id;
  for (JobState& job : jobs) by_id[job.id] = &job;
  const Status all_read = for_each_line(text, [&](std::string_view line) -> Status {
    const auto found = by_id.find(trimmed(line.substr(0, kIdWidth)));
    if (found == by_id.end() || line.size() <= kIdWidth) return {};
    found->second->exit = exit_text(trimmed(line.substr(kIdWidth)));
    return {};
  });
  static_cast<void>(all_read);  // no line is an error
}

Result<std::vector<JobState>> ask_queue(std::span<const std::string> ids, const AskOptions& options) {
  std::vector<std::string> words{"squeue", "-h", "-a", "-t", "all", "-o", kQueueFormat};
  if (!ids.empty()) words.insert(words.end(), {"-j", fmt::format("{}", fmt::join(ids, ","))});
  ASSIGN_OR_RETURN(const CommandOutput output, run_slurm(words, options));
  if (!output.ok) {
    if (output.err.find("Invalid job id") != std::string::npos) return std::vector<JobState>();
    return fail(ErrorCode::kUnavailable, "squeue: {}: {}", output.status, reason_of(output));
  }
  return parse_queue(output.out);
}

Status ask_exits(std::span<JobState> jobs, const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string text,
                   slurm_answer({"squeue", "-h", "-a", "-t", "all", "-O", kExitFormat}, options));
  add_exits(text, jobs);
  return {};
}

Result<std::vector<JobState>> ask_accounting(std::span<const std::string> ids, int64_t since,
                                             const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, accounting_answer({"-X", "-o", kAccountingFormat, "-S", local_time(since),
                                                              "-j", fmt::format("{}", fmt::join(ids, ","))},
                                                             options));
  return parse_accounting(text);
}

Result<std::string> ask_cluster_name(const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string config, slurm_answer({"scontrol", "show", "config"}, options));
  return config_value(config, "ClusterName");
}

std::optional<int64_t> parse_local_time(std::string_view text) {
  struct tm parts{};
  const char* end = strptime(std::string(text).c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr) return {};
  parts.tm_isdst = -1;
  return mktime(&parts);
}

}  // namespace millrace::slurm
