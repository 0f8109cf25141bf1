// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/runs.h"

#include <gmock/gmock.h>

#include "millrace/jobs/submit.h"

namespace millrace::jobs {
namespace {

using slurm::JobState;
using testing::ElementsAre;
using testing::Pair;

constexpr int64_t kSubmitted = 1795581830;

LedgerRun run_of(const char* job_id, int64_t submitted = kSubmitted, const char* cluster = "") {
  LedgerRun run;
  run.record.run = std::string("r") + job_id + std::to_string(submitted);
  run.record.name = std::string("name") + job_id;
  run.record.job_id = job_id;
  run.record.submitted = submitted;
  run.record.cluster = cluster;
  return run;
}

JobState line(const char* id, const char* state, int64_t submitted = kSubmitted) {
  return {.id = id,
          .base_id = std::string(slurm::base_id(id)),
          .name = "n",
          .user = "u",
          .state = state,
          .tasks = slurm::count_tasks(id),
          .submitted = submitted};
}

TEST(Runs, AnArrayIsOneRun) {
  const std::vector runs{run_of("7")};
  const std::vector queue{line("7_[3-9]", "PENDING"), line("7_1", "COMPLETED"), line("7_2", "FAILED"),
                          line("8", "RUNNING")};
  const auto states = join_runs(runs, queue, {}, "");
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].state, "PENDING");
  EXPECT_EQ(states[0].name, "name7");
  EXPECT_THAT(states[0].tasks, ElementsAre(Pair("COMPLETED", 1), Pair("FAILED", 1), Pair("PENDING", 7)));
  EXPECT_THAT(states[0].failed_tasks, ElementsAre("7_2"));
  EXPECT_FALSE(has_ended(states[0]));
  EXPECT_EQ(states[1].job_id, "8");
  EXPECT_EQ(states[1].run, nullptr);
}

TEST(Runs, AnArrayWithAFailureHasFailed) {
  const std::vector queue{line("7_1", "COMPLETED"), line("7_2", "TIMEOUT")};
  EXPECT_EQ(join_runs({}, queue, {}, "").at(0).state, "TIMEOUT");
}

TEST(Runs, TheQueueComesBeforeTheLedgerAndThisBeforeTheAccounting) {
  LedgerRun run = run_of("7");
  run.events = {
      {.kind = "end", .time_ns = kSubmitted, .facts = {{"state", "FAILED"}, {"tasks", "FAILED:1"}, {"ended", "5"}}}};
  const std::vector runs{run};
  const std::vector running{line("7", "RUNNING")}, done{line("7", "COMPLETED")};
  EXPECT_EQ(join_runs(runs, running, {}, "").at(0).state, "RUNNING");
  const RunState ended = join_runs(runs, {}, done, "").at(0);
  EXPECT_EQ(ended.state, "FAILED");
  EXPECT_EQ(ended.ended, 5);
  EXPECT_EQ(ended.source, StateSource::kLedger);
  EXPECT_EQ(join_runs(std::vector{run_of("7")}, {}, done, "").at(0).source, StateSource::kAccounting);
  const RunState forgotten = join_runs(std::vector{run_of("7")}, {}, {}, "").at(0);
  EXPECT_EQ(forgotten.state, "");
  EXPECT_EQ(forgotten.source, StateSource::kNone);
}

TEST(Runs, AnIdThatIsUsedAgainBelongsToTheNewestRun) {
  const std::vector runs{run_of("7", kSubmitted - 1'000'000), run_of("7", kSubmitted)};
  const auto states = join_runs(runs, std::vector{line("7", "RUNNING")}, {}, "");
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].state, "");
  EXPECT_EQ(states[1].state, "RUNNING");
  // A job that is much older than the run is not the run's.
  const auto others = join_runs(runs, std::vector{line("7", "RUNNING", kSubmitted - 500'000)}, {}, "");
  ASSERT_EQ(others.size(), 3U);
  EXPECT_EQ(others[1].run, nullptr);
}

TEST(Runs, OtherClustersAreNotJoined) {
  const std::vector runs{run_of("7", kSubmitted, "east"), run_of("7", kSubmitted + 1, "west")};
  const auto states = join_runs(runs, std::vector{line("7", "RUNNING")}, {}, "east");
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].state, "RUNNING");
  EXPECT_EQ(states[1].state, "");
}

TEST(Runs, AreFoundByIdAndName) {
  const LedgerContents contents{{run_of("7"), run_of("8", kSubmitted + 1), run_of("8", kSubmitted + 2)}, {}};
  const std::vector<std::string> typed{"7_3", "name8", contents.runs[0].record.run, "99"};
  const auto ids = job_ids(Ledger("/l"), contents, typed);
  ASSERT_TRUE(ids) << ids.error().to_string();
  EXPECT_THAT(*ids, ElementsAre("7_3", "8", "7", "99"));
  const LedgerContents some = runs_of(contents, *ids);
  ASSERT_EQ(some.runs.size(), 2U);
  EXPECT_EQ(some.runs[1].record.submitted, kSubmitted + 2);
  for (const std::string wrong : {"name9", "", "-1", "_3"}) {
    EXPECT_FALSE(job_ids(Ledger("/l"), contents, std::span(&wrong, 1))) << wrong;
  }
}

TEST(Runs, AfterIsRead) {
  EXPECT_EQ(parse_after("ok:12")->condition, "ok");
  EXPECT_EQ(parse_after("any:12_3")->job_id, "12_3");
  for (const char* wrong : {"12", "ok:", "ok", "after:12", "ok:12,13", "ok:x", ""})
    EXPECT_FALSE(parse_after(wrong)) << wrong;
}

}  // namespace
}  // namespace millrace::jobs
