// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/log_files.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "millrace/base/text/ascii.h"
#include "millrace/jobs/facts.h"

namespace millrace::jobs {

namespace {

namespace fs = std::filesystem;

constexpr const char* kNoTask = "4294967294";  // Slurm's NO_VAL, which it writes

std::string glob_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string padded(const std::string& number, size_t width) {
  if (number.empty()) return "*";
  const std::string zeros(width > number.size() ? width - number.size() : 0, '0');
  return zeros + glob_escaped(number);
}

// The value of a letter as a glob; nullopt for one that Slurm leaves as it stands.
std::optional<std::string> letter_glob(char letter, size_t width, const LogNames& names) {
  const auto text = [](const std::string& value) { return value.empty() ? "*" : glob_escaped(value); };
  switch (letter) {
    case 'j':
      return padded(names.number, width);
    case 'J':
      return padded(names.number, width) + (names.step ? ".*" : "");
    case 'A':
      return padded(names.array, width);
    case 'a':
      return padded(names.task, width);
    case 'x':
      return text(names.name);
    case 'u':
      return text(names.user);
    case 'r':
      return std::string("*");  // a restart more or less; versions before it leave "%r"
    case 'N':
      return std::string("*");
    case 's':
      return std::string(names.step ? "*" : "batch");
    case 't':
    case 'n':
      return names.step ? std::string("*") : padded("0", width);
    case '%':
      return std::string("%");
    default:
      return {};
  }
}

std::string absolute_log(const std::string& work_dir, std::string_view pattern) {
  const fs::path path(pattern);
  return (path.is_absolute() ? path : fs::path(work_dir) / path).lexically_normal().string();
}

LogNames names_of(const slurm::JobDetails& job) {
  const bool single = job.array.empty();
  const bool one = !single && job.task.find_first_not_of("0123456789") == std::string::npos;
  return {.number = single || one ? job.number : "",
          .array = single ? job.number : job.array,
          .task = single ? kNoTask
                  : one  ? job.task
                         : "",
          .name = job.name,
          .user = job.user};
}

void add_pattern(std::vector<LogPattern>& patterns, std::string label, std::string glob) {
  const bool known =
      std::any_of(patterns.begin(), patterns.end(), [&](const LogPattern& each) { return each.glob == glob; });
  if (!known) patterns.push_back({std::move(label), std::move(glob)});
}

std::vector<LogPattern> patterns_of(const std::string& id, const LogNames& names, const std::string& output,
                                    const std::string& error, const std::vector<std::string>& steps) {
  std::vector<LogPattern> patterns;
  if (!output.empty()) add_pattern(patterns, id, log_glob(output, names));
  if (!error.empty()) add_pattern(patterns, id + " err", log_glob(error, names));
  LogNames step = names;
  step.step = true;
  for (const std::string& pattern : steps) add_pattern(patterns, id + " srun", log_glob(pattern, step));
  std::erase_if(patterns, [](const LogPattern& each) { return each.glob == "/dev/null"; });
  return patterns;
}

}  // namespace

std::string log_glob(std::string_view pattern, const LogNames& names) {
  std::string glob;
  if (pattern.find('\\') != std::string_view::npos) {
    std::string plain(pattern);
    std::erase(plain, '\\');
    return glob_escaped(plain);
  }
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      glob += glob_escaped(pattern.substr(i, 1));
      continue;
    }
    size_t at = i + 1, width = 0;
    while (at < pattern.size() && is_digit(pattern[at])) {
      constexpr size_t kMostDigits = 10;
      width = std::min(kMostDigits, width * 10 + static_cast<size_t>(pattern[at++] - '0'));
    }
    const auto value = at < pattern.size() ? letter_glob(pattern[at], width, names) : std::nullopt;
    if (value) {
      glob += *value;
      i = at;
    } else {
      glob += '%';
    }
  }
  return glob;
}

std::vector<std::string> step_patterns(std::string_view script_text, const std::string& work_dir) {
  const Job job("script", script_text);
  std::vector<std::string> patterns;
  for (const Launch& launch : job.launches()) {
    if (!launch.srun) continue;
    for (const char* name : {"output", "error"}) {
      const std::string_view value = launch.options.value(name);
      // "none", "all" and a task's number are words of srun; a variable's value is unknown here.
      const bool file = value.find_first_of("./%") != std::string_view::npos;
      if (file && value.find_first_of("$`") == std::string_view::npos)
        patterns.push_back(absolute_log(work_dir, value));
    }
  }
  return patterns;
}

std::vector<LogPattern> log_patterns(const slurm::JobDetails& job, const RunRecord* run,
                                     const std::vector<std::string>& steps) {
  const LogNames names = names_of(job);
  if (run != nullptr) return patterns_of(job.id(), names, run->output, run->error, steps);
  return patterns_of(job.id(), names, job.output, job.error == job.output ? "" : job.error, steps);
}

std::vector<LogPattern> log_patterns(const RunRecord& run, const std::string& task,
                                     const std::vector<std::string>& steps) {
  const bool single = run.array.empty();
  const LogNames names{.number = single ? run.job_id : "",
                       .array = run.job_id,
                       .task = single ? kNoTask : task,
                       .name = run.name,
                       .user = run.user};
  return patterns_of(task.empty() ? run.job_id : run.job_id + "_" + task, names, run.output, run.error, steps);
}

std::vector<std::string> matching_files(const std::string& glob) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(glob.c_str(), 0, nullptr, &found) == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return files;
}

std::string why_no_file(const LogPattern& pattern, const slurm::JobDetails* job) {
  if (job != nullptr && job->waits()) {
    return fmt::format("the job waits ({}), and Slurm makes the file when it starts", job->reason);
  }
  const std::string folder = fs::path(pattern.glob).parent_path().string();
  std::error_code unknown;
  if (folder.find('*') == std::string::npos && !fs::exists(folder, unknown)) {
    return fmt::format(
        "there is no folder {}, so Slurm cannot make the file and the job fails (exit 0:53); mkdir -p it "
        "before you submit",
        folder);
  }
  return "it is not to be seen from this machine: the folder may be local to the job's node, or the job ended before "
         "it "
         "wrote";
}

}  // namespace millrace::jobs
