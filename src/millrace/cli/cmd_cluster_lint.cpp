// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>
#include <memory>

#include "millrace/cli/lint_flags.h"
#include "millrace/pcluster/lint.h"
#include "millrace/pcluster/rules.h"

namespace millrace::cli {

namespace {

struct ClusterLintArgs {
  LintFlags lint;
  pcluster::ConfigLintOptions options;
  std::string facts_file;
  std::vector<std::string> scripts;
};

// The rules about silencing comments are part of the list.
std::vector<Rule> all_cluster_rules() {
  const auto rules = pcluster::config_rules(), more = suppression_rules();
  std::vector<Rule> all(rules.begin(), rules.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Status run_cluster_lint(const ClusterLintArgs& args, Context& context) {
  const std::vector<Rule> rules = all_cluster_rules();
  ASSIGN_OR_RETURN(const bool answered, answer_about_rules(args.lint, rules, context));
  if (answered) return {};
  pcluster::ConfigLintOptions options = args.options;
  if (!args.facts_file.empty()) {
    ASSIGN_OR_RETURN(options.facts, read_lint_input(args.facts_file));
    options.facts_file = args.facts_file;
  }
  for (const std::string& file : args.scripts) {
    ASSIGN_OR_RETURN(std::string text, read_lint_input(file));
    options.scripts.push_back({file, std::move(text)});
  }
  std::vector<Finding> findings;
  for (const std::string& file : args.lint.files) {
    ASSIGN_OR_RETURN(const std::string text, read_lint_input(file));
    options.file = file;
    ASSIGN_OR_RETURN(std::vector<Finding> found, pcluster::lint_config(text, options));
    std::move(found.begin(), found.end(), std::back_inserter(findings));
  }
  print_findings(args.lint, rules, std::move(findings), static_cast<int64_t>(args.lint.files.size()), context);
  return {};
}

}  // namespace

void add_cluster_lint(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<ClusterLintArgs>();
  CLI::App& app = verbs.add(
      group, "lint", "Check ParallelCluster files without an AWS account",
      {"millrace cluster lint cluster.yaml",
       "millrace cluster lint cluster.yaml --facts account.yaml --script train.sbatch",
       "millrace cluster lint --explain PC26"},
      [args](Context& context) { return run_cluster_lint(*args, context); }, [args] { check_lint_flags(args->lint); });
  add_lint_flags(app, args->lint);
  app.add_option_function<std::string>(
         "--pcluster",
         [args](const std::string& text) {
           args->options.version = usage_value("--pcluster", pcluster::parse_version(text));
         },
         "The version of ParallelCluster that will read the files (default: the newest that is known, 3.16.3)")
      ->option_text("VERSION");
  app.add_option("--name", args->options.cluster_name, "The cluster's name, to check it too")->option_text("NAME");
  app.add_option("--facts", args->facts_file,
                 "Facts about the account: reservations, subnets, security groups, buckets")
      ->option_text("FILE");
  app.add_option("--script", args->scripts,
                 "A job script whose paths and options are checked against the file; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->option_text("FILE");
}

}  // namespace millrace::cli
