// SPDX-License-Identifier: Apache-2.0
#pragma once

// The flags and the output that all lint verbs share. For one thread.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/cli/command.h"
#include "millrace/lint/findings.h"

namespace millrace::cli {

struct LintFlags {
  std::vector<std::string> files;  // "-" is standard input
  FailOn fail_on = FailOn::kError;
  bool sarif = false;
  bool list_rules = false;
  std::string explain;  // a rule's id
};

// Adds FILE..., --fail-on, --sarif, --rules and --explain.
void add_lint_flags(CLI::App& app, LintFlags& flags);
// Adds these flags without FILE, for a verb that checks something other than files.
void add_rule_flags(CLI::App& app, LintFlags& flags);

// Implements `check` of a verb: FILE may be missing only with --rules or --explain.
void check_lint_flags(const LintFlags& flags);

// Prints the answer to --rules and --explain. Returns false when neither is given. Errors: not_found (no such rule).
[[nodiscard]] Result<bool> answer_about_rules(const LintFlags& flags, std::span<const Rule> rules, Context& context);

// Reads a file, or standard input for "-". Errors: those of open and read; out_of_range above 16 MiB.
[[nodiscard]] Result<std::string> read_lint_input(const std::string& path);

// Prints findings in order and a summary. Sets the exit status 3 when `flags` require it. `files`: the number of files
// read.
void print_findings(const LintFlags& flags, std::span<const Rule> rules, std::vector<Finding> findings, int64_t files,
                    Context& context);

}  // namespace millrace::cli
