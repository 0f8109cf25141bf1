// SPDX-License-Identifier: Apache-2.0
#pragma once

// What linters and validators say: rules are data with a stable id, findings point at a place and at their rule, and
// one formatter writes them as text, as JSON and as SARIF 2.1.0. A comment in the file under test may silence a rule,
// if it gives a reason. Values and pure functions; thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class Severity { kNote, kWarning, kError };

// "note", "warning", "error": the word in every output form.
std::string_view severity_name(Severity severity);

// One row of a room's table; the texts are literals and live as long as the program.
struct Rule {
  std::string_view id;  // "SB07"; never renumbered, never used again for something else
  Severity severity = Severity::kError;
  std::string_view module;   // what the rule looks at: "job", "env", "cluster"
  std::string_view summary;  // the rule in one line, as the list shows it
  std::string_view reason;   // what goes wrong otherwise
  std::string_view fix;      // the way out, where a finding has none of its own
  std::string_view source;   // where the fact comes from
};

struct Finding {
  const Rule* rule = nullptr;  // never null
  std::string file;
  int64_t line = 0;    // from 1; 0 is the whole file
  int64_t column = 0;  // from 1, in code points; 0 is the whole line
  std::string message;
  std::string fix = {};                                // empty: the rule's
  std::optional<Severity> severity_here = {};          // where it is not the rule's
  std::optional<std::string> suppressed_because = {};  // the reason that a comment in the file gives

  Severity severity() const { return severity_here.value_or(rule->severity); }
  std::string_view advice() const { return fix.empty() ? rule->fix : std::string_view(fix); }
};

// nullptr when no rule has the id; case is ignored.
const Rule* find_rule(std::span<const Rule> rules, std::string_view id);

// By place, then by rule.
void sort_findings(std::vector<Finding>& findings);

// --- forms ---------------------------------------------------------------------------------------------------------

// "train.sbatch:9:11: error: message [SB01]" with the reason and the fix in two more lines.
std::string finding_text(const Finding& finding);

// An object of type "lint": file, line, column, severity, rule, message, reason, fix, source; line and column are null
// where the finding has none.
nlohmann::ordered_json finding_json(const Finding& finding);

// One whole SARIF 2.1.0 log with the rules and all findings, those that are suppressed marked as such.
std::string sarif_log(std::string_view tool_version, std::span<const Rule> rules, std::span<const Finding> findings);

// What --explain prints: all that the table knows.
std::string rule_text(const Rule& rule);
// An object of type "rule": id, severity, module, summary, reason, fix, source.
nlohmann::ordered_json rule_json(const Rule& rule);

// The rules as a Markdown table with a header, one row each: id, severity, rule, why, fix, source.
std::string rules_markdown(std::span<const Rule> rules);

// --- comments that silence a rule ----------------------------------------------------------------------------------

// `# millrace: ignore SB07 -- reason`, also of several rules ("SB07, SB08"). Behind something on its line it is for
// that line, alone on its line for what begins in the next; `ignore-file` is for the whole file.
struct Suppression {
  int64_t line = 0, column = 0;  // of the comment
  int64_t first_line = 0;        // what it is for, both ends included;
  int64_t last_line = 0;         // the reader of the language widens this where one thing takes several lines
  bool whole_file = false;
  std::vector<std::string> rules;  // in capitals
  std::string reason;              // empty: none is given, so nothing is silenced
};

// `comment` begins with '#'. Nothing when it is no such comment.
std::optional<Suppression> parse_suppression(std::string_view comment, int64_t line, int64_t column, bool alone);

// Rules about such comments themselves: IG01 without a reason, IG02 of a rule that does not exist.
std::span<const Rule> suppression_rules();

// Marks what is silenced, and adds a finding for each comment that is itself wrong. `known` are all the rules that may
// be named in the file.
void apply_suppressions(std::vector<Finding>& findings, std::span<const Suppression> suppressions,
                        std::span<const Rule> known, std::string_view file);

// --- counting ------------------------------------------------------------------------------------------------------

struct FindingCounts {
  int64_t errors = 0, warnings = 0, notes = 0, suppressed = 0;
};
FindingCounts count_findings(std::span<const Finding> findings);

// What ends a lint with exit status 3.
enum class FailOn { kError, kWarning, kNever };
bool fails(const FindingCounts& counts, FailOn fail_on);

}  // namespace millrace
