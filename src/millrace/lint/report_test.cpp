// SPDX-License-Identifier: Apache-2.0
#include "millrace/lint/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr Rule kReportRules[] = {
    {"XX01", Severity::kError, "test", "", "", "The rule's fix.", ""},
    {"XX02", Severity::kWarning, "test", "", "", "", ""},
};

struct TextPlace {
  int64_t line = 0, column = 0;
};

TEST(FindingReport, GivesFindingsInTheOrderOfPlaces) {
  FindingReport report(kReportRules, "script");
  report.add("XX02", TextPlace{7, 2}, "second");
  report.add("XX02", {.file = "a table", .data = {.episode = 3}}, "of another file", "Its own fix.", Severity::kError);
  report.add(kReportRules[0], {.line = 1}, "first");
  EXPECT_EQ(report.errors_so_far(), 2);
  const auto found = report.take();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].message, "of another file");
  EXPECT_EQ(found[0].file, "a table");
  EXPECT_EQ(found[0].data.episode, 3);
  EXPECT_EQ(found[0].severity(), Severity::kError);
  EXPECT_EQ(found[0].advice(), "Its own fix.");
  EXPECT_EQ(found[1].message, "first");
  EXPECT_EQ(found[1].file, "script");
  EXPECT_EQ(found[1].advice(), "The rule's fix.");
  EXPECT_EQ(found[2].rule->id, "XX02");
  EXPECT_EQ(found[2].line, 7);
  EXPECT_EQ(found[2].column, 2);
  EXPECT_TRUE(report.take().empty());
}

TEST(FindingReport, SaysHowMuchALimitLeftOut) {
  FindingReport report(kReportRules, "script", {.kept = 5, .shown = 2, .way_out = "--all shows up to 5"});
  for (int64_t line = 9; line > 0; --line) report.add("XX01", {.line = line}, "here");
  report.add("XX02", {.line = 1}, "alone");
  const auto found = report.take();
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].file, ".");
  EXPECT_THAT(found[0].message, HasSubstr("7 more findings of this rule are not shown (--all shows up to 5)"));
  EXPECT_EQ(found[1].message, "alone");
  EXPECT_EQ(found[2].line, 5);  // 9 to 5 were kept
  EXPECT_EQ(found[3].line, 6);
  EXPECT_EQ(report.errors_so_far(), 9);
}

}  // namespace
}  // namespace millrace
