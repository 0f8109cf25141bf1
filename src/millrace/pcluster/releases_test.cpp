// SPDX-License-Identifier: Apache-2.0
// The tables of versions hold together, and tell when each thing of 3.13 to 3.16 came or went. The expected values were
// read in the release notes of ParallelCluster, not in these tables.
#include "millrace/pcluster/releases.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "millrace/pcluster/lint.h"
#include "millrace/pcluster/schema.h"

namespace millrace::pcluster {
namespace {

struct KeySpan {
  const char *section, *name, *since, *until;
};
const KeySpan kSpans[] = {
    {"Scheduling.SlurmQueues[].ComputeResources[]", "LaunchTemplateOverrides", "3.15", ""},
    {"Scheduling.SlurmQueues[].ComputeResources[].LaunchTemplateOverrides", "LaunchTemplateId", "3.15", ""},
    {"Scheduling.SlurmQueues[].ComputeResources[].LaunchTemplateOverrides", "Version", "3.15", ""},
    {"HeadNode", "SharedStorageEfsSettings", "3.14", ""},
    {"HeadNode.SharedStorageEfsSettings", "Encrypted", "3.14", ""},
    {"DevSettings.Timeouts", "ComputeInstanceInfoTimeout", "3.16", ""},
    {"DevSettings", "EfaInterfaceType", "3.15", ""},
    {"DevSettings.AmiSearchFilters", "NamePrefix", "3.15", ""},
    {"Scheduling", "AwsBatchQueues", "3.0", "3.16"},
    {"Scheduling", "AwsBatchSettings", "3.0", "3.16"},
    {"DevSettings", "AwsBatchCliPackage", "3.0", "3.16"},
    {"LoginNodes.Pools[].Ssh", "KeyName", "3.7", "3.15"},
    {"", "LoginNodes", "3.7", ""},
    {"Scheduling", "ScalingStrategy", "3.8", ""},
};

TEST(Releases, KeysCameAndWentWhenTheReleaseNotesSay) {
  for (const KeySpan& span : kSpans) {
    const Version since = known_version(span.since);
    const bool gone = *span.until != '\0';
    const Version last = gone ? known_version(span.until) : kKnownVersion;
    EXPECT_NE(find_key(span.section, span.name, since), nullptr) << span.name;
    EXPECT_EQ(find_key(span.section, span.name, last) == nullptr, gone) << span.name;
    if (since > Version{3, 0, 0}) {
      const Version before{3, since.minor - 1, 0};
      EXPECT_EQ(find_key(span.section, span.name, before), nullptr) << span.name;
    }
    EXPECT_NE(find_nearest_key(span.section, span.name, kKnownVersion), nullptr) << span.name;
  }
}

TEST(Releases, EverySectionAndPatternOfTheSchemaIsThere) {
  for (const Key& key : schema()) {
    EXPECT_LT(key.since, key.until) << key.section << "." << key.name;
    EXPECT_TRUE(!key.detail.starts_with('@') || !find_pattern(key.detail).hint.empty());
    if (key.section.empty()) continue;
    const size_t dot = key.section.rfind('.');
    std::string_view name = dot == std::string_view::npos ? key.section : key.section.substr(dot + 1);
    if (name.ends_with("[]")) name.remove_suffix(2);
    const std::string_view above = dot == std::string_view::npos ? "" : key.section.substr(0, dot);
    EXPECT_NE(find_nearest_key(above, name, key.since), nullptr) << key.section;
  }
}

TEST(Releases, LimitsFollowTheVersion) {
  const auto limit = [](const char* kind, const char* version) {
    return release_limit(kind, known_version(version)).value_or(-1);
  };
  EXPECT_EQ(limit("root_volume_gib", "3.12"), 40);
  EXPECT_EQ(limit("root_volume_gib", "3.16.1"), 45);
  EXPECT_EQ(limit("root_volume_gib", "3.16.2"), 50);
  EXPECT_EQ(limit("bootstrap_seconds", "3.12"), 1800);
  EXPECT_EQ(limit("bootstrap_seconds", "3.13"), 2100);
  EXPECT_EQ(limit("login_pools", "3.10"), -1);
  EXPECT_EQ(limit("login_pools", "3.16.3"), 10);
}

TEST(Releases, SystemsFollowTheVersion) {
  const auto has = [](const char* os, const char* version) {
    return has_release_fact("os", os, known_version(version));
  };
  EXPECT_TRUE(has("ubuntu2404", "3.13"));
  EXPECT_FALSE(has("ubuntu2404", "3.12"));
  EXPECT_TRUE(has("ubuntu2004", "3.13"));
  EXPECT_FALSE(has("ubuntu2004", "3.14"));
  EXPECT_TRUE(has("alinux2", "3.15.1"));
  EXPECT_FALSE(has("alinux2", "3.16"));
  EXPECT_EQ(release_values("block_size_p6e-gb200", kKnownVersion).size(), 2U);
}

std::string message_of(const std::string& text, const char* version, std::string_view rule) {
  const auto findings = lint_config(text, {.file = "c.yaml", .version = known_version(version)});
  for (const Finding& finding : *findings) {
    if (finding.rule->id == rule) return finding.message;
  }
  return {};
}

TEST(Releases, AFindingSaysInWhichVersionAKeyCameOrWent) {
  const std::string batch = "Scheduling: {Scheduler: awsbatch}\n";
  EXPECT_EQ(message_of(batch, "3.16.3", "PC06"), "Scheduler: awsbatch went with 3.16 (2026-08-20); this is for 3.16.3");
  EXPECT_EQ(message_of(batch, "3.15", "PC06"), "");
  const std::string ssh = "LoginNodes: {Pools: [{Ssh: {KeyName: a}}]}\n";
  EXPECT_EQ(message_of(ssh, "3.16.3", "PC06"), "KeyName went with 3.15 (2026-03-23); this is for 3.16.3");
  const std::string efs = "HeadNode: {SharedStorageEfsSettings: {Encrypted: true}}\n";
  EXPECT_EQ(message_of(efs, "3.13", "PC06"), "SharedStorageEfsSettings came with 3.14 (2025-09-29); this is for 3.13");
  EXPECT_EQ(message_of("Image: {Os: ubuntu2404}\n", "3.12", "PC05"),
            "ubuntu2404 came with 3.13 (2025-04-01); this is for 3.12");
}

TEST(Releases, TenPoolsOfLoginNodesAreTheMost) {
  const auto with = [](int count) {
    std::string text = "LoginNodes:\n  Pools:\n";
    for (int i = 0; i < count; ++i) text += "    - {Name: p" + std::to_string(i) + "}\n";
    return text;
  };
  EXPECT_EQ(message_of(with(10), "3.16.3", "PC09"), "");
  EXPECT_EQ(message_of(with(11), "3.16.3", "PC09"), "11 pools of login nodes; at most 10");
  EXPECT_EQ(message_of(with(2), "3.10", "PC06"), "a list of 2 in Pools came with 3.11 (2024-09-25); this is for 3.10");
}

TEST(Releases, SeveralSubnetsCameWith34) {
  const std::string two =
      "Scheduling: {Scheduler: slurm, SlurmQueues: [{Networking: {SubnetIds: [subnet-12345678, subnet-12345679]}}]}\n";
  EXPECT_EQ(message_of(two, "3.3", "PC06"), "a list of 2 in SubnetIds came with 3.4 (2022-12-22); this is for 3.3");
  EXPECT_EQ(message_of(two, "3.4", "PC06"), "");
}

TEST(Releases, AQueueHasComputeResources) {
  EXPECT_EQ(message_of("Scheduling: {Scheduler: slurm, SlurmQueues: [{Name: a, Networking: {SubnetIds: "
                       "[subnet-12345678]}}]}\nImage: {Os: rhel9}\nHeadNode: {}\n",
                       "3.16.3", "PC02"),
            "ComputeResources is missing in Scheduling.SlurmQueues[]");
}

TEST(Releases, AccountingElsewhereShortensTheNameToo) {
  const std::string text = "Scheduling: {SlurmSettings: {ExternalSlurmdbd: {Host: h}}}\n";
  const auto lint = [&](const char* version) {
    const auto findings = lint_config(text, {.version = known_version(version), .cluster_name = std::string(41, 'a')});
    return std::any_of(findings->begin(), findings->end(), [](const Finding& f) { return f.rule->id == "PC08"; });
  };
  EXPECT_TRUE(lint("3.16"));
  EXPECT_FALSE(lint("3.15"));
}

}  // namespace
}  // namespace millrace::pcluster
