// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
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
  EXPECT_THAT(tests, ElementsAre("write", "write, shared file", "read, one stream", "read, one file", "read",
                                 "read random 4 KiB", "read random 128 KiB", "write random 4 KiB",
                                 "write random 128 KiB", "read beside writes", "read small files", "checkpoint write",
                                 "checkpoint read", "create files", "stat files", "unlink files"));
  EXPECT_EQ(results[2].ranks, 1);
  EXPECT_EQ(results[3].ranks, 2);
  EXPECT_EQ(results[5].ranks, 4);
  EXPECT_EQ(results[7].unit, "writes/s");
  EXPECT_EQ(results[9].ranks, 1) << "readers only";
  for (const auto& each : fs::recursive_directory_iterator(folder_)) EXPECT_TRUE(each.is_directory()) << each.path();
}

TEST_F(Bench, ASweepGoesOverRequestsAtOnceAndSizesOfFiles) {
  StorageConfig config = small_config();
  config.training = config.checkpoint = config.metadata = false;
  config.sweep = true;
  config.depth = 5;
  config.test_seconds = 50ms;
  Meeting meeting(folder_, 0, 1, 5ms, 10s);
  std::vector<TestResult> results;
  ASSERT_TRUE(run_storage_bench(config, meeting, [&](const TestResult& each) { results.push_back(each); }, {}));
  std::vector<std::string> tests;
  for (const TestResult& result : results) {
    tests.push_back(fmt::format("{}: {} {}, {} ranks, {}", result.test, result.sweep, result.place, result.ranks,
                                result.request_bytes));
    EXPECT_GT(result.least(), 0) << result.test;
    EXPECT_EQ(result_of(result.to_json()).to_json(), result.to_json());
  }
  EXPECT_THAT(
      tests,
      ElementsAre(
          "read random 4 KiB, depth 1: depth 1, 1 ranks, 4096", "write random 4 KiB, depth 1: depth 1, 1 ranks, 4096",
          "read random 4 KiB, depth 4: depth 4, 4 ranks, 4096", "write random 4 KiB, depth 4: depth 4, 4 ranks, 4096",
          "read random 4 KiB, depth 5: depth 5, 5 ranks, 4096", "write random 4 KiB, depth 5: depth 5, 5 ranks, 4096",
          "write files of 4 KiB: size 4096, 2 ranks, 4096", "read files of 4 KiB: size 4096, 2 ranks, 4096",
          "write files of 64 KiB: size 65536, 2 ranks, 65536", "read files of 64 KiB: size 65536, 2 ranks, 65536",
          "write files of 1 MiB: size 1048576, 2 ranks, 1048576",
          "read files of 1 MiB: size 1048576, 2 ranks, 1048576"));
  for (const auto& each : fs::recursive_directory_iterator(folder_)) EXPECT_TRUE(each.is_directory()) << each.path();
}

TEST_F(Bench, RandomWritesStayInTheirFileAndPartsAreRead) {
  const std::string path = folder_ + "/file";
  const std::stop_token never;
  const RankIo::Until all{Clock::time_point::max(), never};
  RankIo io(64 << 10, 1, false);
  ASSERT_TRUE(io.write(path, 0, 1 << 20, true, all));
  std::ifstream before(path, std::ios::binary);
  const std::string old(std::istreambuf_iterator<char>(before), {});
  RankIo writer(4096, 2, false);
  ASSERT_TRUE(writer.write_random(path, {Clock::now() + 50ms, never}));
  const RankOutcome wrote = writer.take_outcome();
  EXPECT_EQ(wrote.bytes, wrote.operations * 4096);
  EXPECT_EQ(fs::file_size(path), 1U << 20);
  std::ifstream after(path, std::ios::binary);
  EXPECT_NE(std::string(std::istreambuf_iterator<char>(after), {}), old);
  RankIo reader(64 << 10, 3, false);
  ASSERT_TRUE(reader.read_range(path, 128 << 10, 256 << 10, all));
  EXPECT_EQ(reader.take_outcome().bytes, 256 << 10);
  RankIo rest(64 << 10, 3, false);
  ASSERT_TRUE(rest.read_range(path, 960 << 10, 256 << 10, all));
  EXPECT_EQ(rest.take_outcome().bytes, 64 << 10) << "to the end";
  std::ofstream(folder_ + "/short") << "x";
  EXPECT_EQ(writer.write_random(folder_ + "/short", all).error().code(), ErrorCode::kOutOfRange);
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
  ASSERT_EQ(results.size(), 12U);
  EXPECT_EQ(results[4].test, "read, one node");
  EXPECT_EQ(results[4].ranks, 2);
  EXPECT_EQ(results[5].test, "read");
  EXPECT_EQ(results[5].ranks, 6);
  EXPECT_FALSE(results[5].own_data);
  EXPECT_GT(results[5].start_spread_s, 0);
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

// The rates of a mount by test; of several nodes where one was measured beside all.
std::string limit_of(const std::map<std::string, double>& rates) {
  std::vector<TestResult> results;
  for (const auto& [test, rate] : rates) {
    TestResult made;
    made.mount = "/fsx";
    made.test = test;
    made.unit = "B/s";
    made.nodes = rates.contains("read, one node") ? 2 : 1;
    made.ranks = test == "read" ? 4 * made.nodes : 4;
    made.rates = {rate};
    results.push_back(made);
  }
  std::string text;
  for (const Meaning& each : meanings(results, {})) {
    if (each.what.starts_with("what limits")) text += fmt::format("{}: {} ({})\n", each.what, each.value, each.formula);
  }
  return text;
}

TEST(Meaning, SaysWhatLimitsAMount) {
  EXPECT_EQ(limit_of({{"read, one stream", 1e9}, {"read, one file", 2e9}, {"read, one node", 4e9}, {"read", 8e9}}),
            "what limits reading: one client's limit: more nodes read more (2 nodes read 2.0 times what one reads)\n");
  EXPECT_EQ(limit_of({{"read, one stream", 1e9}, {"read, one file", 2e9}, {"read, one node", 4e9}, {"read", 4e9}}),
            "what limits reading: striping: more files, or more stripes of one, read more (4 ranks read 4.00 GB/s of a "
            "file each, 2.00 GB/s of one file)\n");
  EXPECT_EQ(limit_of({{"read, one stream", 1e9}, {"read, one file", 4e9}, {"read", 4e9}}),
            "what limits reading: one stream: more of them read more (4 streams read 4.0 times what one reads)\n");
  EXPECT_EQ(limit_of({{"read, one stream", 1e9}, {"read, one file", 1e9}, {"read", 1.1e9}}),
            "what limits reading: the device or the network: one stream gets all of it (4 streams read 1.1 times what "
            "one reads; --nodes 2 tells one client's limit from the servers')\n");
  EXPECT_THAT(limit_of({{"read", 4e9}, {"read small files", 1e9}}), HasSubstr("what limits small files: metadata"));
  EXPECT_EQ(limit_of({{"read", 4e9}, {"read small files", 4e9}}), "");
}

TEST(Meaning, NamesTheLeastThatIsEnoughInASweep) {
  std::vector<TestResult> results;
  for (const auto& [depth, rate] : std::map<int64_t, double>{{1, 100}, {4, 400}, {16, 950}, {32, 1000}}) {
    TestResult made;
    made.mount = "/fsx";
    made.test = fmt::format("read random 4 KiB, depth {}", depth);
    made.unit = "reads/s";
    made.sweep = "depth";
    made.place = depth;
    made.rates = {rate};
    results.push_back(made);
  }
  const auto all = meanings(results, {});
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].what, "requests at once that random reads need");
  EXPECT_EQ(all[0].value, "16");
  EXPECT_EQ(all[0].formula, "the least of 4 that gives 90 % of the best");
}

}  // namespace
}  // namespace millrace::bench
