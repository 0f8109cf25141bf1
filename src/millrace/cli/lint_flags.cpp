// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/lint_flags.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

namespace millrace::cli {

namespace {

// Scripts and cluster files are below a hundredth of this. A larger file was given by mistake.
constexpr size_t kMostInput = 16 << 20;

Result<std::string> read_descriptor(int fd, const std::string& path) {
  std::string text;
  char buffer[64 << 10];
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::unexpected(errno_error(errno, "read " + path));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMostInput) {
      return fail(ErrorCode::kOutOfRange, "{} is larger than 16 MiB, so it is not a file to lint", path);
    }
  }
}

std::string summary_text(const FindingCounts& counts, int64_t files) {
  std::string text = fmt::format("{}: {}, {}, {}", counted(files, "file"), counted(counts.errors, "error"),
                                 counted(counts.warnings, "warning"), counted(counts.notes, "note"));
  if (counts.suppressed > 0) text += fmt::format("; {} ignored by comments with a reason", counts.suppressed);
  return text + "\n";
}

}  // namespace

void add_lint_flags(CLI::App& app, LintFlags& flags) {
  app.add_option("FILE", flags.files, "Files to check; - is standard input")->option_text(" ");
  add_rule_flags(app, flags);
}

void add_rule_flags(CLI::App& app, LintFlags& flags) {
  add_choice_flag(
      app, "--fail-on", {"error", "warning", "never"},
      [&flags](const std::string& level) {
        flags.fail_on = level == "never" ? FailOn::kNever : level == "warning" ? FailOn::kWarning : FailOn::kError;
      },
      "The lowest severity that ends with exit status 3 (default: error)");
  app.add_flag("--sarif", flags.sarif, "Print one SARIF 2.1.0 log, as code scanners read it")->excludes("--json");
  app.add_option("--explain", flags.explain, "Explain one rule in full, and stop")->option_text("RULE");
  app.add_flag("--rules", flags.list_rules, "Print all rules as Markdown, and stop");
}

void check_lint_flags(const LintFlags& flags) {
  if (flags.files.empty() && !flags.list_rules && flags.explain.empty()) throw CLI::RequiredError("FILE");
}

Result<bool> answer_about_rules(const LintFlags& flags, std::span<const Rule> rules, Context& context) {
  if (!flags.explain.empty()) {
    const Rule* rule = find_rule(rules, flags.explain);
    if (rule == nullptr) {
      return fail(ErrorCode::kNotFound, "there is no rule '{}'; --rules lists them", flags.explain);
    }
    context.out.print(rule_json(*rule), rule_text(*rule));
    return true;
  }
  if (!flags.list_rules) return false;
  for (const Rule& rule : rules) context.out.print_json(rule_json(rule));
  context.out.print_text(rules_markdown(rules));
  return true;
}

Result<std::string> read_lint_input(const std::string& path) {
  if (path == "-") return read_descriptor(STDIN_FILENO, "standard input");
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return tl::unexpected(errno_error(errno, "open " + path));
  Result<std::string> text = read_descriptor(fd, path);
  close(fd);
  return text;
}

void print_findings(const LintFlags& flags, std::span<const Rule> rules, std::vector<Finding> findings, int64_t files,
                    Context& context) {
  sort_findings(findings);
  const FindingCounts counts = count_findings(findings);
  if (fails(counts, flags.fail_on)) context.out.count_finding();
  if (flags.sarif) return context.out.print_text(sarif_log(MILLRACE_VERSION, rules, findings));
  for (const Finding& finding : findings) {
    if (!finding.suppressed_because) context.out.print(finding_json(finding), finding_text(finding));
  }
  context.out.print({{"type", "lint_summary"},
                     {"files", files},
                     {"errors", counts.errors},
                     {"warnings", counts.warnings},
                     {"notes", counts.notes},
                     {"suppressed", counts.suppressed}},
                    summary_text(counts, files));
}

}  // namespace millrace::cli
