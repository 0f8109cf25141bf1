// SPDX-License-Identifier: Apache-2.0
// The cluster file of the guide, where the test data has it: each fault is found by its rule, on its line, and nothing
// else is. The places were settled from ParallelCluster's own schema and validators, not from this linter.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "millrace/pcluster/lint.h"

namespace millrace::pcluster {
namespace {

std::string read_guide(const std::string& name) {
  const char* data = std::getenv("MILLRACE_TEST_DATA");
  if (data == nullptr) return {};
  std::ifstream file(std::string(data) + "/guides/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::set<std::string> places(const std::vector<Finding>& findings, Severity least) {
  std::set<std::string> found;
  for (const Finding& finding : findings) {
    if (finding.severity() >= least) found.insert(std::string(finding.rule->id) + ":" + std::to_string(finding.line));
  }
  return found;
}

TEST(GuideConfig, EveryFaultIsFoundOnItsLine) {
  const std::string text = read_guide("cluster-config.yaml");
  if (text.empty()) GTEST_SKIP() << "MILLRACE_TEST_DATA has no guides";
  const auto findings = lint_config(text, {.file = "cluster-config.yaml"});
  ASSERT_TRUE(findings.has_value());
  const std::set<std::string> errors = {
      "PC05:4",                         // Amazon Linux 2 went with 3.16
      "PC03:9",                         // the placeholder that the schema names
      "PC02:16", "PC01:23",             // SlurmQueues outside Scheduling: both of the schema's errors
      "PC01:63",                        // AdditionalIamPolicies in the cluster's Iam
      "PC33:72", "PC33:81", "PC33:90",  // PERSISTENT is no type, three times
      "PC32:78", "PC32:87",             // a second and a third new FSx
      "PC03:11", "PC03:37", "PC03:41", "PC03:56", "PC03:60",  // placeholders that only an account would refuse
  };
  EXPECT_EQ(places(*findings, Severity::kError), errors);
  std::set<std::string> warnings = {
      "PC56:18",                        // best-effort
      "PC17:39",                        // placement group and reservation
      "PC18:50",                        // MinCount 0 of a paid reservation
      "PC27:40", "PC28:40",             // security groups on the queue only; EFA through them
      "PC46:60",                        // the script's bucket cannot be read
      "PC39:73", "PC39:82", "PC39:91",  // MB/s for each TiB, not MB/s
      "PC43:70", "PC43:79", "PC43:88",  // storage that goes with the cluster
      "PC48:19", "PC53:19",             // memory and accounting
      "PC60:6",  "PC61:10", "PC62:48",  // /home, the open door, sockets
  };
  warnings.insert(errors.begin(), errors.end());
  EXPECT_EQ(places(*findings, Severity::kWarning), warnings);
  std::set<std::string> all = {
      "PC19:26",  // lowest-price chooses among one type
      "PC26:37",  // the subnet's size
      "PC44:95",  // detailed monitoring
  };
  all.insert(warnings.begin(), warnings.end());
  EXPECT_EQ(places(*findings, Severity::kNote), all);
}

// Line by line: the queues go into Scheduling, the cluster's policies to the queue, and the file systems get a type
// that exists. What ParallelCluster's schema accepts then has no error of the schema left but for placeholders.
std::string repaired(const std::string& text) {
  std::string out, policies;
  std::istringstream lines(text);
  bool in_queues = false, in_iam = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != ' ') {
      in_queues = line.starts_with("SlurmQueues:");
      in_iam = line.starts_with("Iam:");
    }
    const size_t type = line.find("PERSISTENT");
    if (type != std::string::npos) line.replace(type, 10, "PERSISTENT_2");
    if (in_queues && line.starts_with("    CustomActions:"))
      out += "      Iam: {AdditionalIamPolicies: [{Policy: 'arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess'}]}\n";
    if (!in_iam) out += (in_queues ? "  " : "") + line + "\n";
  }
  return out;
}

TEST(GuideConfig, WhatTheSchemaTakesAfterRepairsIsTakenHere) {
  const std::string text = read_guide("cluster-config.yaml");
  if (text.empty()) GTEST_SKIP() << "MILLRACE_TEST_DATA has no guides";
  const auto findings = lint_config(repaired(text), {.file = "cluster-config.yaml"});
  ASSERT_TRUE(findings.has_value());
  std::set<std::string_view> errors;
  for (const Finding& finding : *findings) {
    if (finding.severity() == Severity::kError) errors.insert(finding.rule->id);
  }
  EXPECT_EQ(errors,
            (std::set<std::string_view>{"PC03", "PC05", "PC32"}));  // placeholders, the system, three file systems
}

TEST(GuideConfig, TheFourthFileSystemOfItsScriptsIsMissed) {
  const std::string text = read_guide("cluster-config.yaml");
  if (text.empty()) GTEST_SKIP() << "MILLRACE_TEST_DATA has no guides";
  ConfigLintOptions options{.file = "cluster-config.yaml"};
  for (const char* name : {"fsx_performance.sbatch", "production.sbatch", "setup_dirs.sh"}) {
    options.scripts.push_back({name, read_guide(name)});
  }
  const auto findings = lint_config(text, options);
  ASSERT_TRUE(findings.has_value());
  std::set<std::string> found;
  for (const Finding& finding : *findings) {
    if (finding.rule->id == "PC41") found.insert(finding.file + ": " + finding.message);
  }
  EXPECT_TRUE(found.contains("fsx_performance.sbatch: /fsx4 is not mounted by cluster-config.yaml"));
}

}  // namespace
}  // namespace millrace::pcluster
