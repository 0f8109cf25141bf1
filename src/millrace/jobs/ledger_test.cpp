// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/ledger.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace millrace::jobs {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr int64_t kTime = 1795581830;  // 2026-11-25T04:43:50Z

class LedgerTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace_ledger_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  Ledger ledger() const { return Ledger((folder_ / "ledger").string()); }

  fs::path folder_;
};

RunRecord full_record() {
  return {.name = "train",
          .job_id = "12",
          .cluster = "east",
          .user = "ann",
          .host = "login",
          .submitted = kTime,
          .work_dir = "/w",
          .script = "/w/a.sbatch",
          .script_hash = "00",
          .script_bytes = 10,
          .secrets_removed = 1,
          .arguments = {"--lr", "1"},
          .options = {"--partition=gpu"},
          .asked = {{"nodes", "2"}},
          .array = "0-3",
          .output = "/w/%j.out",
          .error = "/w/%j.err",
          .git = GitState{"abc", true},
          .millrace = "0.1",
          .environment = {{"NCCL_DEBUG", "WARN"}}};
}

TEST_F(LedgerTest, ARunAndItsEventsComeBack) {
  RunRecord record = full_record();
  ASSERT_TRUE(ledger().prepare(kTime));
  ASSERT_TRUE(ledger().add(record, "#!/bin/bash\n"));
  EXPECT_TRUE(record.run.starts_with("20261125T044350Z-12-")) << record.run;
  ASSERT_TRUE(
      ledger().add_event(record, {.kind = "end", .time_ns = kTime + 9, .user = "ann", .facts = {{"state", "FAILED"}}}));

  const auto contents = ledger().read();
  ASSERT_TRUE(contents) << contents.error().to_string();
  EXPECT_TRUE(contents->damaged.empty());
  ASSERT_EQ(contents->runs.size(), 1U);
  const LedgerRun& run = contents->runs[0];
  EXPECT_EQ(run.record.run, record.run);
  EXPECT_EQ(record_json(run.record), record_json(record));
  ASSERT_NE(run.end(), nullptr);
  EXPECT_THAT(run.end()->facts, ElementsAre(Pair("state", "FAILED")));
  EXPECT_EQ(ledger().script_text(record).value_or(""), "#!/bin/bash\n");
}

TEST_F(LedgerTest, ARequeueUndoesAnEnd) {
  LedgerRun run{full_record(), {{.kind = "end", .time_ns = 1}, {.kind = "requeue", .time_ns = 2}}};
  EXPECT_EQ(run.end(), nullptr);
  run.events.push_back({.kind = "end", .time_ns = 3});
  EXPECT_EQ(run.end()->time_ns, 3);
}

TEST_F(LedgerTest, NoFolderIsAnEmptyLedger) {
  const auto contents = ledger().read();
  ASSERT_TRUE(contents);
  EXPECT_TRUE(contents->runs.empty());
  EXPECT_FALSE(fs::exists(folder_ / "ledger"));
}

TEST_F(LedgerTest, DamageIsNamedAndTheRestIsRead) {
  RunRecord record = full_record();
  ASSERT_TRUE(ledger().add(record, ""));
  const fs::path month = folder_ / "ledger/2026-11";
  std::ofstream(month / "cut.run.json") << "{\"format\": \"millrace-run\", \"ver";
  std::ofstream(month / "newer.run.json") << R"({"format": "millrace-run", "version": 2, "job_id": "1"})";
  std::ofstream(month / "odd.run.json") << R"({"format": "millrace-run", "version": 1, "job_id": 7, "arguments": 3})";
  std::ofstream(month / ".abc.other.run.json") << "half";  // of a writer that died
  const auto contents = ledger().read();
  ASSERT_TRUE(contents);
  EXPECT_EQ(contents->runs.size(), 1U);
  EXPECT_THAT(contents->damaged, ElementsAre(HasSubstr("cut.run.json: not a millrace-run file"),
                                             HasSubstr("newer.run.json: a millrace-run file of another version"),
                                             HasSubstr("odd.run.json: it has no job_id")));
}

TEST_F(LedgerTest, BytesThatAreNotUtf8AreReplaced) {
  RunRecord record = full_record();
  record.arguments = {"a\xff"};
  ASSERT_TRUE(ledger().add(record, "\xff"));
  const auto contents = ledger().read();
  ASSERT_TRUE(contents);
  EXPECT_THAT(contents->runs.at(0).record.arguments, ElementsAre("a\xef\xbf\xbd"));
}

TEST_F(LedgerTest, ManyWritersLoseNoRun) {
  constexpr int kWriters = 8, kEach = 10;
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) {
        RunRecord record = full_record();  // the same second and job id
        EXPECT_TRUE(ledger().add(record, "x"));
        EXPECT_TRUE(ledger().add_event(record, {.kind = "end", .time_ns = kTime}));
        EXPECT_TRUE(ledger().read());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const auto contents = ledger().read();
  ASSERT_TRUE(contents);
  EXPECT_EQ(contents->runs.size(), size_t{kWriters * kEach});
  EXPECT_TRUE(contents->damaged.empty());
  for (const LedgerRun& run : contents->runs) EXPECT_EQ(run.events.size(), 1U);
}

TEST_F(LedgerTest, AFolderThatCannotBeWrittenIsNamed) {
  std::ofstream(folder_ / "ledger") << "a file";
  const Status prepared = ledger().prepare(kTime);
  ASSERT_FALSE(prepared);
  EXPECT_THAT(prepared.error().to_string(), HasSubstr((folder_ / "ledger").string()));
}

}  // namespace
}  // namespace millrace::jobs
