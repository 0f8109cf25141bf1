// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/cli/job_check.h"
#include "millrace/cli/job_states.h"
#include "millrace/cli/lint_flags.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/storage/url.h"

namespace millrace::cli {

namespace {

struct JobCheckArgs {
  LintFlags lint;
  jobs::CheckRequest request;
};

void print_answers(const jobs::CheckReport& report, Context& context) {
  for (const jobs::CheckAnswer& answer : report.answers) {
    context.out.print(
        {{"type", "job_check"}, {"subject", answer.subject}, {"known", answer.known}, {"evidence", answer.evidence}},
        fmt::format("{}: {}: {}\n", answer.known ? "fine" : "not checked", answer.subject, printable(answer.evidence)));
  }
}

Status run_job_check(const JobCheckArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, jobs::all_check_rules(), context));
  if (answered) return {};
  const StopScope scope(context.stop);
  ASSIGN_OR_RETURN(jobs::CheckReport report, jobs::check_job(args.request, slurm_options(context)));
  if (!args.lint.sarif) print_answers(report, context);
  print_findings(args.lint, jobs::all_check_rules(), std::move(report.findings), 1, context);
  return {};
}

}  // namespace

void add_check_flags(CLI::App& app, jobs::CheckRequest& request) {
  app.add_option("--data", request.data, "Data besides those that the script names; may be repeated")
      ->option_text("URL")
      ->allow_extra_args(false);
  app.add_option("--checkpoints", request.checkpoints,
                 "A folder of checkpoints besides those that the script names; may be repeated")
      ->option_text("DIR")
      ->allow_extra_args(false);
  add_size_flag(app, "--checkpoint-size", request.checkpoint_bytes,
                "Size of one checkpoint (default: of the largest one there, else the plan's for the model)");
  add_parsed_flag(app, "--parameters", request.parameters, "N",
                  "Parameters of the model, for the plan: 70B (default: from the script's model)", parse_parameters);
  app.add_option("--keep-last", request.keep_last,
                 "Number of checkpoints to keep (default: as the script says, else 2)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_flag("--deep", request.deep, "Read all data and compare them with their hashes");
  app.add_flag("--probe", request.probe, "Look at the paths on one node of the partition, by a short srun");
}

void add_job_check(Verbs& verbs, CLI::App& job) {
  auto args = std::make_shared<JobCheckArgs>();
  CLI::App& check = verbs.add(
      job, "check", "Say what would go wrong with a batch script before it is submitted",
      {"millrace job check train.sbatch", "millrace job check train.sbatch --probe --checkpoint-size 140GB",
       "millrace job check train.sbatch --sbatch=--partition=gpu --json"},
      [args](Context& context) { return run_job_check(*args, context); },
      [args] {
        if (args->request.script.empty() && !args->lint.list_rules && args->lint.explain.empty()) {
          throw CLI::RequiredError("SCRIPT");
        }
      });
  check.add_option("SCRIPT", args->request.script, "The batch script")->option_text(" ");
  check
      .add_option("ARGUMENTS", args->request.arguments,
                  "Arguments of the script; put -- before them if one begins with -")
      ->option_text(" ");
  check
      .add_option("--sbatch", args->request.options,
                  "An option for sbatch, such as --sbatch=--time=60; may be repeated")
      ->option_text("OPTION")
      ->allow_extra_args(false);
  add_check_flags(check, args->request);
  add_rule_flags(check, args->lint);
}

}  // namespace millrace::cli
