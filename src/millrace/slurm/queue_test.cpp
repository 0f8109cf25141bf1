// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/queue.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "millrace/slurm/commands.h"
#include "millrace/slurm/submit.h"

namespace millrace::slurm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// As 22.05.8 printed it.
constexpr std::string_view kQueue =
    "1_1|main|COMPLETED|None|1|1|2026-11-25T04:43:50|2026-11-25T04:43:53|2026-11-25T04:44:23|0:30|UNLIMITED|root|n1|"
    "(null)|s.sh\n"
    "4|main|FAILED|NonZeroExitCode|1|1|2026-11-25T04:45:46|2026-11-25T04:45:46|2026-11-25T04:45:46|0:00|1:00:00|root|"
    "n1|"
    "(null)|a|b\n"
    "6|main|PENDING|DependencyNeverSatisfied|2|8|2026-11-25T04:45:46|N/A|N/A|0:00|UNLIMITED|root||afterok:4(failed)|f\n"
    "7_[3-100%2]|main|PENDING|JobArrayTaskLimit|1|1|2026-11-25T04:45:46|N/A|N/A|0:00|2-00:00:00|root||(null)|s.sh\n"
    "7_1|main|RUNNING|None|1|1|2026-11-25T04:45:46|2026-11-25T04:45:46|NONE|1-00:00:02|UNLIMITED|root|n1|(null)|s.sh\n";

class Utc : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

TEST_F(Utc, QueueLines) {
  const auto jobs = parse_queue(kQueue);
  ASSERT_TRUE(jobs) << jobs.error().to_string();
  ASSERT_EQ(jobs->size(), 5U);
  const JobState& element = (*jobs)[0];
  EXPECT_EQ(element.base_id, "1");
  EXPECT_EQ(element.reason, "");
  EXPECT_EQ(element.nodes, "n1");
  EXPECT_EQ(element.ended, 1795581863);
  EXPECT_EQ(*element.ended - *element.started, 30);
  EXPECT_EQ(element.elapsed_s, 30);
  EXPECT_FALSE(element.limit_s);
  EXPECT_TRUE(is_ended(element.state));
  EXPECT_EQ((*jobs)[1].name, "a|b");
  EXPECT_EQ((*jobs)[1].limit_s, 3600);
  EXPECT_EQ((*jobs)[2].dependency, "afterok:4(failed)");
  EXPECT_FALSE((*jobs)[2].started);
  EXPECT_FALSE(is_ended((*jobs)[2].state));
  EXPECT_EQ((*jobs)[3].base_id, "7");
  EXPECT_EQ((*jobs)[3].tasks, 98);
  EXPECT_EQ((*jobs)[4].elapsed_s, 86402);
  EXPECT_FALSE((*jobs)[4].ended);
}

TEST(SlurmQueue, ShortLinesAreNotBelieved) {
  const auto jobs = parse_queue("12|main|RUNNING\n");
  ASSERT_FALSE(jobs);
  EXPECT_EQ(jobs.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(jobs.error().message(), HasSubstr("3 fields for 15"));
}

TEST(SlurmQueue, ElementsOfAnArrayAreCounted) {
  EXPECT_EQ(count_tasks("7"), 1);
  EXPECT_EQ(count_tasks("7_3"), 1);
  EXPECT_EQ(count_tasks("7_[3]"), 1);
  EXPECT_EQ(count_tasks("7_[1,3-9:2%4]"), 5);
  EXPECT_EQ(count_tasks("7_[0-999]"), 1000);
  EXPECT_EQ(base_id("7_[3-100%2]"), "7");
  EXPECT_EQ(base_id("7+1"), "7");  // a part of a heterogeneous job
}

TEST(SlurmQueue, ExitsOfBothForms) {
  std::vector<JobState> jobs{{.id = "1_2"}, {.id = "4"}, {.id = "5"}};
  const std::string pad(61, ' ');
  add_exits("1_2" + pad + "0               \n4  " + pad + "768             \n5  " + pad + "0:9\n9  " + pad + "1\n",
            jobs);
  EXPECT_THAT((std::vector{jobs[0].exit, jobs[1].exit, jobs[2].exit}), ElementsAre("0:0", "3:0", "0:9"));
}

// Built after sacct(1) of 22.05 and 24.11; no accounting was asked.
TEST_F(Utc, AccountingLines) {
  const auto jobs = parse_accounting(
      "12|main|CANCELLED by 1000|None|2|64|2026-11-25T04:00:00|2026-11-25T04:01:00|2026-11-25T05:01:00|3600|120|ann|"
      "n[1-2]|0:15|train\n"
      "13_4|main|OUT_OF_MEMORY|None|1|1|2026-11-25T04:00:00|Unknown|Unknown|0|UNLIMITED|ann|None assigned|0:125|x\n");
  ASSERT_TRUE(jobs) << jobs.error().to_string();
  EXPECT_EQ((*jobs)[0].state, "CANCELLED");
  EXPECT_EQ((*jobs)[0].elapsed_s, 3600);
  EXPECT_EQ((*jobs)[0].limit_s, 7200);
  EXPECT_EQ((*jobs)[0].exit, "0:15");
  EXPECT_EQ((*jobs)[0].nodes, "n[1-2]");
  EXPECT_EQ((*jobs)[1].base_id, "13");
  EXPECT_EQ((*jobs)[1].nodes, "");
  EXPECT_FALSE((*jobs)[1].limit_s);
}

TEST(SlurmSubmit, JobIdsAreRead) {
  EXPECT_EQ(parse_submitted("15\n")->id, "15");
  EXPECT_EQ(parse_submitted("15;east\n")->cluster, "east");
  EXPECT_FALSE(parse_submitted("Submitted batch job 15\n"));
  EXPECT_FALSE(parse_submitted(""));
}

TEST(SlurmCommands, ReasonsAreOneLine) {
  const CommandOutput output{.err =
                                 "sbatch: error: invalid partition specified: zz\nsbatch: error: Batch job "
                                 "submission failed: Invalid partition name specified\n"};
  EXPECT_EQ(reason_of(output),
            "invalid partition specified: zz; Batch job submission failed: Invalid partition name specified");
}

}  // namespace
}  // namespace millrace::slurm
