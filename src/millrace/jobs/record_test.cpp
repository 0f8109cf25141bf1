// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/record.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "millrace/base/testing.h"

namespace millrace::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Record : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name + ".run.jsonl", std::ios::binary) << text;
  }
  static std::string start(int64_t time, const std::string& more) {
    return fmt::format("{{\"type\":\"start\",\"time\":{},\"name\":\"a\"{}}}\n", time, more);
  }
  TrainingRecord read() { return *read_training(folder_); }

  void SetUp() override {
    char name[] = "/tmp/record-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(Record, ALaterStartTakesTheStepsThatItRepeats) {
  write("1", start(100, ",\"config\":{\"lr\":1}") +
                 "{\"step\":1,\"time\":101,\"train/loss\":3}\n{\"step\":2,\"time\":102,\"train/loss\":2}\n"
                 "{\"step\":3,\"time\":103,\"train/loss\":\"NaN\"}\n{\"type\":\"counters\",\"time\":104,\"loader\":"
                 "{\"tokens\":30}}\n");
  write("2", start(200, ",\"config\":{\"lr\":2}") + "{\"step\":2,\"time\":201,\"train/loss\":2.5}\n" +
                 "{\"type\":\"counters\",\"time\":203,\"loader\":{\"tokens\":12}}\n" +
                 "{\"type\":\"end\",\"time\":204,\"status\":\"requeue\",\"error\":\"\"}\n");
  const TrainingRecord record = read();
  const auto& losses = record.values.at("train/loss");
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_EQ(losses[0].value, 3);
  EXPECT_EQ(losses[1].value, 2.5);
  EXPECT_EQ(record.last_step(), 2);
  EXPECT_EQ(record.seconds(), 4 + 4);
  EXPECT_EQ(record.counted("loader", "tokens"), 42);
  EXPECT_EQ(record.fact("config/lr"), "2");
  EXPECT_EQ(record.status(), "requeue");
}

TEST_F(Record, ATornLineCostsItselfAlone) {
  write("1", start(100, "") + "{\"step\":1,\"time\":101,\"train/loss\":3}\n{\"step\":2,\"ti\n" +
                 "{\"step\":3,\"time\":103,\"train/loss\":1}\n{\"step\":4,\"time\":104,\"train/lo");
  const TrainingRecord record = read();
  EXPECT_EQ(record.last_step(), 3);
  EXPECT_EQ(record.starts[0].broken_lines, 1);
  EXPECT_EQ(record.status(), "");
}

TEST_F(Record, IsNamedWhereThereIsNone) {
  EXPECT_EQ(read_training(folder_).error().code(), ErrorCode::kNotFound);
  write("1", "not a record\n");
  EXPECT_EQ(read_training(folder_).error().code(), ErrorCode::kNotFound);
}

TEST_F(Record, OfANewerVersionIsRefused) {
  write("1", start(100, ",\"version\":2"));
  const auto record = read_training(folder_);
  ASSERT_FALSE(record);
  EXPECT_EQ(record.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(record.error().message(), ::testing::HasSubstr("a newer Millrace reads it"));
}

TEST_F(Record, NotesLieBesideIt) {
  write("1", start(100, ""));
  ASSERT_TRUE(add_note(folder_, "too \"high\""));
  ASSERT_TRUE(add_note(folder_, "second"));
  const TrainingRecord record = read();
  ASSERT_EQ(record.notes.size(), 2U);
  EXPECT_EQ(record.notes[0].text, "too \"high\"");
}

TEST_F(Record, DifferencesAreOfSettingsAndCurves) {
  write("1", start(100, ",\"host\":\"n1\",\"config\":{\"lr\":1,\"seed\":3}") +
                 "{\"step\":1,\"time\":1,\"train/loss\":3}\n{\"step\":2,\"time\":2,\"train/loss\":2}\n");
  const TrainingRecord left = read();
  EXPECT_THAT(compare_trainings(left, left), IsEmpty());
  write("1", start(900, ",\"host\":\"n2\",\"config\":{\"lr\":2,\"seed\":3,\"new\":[1]}") +
                 "{\"step\":1,\"time\":9,\"train/loss\":3}\n{\"step\":2,\"time\":9,\"train/loss\":2.25}\n");
  std::vector<std::string> found;
  for (const Difference& each : compare_trainings(left, read())) {
    found.push_back(each.what + ": " + each.left + " | " + each.right);
  }
  EXPECT_THAT(found, ElementsAre("config/lr: 1 | 2", "config/new: none | [1]",
                                 "train/loss: 2 at step 2 (from step 2 on) | 2.25 at step 2"));
}

TEST_F(Record, IsFoundBelowFoldersAndInTheLedger) {
  std::filesystem::create_directories(folder_ + "/a/b");
  std::ofstream(folder_ + "/a/b/1.run.jsonl") << start(1, "");
  EXPECT_THAT(find_trainings(std::vector{folder_}), ElementsAre(folder_ + "/a/b"));
  const Ledger ledger(folder_ + "/ledger");
  ASSERT_TRUE(remember_training(ledger, "/fsx/a"));
  ASSERT_TRUE(remember_training(ledger, "/fsx/a"));
  EXPECT_THAT(remembered_trainings(ledger), ElementsAre("/fsx/a"));
  const auto contents = ledger.read();  // the ledger of jobs does not mind
  ASSERT_TRUE(contents);
  EXPECT_THAT(contents->damaged, IsEmpty());
}

}  // namespace
}  // namespace millrace::jobs
