// SPDX-License-Identifier: Apache-2.0
#include "millrace/lint/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <tuple>

#include "millrace/base/text/strings.h"
#include "millrace/base/text/utf8.h"

namespace millrace {

namespace {

using Json = nlohmann::ordered_json;

// Makes text safe for terminals and JSON readers: well-formed, without control characters.
std::string one_line(std::string_view text) {
  std::string clean, out;
  append_utf8_replaced(text, clean);
  for (const char c : clean) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

// A path as a URI reference for SARIF: characters that a path may not have become %XX.
std::string uri_of(std::string_view path) {
  constexpr std::string_view kPlain = "-._~/!$&'()*+,;=@";
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || kPlain.find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

// "episode 3, row 7, column action: "; empty where none is known.
std::string data_text(const DataPlace& data) {
  std::string text;
  const auto add = [&](std::string part) { text += (text.empty() ? "" : ", ") + std::move(part); };
  if (data.episode >= 0) add(fmt::format("episode {}", data.episode));
  if (data.row >= 0) add(fmt::format("row {}", data.row));
  if (!data.column.empty()) add("column " + one_line(data.column));
  return text.empty() ? text : text + ": ";
}

void add_data(const DataPlace& data, Json& object) {
  if (data.episode >= 0) object["episode"] = data.episode;
  if (data.row >= 0) object["row"] = data.row;
  if (!data.column.empty()) object["field"] = data.column;
}

Json place_or_null(int64_t number) {
  return number > 0 ? Json(number) : Json(nullptr);
}

Json sarif_rule(const Rule& rule) {
  return {{"id", rule.id},
          {"shortDescription", {{"text", rule.summary}}},
          {"fullDescription", {{"text", rule.reason}}},
          {"help", {{"text", fmt::format("{} Source: {}.", rule.fix, rule.source)}}},
          {"defaultConfiguration", {{"level", severity_name(rule.severity)}}}};
}

Json sarif_result(const Finding& finding, std::span<const Rule> rules) {
  Json place{{"artifactLocation", {{"uri", uri_of(finding.file)}}}};
  if (finding.line > 0) {
    place["region"]["startLine"] = finding.line;
    if (finding.column > 0) place["region"]["startColumn"] = finding.column;
  }
  Json result{{"ruleId", finding.rule->id}};
  if (const Rule* listed = find_rule(rules, finding.rule->id); listed != nullptr) {
    result["ruleIndex"] = listed - rules.data();
  }
  result["level"] = severity_name(finding.severity());
  result["message"] = {
      {"text", one_line(fmt::format("{}{} Fix: {}", data_text(finding.data), finding.message, finding.advice()))}};
  result["locations"] = Json::array({{{"physicalLocation", place}}});
  if (finding.suppressed_because) {
    result["suppressions"] = Json::array({{{"kind", "inSource"}, {"justification", *finding.suppressed_because}}});
  }
  return result;
}

// Whether Markdown reads a line that begins with this word as a heading, a quotation, an item of a list or a table.
bool begins_markup(std::string_view word) {
  const size_t digits = word.find_first_not_of("0123456789");
  return word.find_first_of("-+*#>|=") == 0 || (digits != 0 && digits != word.npos && word[digits] == '.');
}

// "- why: text", in lines of less than 120 characters.
std::string markdown_item(std::string_view label, std::string_view text) {
  constexpr size_t kMostColumns = 119;
  std::string out, line = fmt::format("- {}:", label);
  for (const std::string_view word : split(text, ' ')) {
    if (line.size() + 1 + word.size() > kMostColumns) {
      size_t end = line.size();
      for (std::string_view first = word; begins_markup(first);) {
        const size_t space = line.rfind(' ', end - 1);
        first = std::string_view(line).substr(space + 1, end - space - 1);
        end = space;
      }
      out += line.substr(0, end) + "\n";
      line = " " + line.substr(end);
    }
    line += ' ';
    line += word;
  }
  return out + line + "\n";
}

constexpr Rule kSuppressionRules[] = {
    {"IG01", Severity::kWarning, "ignore", "a comment that ignores a rule gives its reason",
     "The next reader cannot tell an exception from a mistake, so the comment is ignored.",
     "Write `# millrace: ignore SB07 -- why it is right here`.", "Millrace"},
    {"IG02", Severity::kWarning, "ignore", "a comment that ignores a rule names one that exists",
     "A mistyped id has no effect, and nobody notices.", "Take the id from the finding, for example SB07.", "Millrace"},
};

bool silences(const Suppression& suppression, const Finding& finding) {
  const bool here =
      suppression.whole_file || (finding.line >= suppression.first_line && finding.line <= suppression.last_line);
  return here &&
         std::find(suppression.rules.begin(), suppression.rules.end(), finding.rule->id) != suppression.rules.end();
}

// "SB07, SB08" -> the ids.
std::vector<std::string> rule_list(std::string_view text) {
  std::vector<std::string> rules;
  while (!(text = trimmed(text)).empty()) {
    const size_t end = std::min(text.find_first_of(", \t"), text.size());
    if (end > 0) rules.push_back(upper_case(text.substr(0, end)));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return rules;
}

Finding about(const Suppression& suppression, const Rule& rule, std::string_view file, std::string message) {
  return {&rule, std::string(file), suppression.line, suppression.column, std::move(message)};
}

}  // namespace

std::string_view severity_name(Severity severity) {
  constexpr std::string_view kNames[] = {"note", "warning", "error"};
  return kNames[static_cast<size_t>(severity)];
}

const Rule* find_rule(std::span<const Rule> rules, std::string_view id) {
  const std::string wanted = upper_case(id);
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.id == wanted; });
  return found == rules.end() ? nullptr : &*found;
}

void sort_findings(std::vector<Finding>& findings) {
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.file, a.line, a.column, a.data.episode, a.data.row, a.rule->id) <
           std::tie(b.file, b.line, b.column, b.data.episode, b.data.row, b.rule->id);
  });
}

std::string finding_text(const Finding& finding) {
  std::string place = one_line(finding.file);
  if (finding.line > 0) place += fmt::format(":{}", finding.line);
  if (finding.line > 0 && finding.column > 0) place += fmt::format(":{}", finding.column);
  return fmt::format("{}: {}: {}{} [{}]\n    why: {}\n    fix: {}\n", place, severity_name(finding.severity()),
                     data_text(finding.data), one_line(finding.message), finding.rule->id, finding.rule->reason,
                     one_line(finding.advice()));
}

Json finding_json(const Finding& finding) {
  Json object{{"type", "lint"},
              {"file", finding.file},
              {"line", place_or_null(finding.line)},
              {"column", place_or_null(finding.line > 0 ? finding.column : 0)},
              {"severity", severity_name(finding.severity())},
              {"rule", finding.rule->id},
              {"message", finding.message},
              {"reason", finding.rule->reason},
              {"fix", finding.advice()},
              {"source", finding.rule->source}};
  add_data(finding.data, object);
  return object;
}

std::string sarif_log(std::string_view tool_version, std::span<const Rule> rules, std::span<const Finding> findings) {
  Json driver{{"name", "millrace"}, {"version", tool_version}, {"rules", Json::array()}};
  for (const Rule& rule : rules) driver["rules"].push_back(sarif_rule(rule));
  Json results = Json::array();
  for (const Finding& finding : findings) results.push_back(sarif_result(finding, rules));
  const Json run{{"tool", {{"driver", driver}}}, {"columnKind", "unicodeCodePoints"}, {"results", results}};
  const Json log{
      {"$schema", "https://json.schemastore.org/sarif-2.1.0.json"}, {"version", "2.1.0"}, {"runs", Json::array({run})}};
  return log.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string rule_text(const Rule& rule) {
  return fmt::format("{} ({}, {})\n    rule:   {}\n    why:    {}\n    fix:    {}\n    source: {}\n", rule.id,
                     rule.module, severity_name(rule.severity), rule.summary, rule.reason, rule.fix, rule.source);
}

Json rule_json(const Rule& rule) {
  return {{"type", "rule"},        {"id", rule.id},           {"severity", severity_name(rule.severity)},
          {"module", rule.module}, {"summary", rule.summary}, {"reason", rule.reason},
          {"fix", rule.fix},       {"source", rule.source}};
}

std::string rules_markdown(std::span<const Rule> rules) {
  std::string out;
  for (const Rule& rule : rules) {
    out += fmt::format("**{}** ({})\n\n", rule.id, severity_name(rule.severity));
    out += markdown_item("rule", rule.summary) + markdown_item("why", rule.reason) + markdown_item("fix", rule.fix) +
           markdown_item("source", rule.source) + "\n";
  }
  return out;
}

std::optional<Suppression> parse_suppression(std::string_view comment, int64_t line, int64_t column, bool alone) {
  const size_t begin = comment.find_first_not_of("# \t");
  if (begin == std::string_view::npos) return std::nullopt;
  std::string_view text = comment.substr(begin);
  if (!text.starts_with("millrace:")) return std::nullopt;
  text = trimmed(text.substr(text.find(':') + 1));
  constexpr std::string_view kFile = "ignore-file", kHere = "ignore";
  const bool whole_file = text.starts_with(kFile);
  if (!text.starts_with(kHere)) return std::nullopt;
  text.remove_prefix(whole_file ? kFile.size() : kHere.size());
  const size_t dashes = text.find("--");
  Suppression out{.line = line, .column = column, .whole_file = whole_file};
  out.first_line = out.last_line = alone ? line + 1 : line;
  out.rules = rule_list(text.substr(0, dashes));
  if (dashes != std::string_view::npos) out.reason = std::string(trimmed(text.substr(dashes + 2)));
  return out;
}

std::span<const Rule> suppression_rules() {
  return kSuppressionRules;
}

void apply_suppressions(std::vector<Finding>& findings, std::span<const Suppression> suppressions,
                        std::span<const Rule> known, std::string_view file) {
  std::vector<Finding> wrong;
  for (const Suppression& suppression : suppressions) {
    if (suppression.reason.empty()) {
      wrong.push_back(
          about(suppression, kSuppressionRules[0], file, "this comment gives no reason, so it is not obeyed"));
      continue;
    }
    if (suppression.rules.empty()) {
      wrong.push_back(about(suppression, kSuppressionRules[1], file, "this comment names no rule"));
    }
    for (const std::string& id : suppression.rules) {
      if (find_rule(known, id) != nullptr) continue;
      wrong.push_back(about(suppression, kSuppressionRules[1], file, fmt::format("there is no rule {}", id)));
    }
    for (Finding& finding : findings) {
      if (silences(suppression, finding)) finding.suppressed_because = suppression.reason;
    }
  }
  findings.insert(findings.end(), wrong.begin(), wrong.end());
}

FindingCounts count_findings(std::span<const Finding> findings) {
  FindingCounts counts;
  for (const Finding& finding : findings) {
    if (finding.suppressed_because) {
      ++counts.suppressed;
    } else if (finding.severity() == Severity::kError) {
      ++counts.errors;
    } else {
      ++(finding.severity() == Severity::kWarning ? counts.warnings : counts.notes);
    }
  }
  return counts;
}

bool fails(const FindingCounts& counts, FailOn fail_on) {
  if (fail_on == FailOn::kNever) return false;
  return counts.errors > 0 || (fail_on == FailOn::kWarning && counts.warnings > 0);
}

}  // namespace millrace
