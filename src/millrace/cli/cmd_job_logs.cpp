// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "millrace/base/thread/sync.h"
#include "millrace/cli/job_states.h"
#include "millrace/cli/lint_flags.h"
#include "millrace/jobs/log_files.h"
#include "millrace/jobs/log_tail.h"

namespace millrace::cli {

namespace {

struct JobLogsArgs {
  std::string id;
  bool follow = false;
};

// The files of a job, as they appear and grow.
class JobLogs {
 public:
  JobLogs(std::string id, const jobs::Ledger& ledger, const jobs::LedgerRun* run, Context& context)
      : id_(std::move(id)), ledger_(ledger), run_(run), context_(context) {}

  // Asks Slurm for the job's elements and where they write. Errors: not_found (neither Slurm nor the ledger knows it),
  // those of asking.
  Status refresh() {
    ASSIGN_OR_RETURN(details_, slurm::ask_details(id_, slurm_options(context_)));
    if (details_.empty() && run_ == nullptr) {
      return fail(ErrorCode::kNotFound, "no job {}: neither Slurm nor the ledger {} knows it", id_, ledger_.folder());
    }
    read_steps();
    patterns_.clear();
    for (const slurm::JobDetails& job : details_) add(jobs::log_patterns(job, record(), *steps_), &job);
    if (details_.empty()) add(jobs::log_patterns(*record(), task(), *steps_), nullptr);
    return {};
  }

  bool has_ended() const {
    return std::all_of(details_.begin(), details_.end(),
                       [](const slurm::JobDetails& job) { return slurm::is_ended(job.state); });
  }

  // Prints what is new in all files.
  Status print_news(bool to_the_end) {
    find_files();
    for (auto& [path, file] : files_) RETURN_IF_ERROR(print_file(file, to_the_end));
    return {};
  }

  bool any_file() const { return !files_.empty(); }

  // "GLOB: why" of each stream without a file that was not said yet.
  std::vector<std::string> missing() {
    std::vector<std::string> lines;
    for (const Stream& stream : patterns_) {
      if (!jobs::matching_files(stream.pattern.glob).empty()) continue;
      std::string line =
          fmt::format("no file {} yet: {}", stream.pattern.glob, jobs::why_no_file(stream.pattern, stream.job));
      if (told_.insert(line).second) lines.push_back(std::move(line));
    }
    return lines;
  }

  std::string end_text() const {
    std::map<std::string, int64_t> ends;
    for (const slurm::JobDetails& job : details_) ++ends[job.state];
    std::string text;
    for (const auto& [state, count] : ends) {
      text += fmt::format("{}{}{}", text.empty() ? "" : ", ", details_.size() > 1 ? std::to_string(count) + " " : "",
                          state);
    }
    return fmt::format("job {} ended: {}", id_, text.empty() ? "Slurm has forgotten how" : text);
  }

 private:
  struct Stream {
    jobs::LogPattern pattern;
    const slurm::JobDetails* job;
  };
  struct File {
    jobs::LogTail tail;
    std::string label;
  };

  const jobs::RunRecord* record() const { return run_ == nullptr ? nullptr : &run_->record; }

  // "3" of "12_3"
  std::string task() const {
    const size_t mark = id_.find('_');
    return mark == std::string::npos ? "" : id_.substr(mark + 1);
  }

  void add(std::vector<jobs::LogPattern> patterns, const slurm::JobDetails* job) {
    for (jobs::LogPattern& pattern : patterns) patterns_.push_back({std::move(pattern), job});
  }

  // The steps' files are named in the script, which the ledger has as it was submitted.
  void read_steps() {
    if (steps_) return;
    Result<std::string> text = fail(ErrorCode::kNotFound, "no script");
    if (run_ != nullptr) {
      text = ledger_.script_text(run_->record);
    } else if (!details_.empty()) {
      text = read_lint_input(details_[0].command);
    }
    const std::string folder = run_ != nullptr ? run_->record.work_dir : details_[0].work_dir;
    steps_ = text ? jobs::step_patterns(*text, folder) : std::vector<std::string>();
  }

  void find_files() {
    for (const Stream& stream : patterns_) {
      // Elements that wait have no files; the pattern of all would find those of the elements that run.
      const bool several_wait =
          stream.job != nullptr && stream.job->task.find_first_not_of("0123456789") != std::string::npos;
      if (several_wait) continue;
      const std::vector<std::string> paths = jobs::matching_files(stream.pattern.glob);
      const bool several = stream.pattern.glob.find('*') != std::string::npos;
      for (const std::string& path : paths) {
        const std::string name = std::filesystem::path(path).filename().string();
        const std::string label = several ? stream.pattern.label + " " + name : stream.pattern.label;
        files_.try_emplace(path, File{jobs::LogTail(path), label});
      }
    }
  }

  Status print_file(File& file, bool to_the_end) {
    for (bool more = true; more && !context_.stop.stop_requested();) {
      ASSIGN_OR_RETURN(const jobs::LogTail::News news, file.tail.read(to_the_end));
      if (news.began_again) context_.out.note(file.tail.path() + " begins again: the job was requeued");
      print_lines(file, news.text);
      more = news.more;
    }
    return {};
  }

  void print_lines(const File& file, const std::string& text) {
    if (text.empty()) return;
    if (context_.out.json()) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        context_.out.print_json({{"type", "log_line"},
                                 {"stream", file.label},
                                 {"file", file.tail.path()},
                                 {"line", printable(text.substr(at, end - at), end - at + 1)}});
        at = end + 1;
      }
    } else {
      context_.out.print_text(patterns_.size() > 1 || files_.size() > 1 ? jobs::with_label(text, file.label) : text);
    }
  }

  const std::string id_;
  const jobs::Ledger& ledger_;
  const jobs::LedgerRun* run_;
  Context& context_;
  std::vector<slurm::JobDetails> details_;
  std::optional<std::vector<std::string>> steps_;
  std::vector<Stream> patterns_;
  std::map<std::string, File> files_;
  std::set<std::string> told_;
};

Status print_once(JobLogs& logs, Context& context) {
  RETURN_IF_ERROR(logs.print_news(true));
  const std::vector<std::string> missing = logs.missing();
  for (const std::string& line : missing) context.out.note(line);
  if (!logs.any_file()) {
    return fail(ErrorCode::kNotFound, "{}", missing.empty() ? "the job writes no log" : "there is no log file yet");
  }
  return {};
}

Status follow(JobLogs& logs, Context& context) {
  constexpr std::chrono::milliseconds kLook{300}, kAskFirst{1000}, kAskLongest{10'000};
  auto pause = kAskFirst;
  auto ask_at = Clock::now() + pause;
  bool ended = logs.has_ended();
  std::string trouble;
  while (!ended) {
    RETURN_IF_ERROR(logs.print_news(false));
    for (const std::string& line : logs.missing()) context.out.note(line);
    RETURN_IF_ERROR(context.out.flush());
    if (!sleep_until(Clock::now() + kLook, context.stop)) {
      return fail(ErrorCode::kCancelled, "stopped; the job goes on");
    }
    if (Clock::now() < ask_at) continue;
    if (const Status asked = logs.refresh(); asked) {
      ended = logs.has_ended();
    } else if (const std::string text = asked.error().to_string(); text != trouble) {
      context.out.note(text + "; following goes on");
      trouble = text;
    }
    pause = std::min(kAskLongest, pause * 3 / 2);
    ask_at = Clock::now() + pause;
  }
  RETURN_IF_ERROR(print_once(logs, context));
  context.out.note(logs.end_text());
  return {};
}

Status run_job_logs(const JobLogsArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::Ledger ledger, open_ledger());
  ASSIGN_OR_RETURN(const jobs::LedgerContents all, read_ledger(ledger, context));
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, jobs::job_ids(ledger, all, std::span(&args.id, 1)));
  const jobs::LedgerContents contents = jobs::runs_of(all, ids);
  JobLogs logs(ids[0], ledger, contents.runs.empty() ? nullptr : &contents.runs[0], context);
  RETURN_IF_ERROR(logs.refresh());
  return args.follow ? follow(logs, context) : print_once(logs, context);
}

}  // namespace

void add_job_logs(Verbs& verbs, CLI::App& job) {
  auto args = std::make_shared<JobLogsArgs>();
  CLI::App& logs = verbs.add(job, "logs", "Print what a job has written: of all ranks, and of all elements of an array",
                             {"millrace job logs 1234", "millrace job logs 1234 -f", "millrace job logs 1234_7 --json"},
                             [args](Context& context) { return run_job_logs(*args, context); });
  logs.add_option("ID", args->id, "Number of a job (12), element of an array (12_3), or name of a run")
      ->required()
      ->option_text(" ");
  logs.add_flag("-f,--follow", args->follow,
                "Go on until the job ends, also across requeues; Ctrl-C leaves the job alone");
}

}  // namespace millrace::cli
