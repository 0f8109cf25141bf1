// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/accounts.h"

#include <gmock/gmock.h>

#include "millrace/base/testing.h"
#include "millrace/slurm/queue.h"
#include "millrace/slurm/submit.h"

namespace millrace::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Constructed after sacctmgr(1) and print.c of 22.05 to 25.05; tests/e2e/test_job_accounting.py asks a real one.
TEST(Accounts, ReadsAssociationsAndQos) {
  const auto associations = parse_associations(
      "physics||high,normal|normal|2-00:00:00|||cpu=64,gres/gpu=8||gres/gpu=32\nteaching|debug|normal||||||4|\n");
  ASSERT_TRUE(associations) << associations.error().to_string();
  ASSERT_EQ(associations->size(), 2U);
  EXPECT_EQ((*associations)[0].account, "physics");
  EXPECT_THAT((*associations)[0].qos, ElementsAre("high", "normal"));
  EXPECT_EQ((*associations)[0].limits.find("GrpTRES")->second, "gres/gpu=32");
  EXPECT_EQ((*associations)[0].limits.count("MaxJobs"), 0U);
  EXPECT_EQ((*associations)[1].partition, "debug");

  const auto qos = parse_qos("normal|||gres/gpu=8|4||||||\nhigh|1:00:00|||||||||\n");
  ASSERT_TRUE(qos);
  const Accounts accounts{*associations, *qos, {}};
  ASSERT_NE(accounts.find_qos("normal"), nullptr);
  EXPECT_EQ(accounts.find_qos("normal")->limits.find("MaxTRESPerUser")->second, "gres/gpu=8");
  EXPECT_EQ(accounts.find_qos("none"), nullptr);
  EXPECT_THAT(parse_qos("normal|x").error().to_string(), HasSubstr("2 fields"));
}

TEST(Accounts, AnAccountHasTheLimitsOfThoseAboveIt) {
  const auto above = parse_account_limits("root|||||\nlab|root||||gres/gpu=32\nteam|lab|1:00:00|||\nloop|loop||||\n");
  ASSERT_TRUE(above) << above.error().to_string();
  const Accounts accounts{.associations = {}, .qos = {}, .accounts = *above};
  const auto names = [&](std::string_view account) {
    std::vector<std::string> found;
    for (const AccountLimits* each : accounts.lineage(account)) found.push_back(each->account);
    return found;
  };
  EXPECT_THAT(names("team"), ElementsAre("team", "lab", "root"));
  EXPECT_EQ(accounts.lineage("team")[1]->limits.at("GrpTRES"), "gres/gpu=32");
  EXPECT_THAT(names("none"), ElementsAre());
  EXPECT_EQ(names("loop").size(), accounts.accounts.size());  // and no further
}

TEST(Accounts, ReadsCountsOfResources) {
  const auto counts = parse_tres("cpu=64,mem=2T,gres/gpu=8,billing=");
  EXPECT_EQ(counts.at("cpu"), 64);
  EXPECT_EQ(counts.at("mem"), 2 * 1024 * 1024);
  EXPECT_EQ(counts.at("gres/gpu"), 8);
  EXPECT_EQ(counts.size(), 3U);
}

TEST(HeldResources, CountsGpusOfAllNodes) {
  const auto held = parse_held("ann|high|lab|2|16|gres:gpu:4\nbob|normal|lab|1|8|N/A\n");
  ASSERT_TRUE(held);
  ASSERT_EQ(held->size(), 2U);
  EXPECT_EQ((*held)[0].gpus, 8);
  EXPECT_EQ((*held)[0].cpus, 16);
  EXPECT_EQ((*held)[1].gpus, 0);
  EXPECT_EQ((*held)[1].qos, "normal");
}

TEST(TestedJob, HasTheStartThatSlurmEstimates) {
  ::setenv("TZ", "UTC", 1);
  const TestedJob tested = parse_tested(true, "Job 3 to start at 2026-11-25T04:43:50 using 32 processors on nodes n1");
  EXPECT_EQ(tested.start, parse_local_time("2026-11-25T04:43:50"));
  EXPECT_FALSE(parse_tested(false, "allocation failure: to start at 2026-11-25T04:43:50").start);
}

}  // namespace
}  // namespace millrace::slurm
