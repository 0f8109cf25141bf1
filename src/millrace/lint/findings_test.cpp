// SPDX-License-Identifier: Apache-2.0
#include "millrace/lint/findings.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "millrace/base/text/edit_distance.h"
#include "millrace/base/text/strings.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr Rule kRules[] = {
    {"SB01", Severity::kError, "job", "the log's folder exists", "No log otherwise.", "Make it | before.",
     "Slurm 22.05"},
    {"SB02", Severity::kWarning, "job", "ranks inside the task", "All are 0.", "Move it.", "reproduced"},
};

Finding sample(size_t rule, int64_t line, int64_t column = 3) {
  return {&kRules[rule], "a b.sh", line, column, "what is here"};
}

TEST(Findings, TextNamesPlaceReasonAndFix) {
  EXPECT_EQ(finding_text(sample(0, 9, 11)),
            "a b.sh:9:11: error: what is here [SB01]\n    why: No log otherwise.\n    fix: Make it | before.\n");
  Finding whole = sample(1, 0);
  whole.fix = "one\nline \xff";
  whole.severity_here = Severity::kNote;
  EXPECT_EQ(finding_text(whole),
            "a b.sh: note: what is here [SB02]\n    why: All are 0.\n    fix: one\\x0aline \xEF\xBF\xBD\n");
}

TEST(Findings, JsonHasEveryKeyAndNullForNoPlace) {
  const Json object = finding_json(sample(1, 0));
  EXPECT_EQ(object["type"], "lint");
  EXPECT_EQ(object["severity"], "warning");
  EXPECT_TRUE(object["line"].is_null());
  EXPECT_TRUE(object["column"].is_null());
  EXPECT_EQ(finding_json(sample(0, 4))["line"], 4);
}

TEST(Findings, SarifPointsIntoItsRulesAndMarksWhatIsSuppressed) {
  Finding silent = sample(1, 7);
  silent.suppressed_because = "measured";
  const Finding all[] = {sample(0, 9), silent};
  const Json run = Json::parse(sarif_log("1.2", kRules, all))["runs"][0];
  EXPECT_EQ(run["tool"]["driver"]["rules"].size(), 2U);
  EXPECT_EQ(run["results"][1]["ruleIndex"], 1);
  EXPECT_EQ(run["results"][1]["suppressions"][0]["justification"], "measured");
  EXPECT_FALSE(run["results"][0].contains("suppressions"));
  const Json place = run["results"][0]["locations"][0]["physicalLocation"];
  EXPECT_EQ(place["artifactLocation"]["uri"], "a%20b.sh");
  EXPECT_EQ(place["region"]["startLine"], 9);
}

TEST(Findings, MarkdownHasAListARule) {
  EXPECT_THAT(rules_markdown(kRules), HasSubstr("**SB01** (error)\n\n- rule: the log's folder exists\n"
                                                "- why: No log otherwise.\n- fix: Make it | before.\n"
                                                "- source: Slurm 22.05\n\n"));
  EXPECT_THAT(rule_text(kRules[1]), HasSubstr("SB02 (job, warning)\n"));
  EXPECT_EQ(rule_json(kRules[1])["summary"], "ranks inside the task");
}

// A line that begins with a hyphen or "1." would be an item of a list.
TEST(Findings, MarkdownLinesAreShortAndBeginWithNoMarkup) {
  std::string reason;
  for (int i = 0; i < 60; ++i) reason += i % 3 == 0 ? "word " : i % 3 == 1 ? "--flag " : "1. ";
  reason += "end";
  const Rule rule{"SB03", Severity::kError, "job", "short", reason.c_str(), "none", "a test"};
  const std::string text = rules_markdown(std::span(&rule, 1));
  std::string joined;
  for (const std::string_view line : split(text, '\n')) {
    EXPECT_LT(line.size(), 120U) << line;
    EXPECT_FALSE(line.starts_with("  -") || line.starts_with("  1.")) << line;
    joined += trimmed(line);
    joined += ' ';
  }
  EXPECT_THAT(joined, HasSubstr("why: " + reason));
}

TEST(Findings, AReasonSilencesARuleInItsLines) {
  std::vector<Finding> findings{sample(0, 3), sample(0, 4), sample(1, 4)};
  const Suppression here =
      *parse_suppression("# millrace: ignore sb01, SB02 -- the folder is made by the site", 4, 9, false);
  EXPECT_THAT(here.rules, ElementsAre("SB01", "SB02"));
  apply_suppressions(findings, std::span(&here, 1), kRules, "a b.sh");
  EXPECT_FALSE(findings[0].suppressed_because);
  EXPECT_EQ(findings[1].suppressed_because, "the folder is made by the site");
  EXPECT_TRUE(findings[2].suppressed_because);
  const FindingCounts counts = count_findings(findings);
  EXPECT_EQ(counts.errors, 1);
  EXPECT_EQ(counts.suppressed, 2);
}

TEST(Findings, AloneItIsForTheNextLineAndWholeFilesCanBeNamed) {
  EXPECT_EQ(parse_suppression("#millrace: ignore SB01 -- x", 4, 1, true)->first_line, 5);
  const Suppression file = *parse_suppression("# millrace: ignore-file SB01 -- x", 4, 1, true);
  std::vector<Finding> findings{sample(0, 900), sample(0, 0)};
  apply_suppressions(findings, std::span(&file, 1), kRules, "a b.sh");
  EXPECT_EQ(count_findings(findings).suppressed, 2);
  EXPECT_FALSE(parse_suppression("# a millrace: ignore SB01", 1, 1, true));
  EXPECT_FALSE(parse_suppression("#", 1, 1, true));
}

TEST(Findings, WithoutAReasonOrARuleTheCommentIsAFindingItself) {
  std::vector<Finding> findings{sample(0, 5)};
  const Suppression wrong[] = {*parse_suppression("# millrace: ignore SB01", 4, 2, true),
                               *parse_suppression("# millrace: ignore SB99 -- why", 6, 1, true),
                               *parse_suppression("# millrace: ignore -- why", 7, 1, true)};
  apply_suppressions(findings, wrong, kRules, "a b.sh");
  ASSERT_EQ(findings.size(), 4U);
  EXPECT_FALSE(findings[0].suppressed_because);
  EXPECT_EQ(findings[1].rule->id, "IG01");
  EXPECT_EQ(findings[1].line, 4);
  EXPECT_THAT(findings[2].message, HasSubstr("SB99"));
  EXPECT_EQ(findings[3].rule->id, "IG02");
}

TEST(EditDistance, CountsLettersToChange) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("kitten", "SITTING"), 3U);
  EXPECT_EQ(edit_distance("nodes", "nodes"), 0U);
}

TEST(Findings, AreSortedByPlaceAndFailAsTold) {
  std::vector<Finding> findings{sample(1, 9), sample(0, 9), sample(1, 2)};
  sort_findings(findings);
  EXPECT_EQ(findings[0].line, 2);
  EXPECT_EQ(findings[1].rule->id, "SB01");
  EXPECT_TRUE(fails({.errors = 1}, FailOn::kError));
  EXPECT_FALSE(fails({.warnings = 1}, FailOn::kError));
  EXPECT_TRUE(fails({.warnings = 1}, FailOn::kWarning));
  EXPECT_FALSE(fails({.errors = 1}, FailOn::kNever));
  EXPECT_EQ(find_rule(kRules, "sb02"), &kRules[1]);
  EXPECT_EQ(find_rule(kRules, "SB03"), nullptr);
}

}  // namespace
}  // namespace millrace
