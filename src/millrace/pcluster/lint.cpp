// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/lint.h"

#include <utility>

#include "millrace/pcluster/check.h"
#include "millrace/pcluster/rules.h"

namespace millrace::pcluster {

namespace {

void add_problems(const yaml::Document& document, FindingReport& report) {
  for (const yaml::Problem& problem : document.problems) {
    switch (problem.kind) {
      case yaml::Problem::Kind::kSyntax:
        report.add("PC64", problem.at, problem.message);
        break;
      case yaml::Problem::Kind::kDuplicateKey:
        report.add("PC65", problem.at, problem.message);
        break;
      case yaml::Problem::Kind::kEncoding:
        report.add("PC66", problem.at, problem.message);
        break;
    }
  }
}

bool has_syntax_error(const yaml::Document& document) {
  for (const yaml::Problem& problem : document.problems) {
    if (problem.kind == yaml::Problem::Kind::kSyntax) return true;
  }
  return false;
}

void silence(const yaml::Document& document, std::string_view file, std::vector<Finding>& findings) {
  std::vector<Suppression> suppressions;
  for (const yaml::Comment& comment : document.comments) {
    auto suppression = parse_suppression("#" + comment.text, comment.at.line, comment.at.column, comment.alone);
    if (suppression) suppressions.push_back(*std::move(suppression));
  }
  apply_suppressions(findings, suppressions, config_rules(), file);
}

}  // namespace

Result<std::vector<Finding>> lint_config(std::string_view text, const ConfigLintOptions& options) {
  ASSIGN_OR_RETURN(Facts facts, parse_facts(options.facts, options.facts_file));
  const yaml::Document document = yaml::parse(text);
  FindingReport report(config_rules(), options.file);
  add_problems(document, report);
  if (!has_syntax_error(document)) {
    const Cluster cluster = read_cluster(document, options, std::move(facts));
    check_schema(cluster, report);
    for (const auto checks : {file_checks(), compute_checks(), network_checks(), storage_checks(), lustre_checks(),
                              slurm_checks(), release_checks(), script_checks()}) {
      for (const Check check : checks) check(cluster, report);
    }
  }
  std::vector<Finding> findings = report.take();
  silence(document, options.file, findings);
  sort_findings(findings);
  return findings;
}

}  // namespace millrace::pcluster
