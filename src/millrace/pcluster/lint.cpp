// SPDX-License-Identifier: Apache-2.0
#include "millrace/pcluster/lint.h"

#include <cassert>
#include <utility>

#include "millrace/pcluster/check.h"
#include "millrace/pcluster/rules.h"

namespace millrace::pcluster {

namespace {

void add_problems(const yaml::Document& document, Report& report) {
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

Finding& Report::add(std::string_view rule, const yaml::Place& at, std::string message) {
  const Rule* found = find_rule(config_rules(), rule);
  assert(found != nullptr);  // ids are written in this room only
  findings.push_back({found, file_, at.line, at.column, std::move(message)});
  return findings.back();
}

Finding& Report::add(std::string_view rule, Severity severity, const yaml::Place& at, std::string message) {
  Finding& finding = add(rule, at, std::move(message));
  if (severity != finding.rule->severity) finding.severity_here = severity;
  return finding;
}

Result<std::vector<Finding>> lint_config(std::string_view text, const ConfigLintOptions& options) {
  ASSIGN_OR_RETURN(Facts facts, parse_facts(options.facts, options.facts_file));
  const yaml::Document document = yaml::parse(text);
  Report report(options.file);
  add_problems(document, report);
  if (!has_syntax_error(document)) {
    const Cluster cluster = read_cluster(document, options, std::move(facts));
    check_schema(cluster, report);
    for (const auto checks : {file_checks(), compute_checks(), network_checks(), storage_checks(), lustre_checks(),
                              slurm_checks(), release_checks(), script_checks()}) {
      for (const Check check : checks) check(cluster, report);
    }
  }
  silence(document, options.file, report.findings);
  sort_findings(report.findings);
  return std::move(report.findings);
}

}  // namespace millrace::pcluster
