// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/left.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "millrace/jobs/record.h"
#include "millrace/jobs/runs.h"

namespace millrace::jobs {
namespace {

constexpr int64_t kRunSubmitted = 1795581830;

std::string end_text(int exit, bool stopped, const std::string& more = "") {
  return fmt::format(
      "{{\"format\": \"millrace-job-end\", \"version\": 1, \"job_id\": \"7\", \"exit\": {}, \"stopped\": {}, \"step\": "
      "40, \"restarts\": 0, \"nodes\": \"n[1-2]\", \"started\": {}, \"ended\": {}{}}}\n",
      exit, stopped, kRunSubmitted + 10, kRunSubmitted + 70, more);
}

TEST(LeftEnd, AStatusIsAState) {
  const auto good = parse_left_end(end_text(0, false));
  ASSERT_TRUE(good) << good.error().to_string();
  EXPECT_EQ(good->state, "COMPLETED");
  EXPECT_EQ(good->last_step, 40);
  EXPECT_EQ(good->nodes, "n[1-2]");
  EXPECT_EQ(parse_left_end(end_text(3, false))->state, "FAILED");
  EXPECT_EQ(parse_left_end(end_text(3, false))->reason, "");
  // Slurm's TERM: the job cannot tell whether it was cancelled, preempted or at its limit.
  EXPECT_EQ(parse_left_end(end_text(143, true))->state, "CANCELLED");
  EXPECT_EQ(parse_left_end(end_text(143, true))->reason, "StoppedBySlurm");
  // A program that saved and ended well in time has completed.
  EXPECT_EQ(parse_left_end(end_text(0, true))->state, "COMPLETED");
}

TEST(LeftEnd, OtherTextsAreNone) {
  for (const char* text : {"", "{", "[]", "{\"format\": \"millrace-job-end\", \"version\": 1}", "{\"exit\": 3}"}) {
    EXPECT_EQ(parse_left_end(text).error().code(), ErrorCode::kCorruption) << text;
  }
  EXPECT_EQ(parse_left_end("{\"format\": \"millrace-job-end\", \"version\": 2, \"exit\": 0}").error().code(),
            ErrorCode::kUnsupported);
}

class LeftEnds : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/left-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    std::filesystem::create_directories(folder_ + "/logs");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  LedgerRun run(const std::string& job_id = "7") const {
    LedgerRun run;
    run.record.run = "run-" + job_id;
    run.record.job_id = job_id;
    run.record.name = "train";
    run.record.submitted = kRunSubmitted;
    run.record.output = folder_ + "/logs/%x-%j.log";
    return run;
  }
  void leave(const std::string& text) const {
    std::ofstream(folder_ + "/logs/" + left_end_name("7"), std::ios::binary) << text;
  }
  // A training's record, which the ledger knows.
  void train(const std::string& name, int64_t begun, const std::string& more) const {
    const std::string folder = folder_ + "/" + name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/1.run.jsonl", std::ios::binary)
        << fmt::format("{{\"type\":\"start\",\"time\":{},\"name\":\"a\",\"job_id\":\"7\"}}\n", begun) << more;
    ASSERT_TRUE(remember_training(ledger(), folder));
  }
  Ledger ledger() const { return Ledger(folder_ + "/ledger"); }
  std::map<std::string, LeftEnd> find() const {
    const LedgerRun mine = run();
    const LedgerRun* runs[] = {&mine};
    return find_left_ends(ledger(), runs);
  }

  std::string folder_;
};

TEST_F(LeftEnds, AScriptsFileTellsTheState) {
  EXPECT_TRUE(find().empty());
  leave(end_text(3, false));
  const std::vector runs{run()};
  const RunState state = join_runs(runs, {}, {}, "", find()).at(0);
  EXPECT_EQ(state.state, "FAILED");
  EXPECT_EQ(state.exit, "3:0");
  EXPECT_EQ(state.elapsed_s, 60);
  EXPECT_EQ(state.last_step, 40);
  EXPECT_EQ(state.node_count, 2);
  EXPECT_EQ(source_name(state.source), "job");
  // Slurm knows better.
  const std::vector<slurm::JobState> queue{{.id = "7", .base_id = "7", .state = "RUNNING", .submitted = kRunSubmitted}};
  EXPECT_EQ(join_runs(runs, queue, {}, "", find()).at(0).state, "RUNNING");
}

TEST_F(LeftEnds, AnOlderFileIsOfAnotherJob) {
  LedgerRun later = run();
  later.record.submitted = kRunSubmitted + 1000;
  leave(end_text(3, false));
  const LedgerRun* runs[] = {&later};
  EXPECT_TRUE(find_left_ends(ledger(), runs).empty());
}

TEST_F(LeftEnds, ARecordOfATrainingTellsIt) {
  const std::string step = "{\"step\":12,\"time\":1795581900,\"train/loss\":3}\n";
  train("a", kRunSubmitted + 5,
        step + "{\"type\":\"end\",\"time\":1795581901,\"status\":\"failed\",\"error\":\"OSError\"}\n");
  auto found = find();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found["run-7"].state, "FAILED");
  EXPECT_EQ(found["run-7"].reason, "OSError");
  EXPECT_EQ(found["run-7"].last_step, 12);
  EXPECT_FALSE(found["run-7"].exit);
  // A later one that was killed, or still runs: nobody knows how the job ended.
  train("b", kRunSubmitted + 50, step);
  EXPECT_TRUE(find().empty());
  // The script itself knows.
  leave(end_text(0, false));
  EXPECT_EQ(find()["run-7"].state, "COMPLETED");
}

TEST_F(LeftEnds, TheLastLinesOfALongRecordAreEnough) {
  std::string lines;
  for (int step = 1; step <= 3000; ++step) {
    lines += fmt::format("{{\"step\":{},\"time\":{},\"train/loss\":0.125}}\n", step, kRunSubmitted + step);
  }
  ASSERT_GT(lines.size(), 100'000U);
  train("a", kRunSubmitted, lines + "{\"type\":\"end\",\"time\":1795590000,\"status\":\"completed\",\"error\":\"\"}\n");
  const LeftEnd end = find()["run-7"];
  EXPECT_EQ(end.state, "COMPLETED");
  EXPECT_EQ(end.last_step, 3000);
  EXPECT_EQ(end.ended, 1795590000);
}

}  // namespace
}  // namespace millrace::jobs
