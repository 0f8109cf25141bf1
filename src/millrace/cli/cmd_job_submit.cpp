// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/job_check.h"
#include "millrace/cli/job_states.h"
#include "millrace/jobs/log_files.h"
#include "millrace/jobs/submit.h"
#include "millrace/storage/url.h"

namespace millrace::cli {

namespace {

struct JobSubmitArgs {
  jobs::SubmitRequest request;
  jobs::CheckRequest check;
  std::vector<std::string> after;
  bool dry_run = false, watch = false, no_check = false;
};

// "train.sbatch:3: the log's folder /x is missing (mkdir -p /x) [JC01]"
std::string problem_text(const Finding& finding) {
  const std::string place = finding.line > 0 ? fmt::format("{}:{}: ", finding.file, finding.line) : "";
  return fmt::format("{}{} ({}) [{}]", place, printable(finding.message), finding.advice(), finding.rule->id);
}

// Notes name what may go wrong. Error: invalid_argument, what would.
Status check_first(const JobSubmitArgs& args, jobs::SubmitRequest& request, Context& context) {
  jobs::CheckRequest check = args.check;
  check.script = request.script;
  check.arguments = request.arguments;
  check.options = request.options;
  const StopScope scope(context.stop);
  ASSIGN_OR_RETURN(jobs::CheckReport report, jobs::check_job(check, slurm_options(context)));
  request.data = std::move(report.data);
  std::string problems;
  for (const Finding& finding : report.findings) {
    if (finding.suppressed_because) continue;
    if (finding.severity() == Severity::kError) problems += (problems.empty() ? "" : "; ") + problem_text(finding);
    if (finding.severity() == Severity::kWarning) context.out.note("warning: " + problem_text(finding));
  }
  if (problems.empty()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "not submitted, because it would fail: {}; --no-check submits it all the same", problems);
}

// The words of sbatch without their secrets.
std::vector<std::string> shown_command(const jobs::RunRecord& record, const std::string& script) {
  std::vector<std::string> words{"sbatch", "--parsable"};
  words.insert(words.end(), record.options.begin(), record.options.end());
  words.push_back(script);
  words.insert(words.end(), record.arguments.begin(), record.arguments.end());
  return words;
}

Json submitted_json(const jobs::RunRecord& record, const std::vector<std::string>& command, const std::string& ledger,
                    bool dry_run) {
  return {{"type", "job_submitted"},
          {"job_id", dry_run ? Json(nullptr) : Json(record.job_id)},
          {"run", dry_run ? Json(nullptr) : Json(record.run)},
          {"name", record.name},
          {"script", record.script},
          {"script_hash", record.script_hash},
          {"command", command},
          {"work_dir", record.work_dir},
          {"output", record.output},
          {"ledger", ledger},
          {"dry_run", dry_run}};
}

std::string submitted_text(const jobs::RunRecord& record, const std::vector<std::string>& command,
                           const std::string& ledger, bool dry_run) {
  std::string words;
  for (const std::string& word : command) words += (words.empty() ? "" : " ") + printable(word);
  if (dry_run) {
    return fmt::format("would run: {}\nin {}, with the log {}, recorded in {}\n", words, record.work_dir, record.output,
                       ledger);
  }
  const bool array = !record.array.empty();
  const std::string log = jobs::log_glob(record.output, {.number = array ? "" : record.job_id,
                                                         .array = record.job_id,
                                                         .task = "",
                                                         .name = record.name,
                                                         .user = record.user,
                                                         .restarts = ""});
  std::string text = fmt::format("job {} ({}): log {}\n", record.job_id, printable(record.name), log);
  if (record.git && record.git->dirty) {
    text += fmt::format("files differ from commit {}\n", record.git->commit.substr(0, 12));
  }
  return text;
}

Status run_job_submit(const JobSubmitArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::Ledger ledger, open_ledger());
  jobs::SubmitRequest request = args.request;
  request.variables = process_url_options().variables();
  if (!args.dry_run && !args.no_check) RETURN_IF_ERROR(check_first(args, request, context));
  ASSIGN_OR_RETURN(jobs::Submission submission, jobs::plan_submission(request, slurm_options(context)));
  const jobs::RunRecord& record = submission.record;
  if (record.secrets_removed > 0) {
    context.out.note(fmt::format("the submitted files contain {}; the ledger omits them",
                                 counted(record.secrets_removed, "secret")));
  }
  if (!args.dry_run) {
    slurm::AskOptions options = slurm_options(context);
    options.time_limit =
        std::chrono::seconds(60);  // a busy controller takes a job late, and a retry would queue it twice
    RETURN_IF_ERROR(jobs::submit(submission, ledger, options));
  }
  const auto command = shown_command(record, args.request.script);
  context.out.print_done(submitted_json(record, command, ledger.folder(), args.dry_run),
                         submitted_text(record, command, ledger.folder(), args.dry_run), args.dry_run);
  if (args.dry_run || !args.watch) return {};
  return wait_for_jobs({record.job_id}, ledger, context);
}

}  // namespace

void add_job_submit(Verbs& verbs, CLI::App& job) {
  auto args = std::make_shared<JobSubmitArgs>();
  CLI::App& submit = verbs.add(
      job, "submit", "Check a batch script, submit it by sbatch, and write down what was submitted",
      {"millrace job submit train.sbatch", "millrace job submit train.sbatch --after ok:1234 -- --lr 3e-4",
       "millrace job submit train.sbatch --sbatch=--partition=gpu --sbatch=--time=2:00:00 --dry-run"},
      [args](Context& context) { return run_job_submit(*args, context); },
      [args] {
        for (const std::string& text : args->after) {
          args->request.after.push_back(usage_value("--after", jobs::parse_after(text)));
        }
      });
  submit.add_option("SCRIPT", args->request.script, "The batch script")->required()->option_text(" ");
  submit
      .add_option("ARGUMENTS", args->request.arguments,
                  "Arguments of the script; put -- before them if one begins with -")
      ->option_text(" ");
  submit
      .add_option("--after", args->after,
                  "Start when job ID has ended well (ok:ID), badly (notok:ID) or in any way (any:ID); may be repeated")
      ->option_text("WHEN:ID")
      ->allow_extra_args(false);
  submit
      .add_option("--sbatch", args->request.options,
                  "An option for sbatch, such as --sbatch=--time=60; may be repeated")
      ->option_text("OPTION")
      ->allow_extra_args(false);
  add_check_flags(submit, args->check);
  submit.add_flag("--no-check", args->no_check, "Skip the checks of `job check`");
  submit.add_flag("--dry-run", args->dry_run, "Print what would be submitted");
  submit.add_flag("--watch", args->watch, "Wait for the job and exit with its result; Ctrl-C leaves the job alone");
}

}  // namespace millrace::cli
