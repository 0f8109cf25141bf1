// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "millrace/cli/lint_flags.h"
#include "millrace/cluster/env_lint.h"
#include "millrace/cluster/job_lint.h"

namespace millrace::cli {

namespace {

struct JobLintArgs {
  LintFlags lint;
};

Status run_job_lint(const JobLintArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, cluster::all_job_rules(), context));
  if (answered) return {};
  std::vector<std::string> texts;
  for (const std::string& path : args.lint.files) {
    ASSIGN_OR_RETURN(std::string text, read_lint_input(path));
    texts.push_back(std::move(text));
  }
  std::vector<cluster::ScriptFile> files;
  for (size_t i = 0; i < texts.size(); ++i) files.push_back({args.lint.files[i], texts[i]});
  print_findings(args.lint, cluster::all_job_rules(), cluster::lint_jobs(files), std::ssize(files), context);
  return {};
}

struct EnvLintArgs {
  LintFlags lint;
  cluster::EnvContext environment;
};

Status run_env_lint(const EnvLintArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, cluster::all_env_rules(), context));
  if (answered) return {};
  std::vector<Finding> findings;
  for (const std::string& path : args.lint.files) {
    ASSIGN_OR_RETURN(const std::string text, read_lint_input(path));
    const auto found = cluster::lint_environment({path, text}, args.environment);
    findings.insert(findings.end(), found.begin(), found.end());
  }
  print_findings(args.lint, cluster::all_env_rules(), std::move(findings), std::ssize(args.lint.files), context);
  return {};
}

}  // namespace

void add_job(Verbs& verbs) {
  CLI::App& job = verbs.add_group("job", "Write batch scripts for Slurm, and check any before it is submitted");
  auto args = std::make_shared<JobLintArgs>();
  CLI::App& lint = verbs.add(
      job, "lint", "Check batch scripts offline: what Slurm, the shell, NCCL and EFA will make of them",
      {"millrace job lint train.sbatch", "millrace job lint *.sbatch --fail-on warning",
       "millrace job lint --explain SB03"},
      [args](Context& context) { return run_job_lint(*args, context); }, [args] { check_lint_flags(args->lint); });
  add_lint_flags(lint, args->lint);
}

void add_env(Verbs& verbs) {
  CLI::App& env = verbs.add_group("env", "Check the environment that NCCL, EFA and torch see");
  auto args = std::make_shared<EnvLintArgs>();
  CLI::App& lint = verbs.add(
      env, "lint", "Check the variables that a script sets, or the output of env",
      {"env | millrace env lint -", "millrace env lint nccl_env.sh --nodes 32",
       "srun -N1 env | millrace env lint - --json"},
      [args](Context& context) { return run_env_lint(*args, context); }, [args] { check_lint_flags(args->lint); });
  add_lint_flags(lint, args->lint);
  lint.add_option("--nodes", args->environment.nodes, "Nodes of the job (default: what the file says)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  lint.add_flag("--efa", args->environment.efa,
                "The traffic goes over EFA (default: where FI_PROVIDER or FI_EFA_ says so)");
}

}  // namespace millrace::cli
