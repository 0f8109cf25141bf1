// SPDX-License-Identifier: Apache-2.0
#pragma once

// Findings of linters and validators. Rules are data with a stable id. A finding points to a place and to its rule.
// One formatter writes text, JSON and SARIF 2.1.0. A comment in the checked file may silence a rule if it gives a
// reason. Values and pure functions; thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class Severity { kNote, kWarning, kError };

// Returns "note", "warning" or "error", the word in every output form.
std::string_view severity_name(Severity severity);

// One row of a room's table; the texts are literals and live as long as the program.
struct Rule {
  std::string_view id;  // "SB07"; never renumbered or reused
  Severity severity = Severity::kError;
  std::string_view module;   // the subject of the rule: "job", "env", "cluster"
  std::string_view summary;  // the rule in one line, for the list
  std::string_view reason;   // the problem that the rule prevents
  std::string_view fix;      // the advice, for findings without their own
  std::string_view source;   // source of the fact
};

// The place of a finding in a dataset, besides its file. -1 or empty: not given.
struct DataPlace {
  int64_t episode = -1;
  int64_t row = -1;    // row of the episode, from 0
  std::string column;  // a column of a table, or a feature
};

struct Finding {
  const Rule* rule = nullptr;  // never null
  std::string file;
  int64_t line = 0;    // from 1; 0: the whole file
  int64_t column = 0;  // from 1, in code points; 0: the whole line
  std::string message;
  std::string fix = {};                                // empty: the rule's fix
  std::optional<Severity> severity_here = {};          // replaces the rule's severity
  std::optional<std::string> suppressed_because = {};  // the reason that a comment in the file gives
  DataPlace data = {};

  Severity severity() const { return severity_here.value_or(rule->severity); }
  std::string_view advice() const { return fix.empty() ? rule->fix : std::string_view(fix); }
};

// Finds a rule by id, ignoring case; nullptr if there is none.
const Rule* find_rule(std::span<const Rule> rules, std::string_view id);

// Sorts by place, then by rule.
void sort_findings(std::vector<Finding>& findings);

// --- forms ---------------------------------------------------------------------------------------------------------

// Returns "train.sbatch:9:11: error: message [SB01]", with the reason and the fix on two more lines. The place in a
// dataset precedes the message: "a.parquet: error: episode 3, row 7, column action: message [LR026]".
std::string finding_text(const Finding& finding);

// Returns an object of type "lint": file, line, column, severity, rule, message, reason, fix, source. line and column
// are null if the finding has none. For a finding in a dataset it also has episode, row and field, if they are known.
nlohmann::ordered_json finding_json(const Finding& finding);

// Returns one complete SARIF 2.1.0 log with the rules and all findings; suppressed ones are marked.
std::string sarif_log(std::string_view tool_version, std::span<const Rule> rules, std::span<const Finding> findings);

// Returns the text of --explain: one complete rule.
std::string rule_text(const Rule& rule);
// Returns an object of type "rule": id, severity, module, summary, reason, fix, source.
nlohmann::ordered_json rule_json(const Rule& rule);

// Returns the rules as Markdown, one list each: rule, why, fix, source. Lines have fewer than 120 characters.
std::string rules_markdown(std::span<const Rule> rules);

// --- comments that suppress a rule ---------------------------------------------------------------------------------

// The comment `# millrace: ignore SB07 -- reason`, also for several rules ("SB07, SB08"). After code it applies to
// that line; alone on its line, to the item that begins on the next line; `ignore-file` applies to the whole file.
struct Suppression {
  int64_t line = 0, column = 0;  // of the comment
  int64_t first_line = 0;        // first silenced line
  int64_t last_line = 0;         // last silenced line; the language's reader widens both if the item is longer
  bool whole_file = false;
  std::vector<std::string> rules;  // in capitals
  std::string reason;              // empty: no reason, so no rule is silenced
};

// Parses a comment that begins with '#'; nullopt for any other comment.
std::optional<Suppression> parse_suppression(std::string_view comment, int64_t line, int64_t column, bool alone);

// Returns the rules about such comments: IG01 for a missing reason, IG02 for an unknown rule.
std::span<const Rule> suppression_rules();

// Marks silenced findings, and adds a finding for each faulty comment. `known`: all rules that a comment in the file
// may name.
void apply_suppressions(std::vector<Finding>& findings, std::span<const Suppression> suppressions,
                        std::span<const Rule> known, std::string_view file);

// --- counting ------------------------------------------------------------------------------------------------------

struct FindingCounts {
  int64_t errors = 0, warnings = 0, notes = 0, suppressed = 0;
};
FindingCounts count_findings(std::span<const Finding> findings);

// The severities that end a lint with exit status 3.
enum class FailOn { kError, kWarning, kNever };
bool fails(const FindingCounts& counts, FailOn fail_on);

}  // namespace millrace
