// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "millrace/bench/rank_io.h"
#include "millrace/bench/storage_bench.h"
#include "millrace/bench/workplace.h"

namespace millrace::bench {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

class Bench : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/var/tmp/bench-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& each : fs::directory_iterator(folder_)) found.push_back(each.path().filename());
    return found;
  }
  StorageConfig small_config() const {
    StorageConfig config;
    config.mounts = {folder_};
    config.folders = {folder_ + "/work"};
    config.ranks = 2;
    config.depth = 4;
    config.file_bytes = 4 << 20;
    config.small_bytes = 16 << 10;
    config.files = 20;
    config.test_seconds = 200ms;
    config.rounds = 2;
    return config;
  }

  std::string folder_;
};

TEST_F(Bench, EveryTestGivesARateAndLeavesNoData) {
  const StorageConfig config = small_config();
  Meeting meeting(folder_, 0, 1, 5ms, 10s);
  std::vector<TestResult> results;
  ASSERT_TRUE(run_storage_bench(config, meeting, [&](const TestResult& each) { results.push_back(each); }, {}));
  std::vector<std::string> tests;
  for (const TestResult& result : results) {
    tests.push_back(result.test);
    EXPECT_EQ(result.rates.size(), 2U) << result.test;
    EXPECT_GT(result.least(), 0) << result.test;
    EXPECT_LE(result.median(), result.most()) << result.test;
    EXPECT_GE(result.slowest_share, 0) << result.test;
    EXPECT_LE(result.slowest_share, 1) << result.test;
    EXPECT_LE(result.p50_s, result.p99_s) << result.test;
    EXPECT_EQ(result_of(result.to_json()).to_json(), result.to_json());
  }
  EXPECT_THAT(tests, ElementsAre("write", "write, shared file", "read, one stream", "read", "read random 4 KiB",
                                 "read random 128 KiB", "read beside writes", "read small files", "checkpoint write",
                                 "checkpoint read", "create files", "stat files", "unlink files"));
  EXPECT_EQ(results[2].ranks, 1);
  EXPECT_EQ(results[4].ranks, 4);
  EXPECT_EQ(results[6].ranks, 1) << "readers only";
  for (const auto& each : fs::recursive_directory_iterator(folder_)) EXPECT_TRUE(each.is_directory()) << each.path();
}

TEST_F(Bench, NodesMeetAndReadWhatOthersWrote) {
  StorageConfig config = small_config();
  config.metadata = config.checkpoint = false;
  std::vector<TestResult> results;
  std::vector<std::thread> nodes;
  std::array<Status, 3> ends;
  for (int node = 0; node < 3; ++node) {
    nodes.emplace_back([&, node] {
      Meeting meeting(folder_, node, 3, 50ms, 20s);
      ends[static_cast<size_t>(node)] =
          run_storage_bench(config, meeting, [&](const TestResult& each) { results.push_back(each); }, {});
    });
  }
  for (std::thread& each : nodes) each.join();
  for (const Status& end : ends) ASSERT_TRUE(end) << end.error().to_string();
  ASSERT_EQ(results.size(), 8U);
  EXPECT_EQ(results[3].test, "read");
  EXPECT_EQ(results[3].ranks, 6);
  EXPECT_FALSE(results[3].own_data);
  EXPECT_GT(results[3].start_spread_s, 0);
}

TEST_F(Bench, ANodeThatDoesNotComeIsNamed) {
  Meeting meeting(folder_, 0, 2, 1ms, 1s);
  const auto begin = meeting.agree("first", {});
  ASSERT_FALSE(begin);
  EXPECT_EQ(begin.error().code(), ErrorCode::kTimeout);
  EXPECT_THAT(begin.error().to_string(), HasSubstr("node 1 did not come within 1 s"));
}

TEST_F(Bench, SpaceIsCheckedBefore) {
  StorageConfig config = small_config();
  EXPECT_TRUE(check_space(config, 1));
  config.limit_bytes = 1 << 20;
  EXPECT_EQ(check_space(config, 1).error().code(), ErrorCode::kResourceExhausted);
  config.limit_bytes = int64_t{1} << 62;
  config.file_bytes = int64_t{1} << 50;
  EXPECT_THAT(check_space(config, 1).error().message(), HasSubstr("more than half of the"));
}

TEST_F(Bench, AWorkplaceIsRemovedAndALeftOneIsFound) {
  {
    auto place = Workplace::make({folder_});
    ASSERT_TRUE(place);
    std::ofstream(place->folders()[0] + "/data") << "x";
    EXPECT_EQ(names().size(), 1U);
    EXPECT_EQ(*remove_left_folders(folder_), 0) << "one in use stays";
    EXPECT_EQ(names().size(), 1U);
  }
  EXPECT_THAT(names(), IsEmpty());
  fs::create_directories(folder_ + "/.millrace-bench-gone-1-0/node-0");
  EXPECT_EQ(*remove_left_folders(folder_), 1);
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_EQ(Workplace::make({folder_ + "/none"}).error().code(), ErrorCode::kNotFound);
}

TEST_F(Bench, AKilledTestIsCleanedUpByItsChild) {
  const pid_t child = fork();
  if (child == 0) {
    auto place = Workplace::make({folder_});
    std::ofstream(place->folders()[0] + "/data") << "x";
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  for (int i = 0; i < 2000 && !names().empty(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Bench, APageThatCannotBeDroppedIsCounted) {
  const std::string path = folder_ + "/a";
  RankIo io(1 << 20, 1, false);
  ASSERT_TRUE(io.write(path, 0, 8 << 20, true, {Clock::time_point::max(), {}}));
  const double cached = drop_cache(path);  // written durably, so pages can go
  EXPECT_LT(cached, 8 << 20);
  RankIo again(1 << 20, 1, false);
  ASSERT_TRUE(again.read(path, {Clock::time_point::max(), {}}));
  EXPECT_EQ(again.take_outcome().bytes, 8 << 20);
}

TEST(Meaning, UsesThePlannersFormulas) {
  const auto result = [](const char* test, double rate, int ranks) {
    TestResult made;
    made.mount = "/fsx";
    made.test = test;
    made.unit = "B/s";
    made.ranks = ranks;
    made.rates = {rate};
    made.request_bytes = 1 << 20;
    return made;
  };
  const auto all =
      meanings({result("read", 5.72e9, 4), result("read, one stream", 1.43e9, 1), result("checkpoint write", 1e9, 4)},
               {.checkpoint_bytes = 98e9, .gpus = 64});
  std::string text;
  for (const Meaning& each : all)
    text += fmt::format("{} | {} | {} | {}\n", each.mount, each.what, each.value, each.formula);
  EXPECT_THAT(text, HasSubstr("3D U-Net (whole files of 147 MB) | 2.0 |"));
  EXPECT_THAT(text, HasSubstr("1,430,000,000 tokens/s"));
  EXPECT_THAT(text, HasSubstr("a checkpoint of 98.0 GB | 1m 38s | 98.0 GB / 1.00 GB/s"));
  EXPECT_THAT(text, HasSubstr("4 streams read 4.0 times what one reads"));
  EXPECT_THAT(text, HasSubstr("best time between checkpoints of 64 GPUs"));
}

}  // namespace
}  // namespace millrace::bench
