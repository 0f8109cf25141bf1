// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/convert.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/base/thread/sync.h"
#include "millrace/episodes/episodes.h"
#include "millrace/episodes/source_files.h"

namespace millrace::episodes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ConvertTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return dir_.path() + "/" + name; }
  void put(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(at(name)).parent_path());
    std::ofstream(at(name), std::ios::binary) << content;
  }
  // Episodes of 0, 1, 2, ... rows with two numbers and a text.
  void put_dataset(int episodes, int times = 1) const {
    for (int i = 0; i < episodes; ++i) {
      std::string text = "t,x,task\n";
      for (int row = 0; row < i * times; ++row) text += fmt::format("{},{},task {}\n", row, row * 0.1 + i, row % 3);
      put(fmt::format("set/episode_{}.csv", i), text);
    }
  }
  ConvertReport convert(const ConvertOptions& options = {}) const {
    const auto report = convert_episodes(at("set"), options);
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? *report : ConvertReport();
  }
  // Every file below a folder but CSV files, with its content.
  std::map<std::string, std::string> outputs() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(at("set"))) {
      if (entry.is_regular_file() && entry.path().extension() != ".csv") {
        found[entry.path().lexically_relative(at("set"))] = content_of(entry.path());
      }
    }
    return found;
  }

  const TempDir dir_{TempDir::Place::kMemory};
};

float number_at(const Episode& episode, size_t row, size_t column) {
  float value = 0;
  std::memcpy(&value, episode.numbers.data() + 4 * (row * episode.columns->numbers.size() + column), sizeof value);
  return value;
}

void expect_dataset(const std::string& path, int episodes) {
  const auto opened = open_episodes(path);
  ASSERT_TRUE(opened) << opened.error().to_string();
  ASSERT_EQ((*opened)->size(), episodes);
  const auto first = (*opened)->first_rows();
  ASSERT_TRUE(first);
  for (int i = 0; i < episodes; ++i) {
    const auto episode = (*opened)->episode(i);
    ASSERT_TRUE(episode) << episode.error().to_string();
    EXPECT_EQ(episode->name, fmt::format("episode_{}", i));
    ASSERT_EQ(episode->rows, i);
    EXPECT_EQ((*first)[static_cast<size_t>(i) + 1] - (*first)[static_cast<size_t>(i)], static_cast<uint64_t>(i));
    EXPECT_THAT(episode->columns->numbers, ElementsAre("t", "x"));
    EXPECT_THAT(episode->columns->texts, ElementsAre("task"));
    for (int row = 0; row < i; ++row) {
      EXPECT_EQ(number_at(*episode, static_cast<size_t>(row), 1), static_cast<float>(row * 0.1 + i));
      EXPECT_EQ((*episode->texts)[0][static_cast<size_t>(row)], fmt::format("task {}", row % 3));
    }
  }
}

TEST_F(ConvertTest, NpzFilesLieBesideTheirSources) {
  put_dataset(12);
  for (const bool compress : {false, true}) {
    const ConvertReport report = convert({.compress = compress});
    EXPECT_EQ(report.converted, 12);
    EXPECT_EQ(report.rows, 66);
    EXPECT_THAT(report.kinds, SizeIs(1));
    EXPECT_THAT(outputs(), SizeIs(12));
    expect_dataset(at("set"), 12);
    const ConvertReport again = convert({.compress = compress});
    EXPECT_EQ(again.kept, 12);
    EXPECT_EQ(again.converted, 0);
  }
  // Another content at another time, as an editor leaves it.
  put("set/episode_1.csv", "t,x,task\n5,6,other\n");
  EXPECT_EQ(convert({.compress = true}).converted, 1);
}

TEST_F(ConvertTest, PackedInOnePartOrInMany) {
  put_dataset(12);
  EXPECT_EQ(convert({.to = ConvertTo::kPacked}).converted, 12);
  EXPECT_THAT(outputs(), SizeIs(1));
  const auto whole = outputs();
  expect_dataset(at("set"), 12);
  EXPECT_EQ(convert({.to = ConvertTo::kPacked}).kept, 12);
  fs::remove(at("set/episodes.mrpack"));
  EXPECT_EQ(convert({.to = ConvertTo::kPacked, .part_bytes = 60}).converted, 12);
  EXPECT_EQ(outputs(), whole) << "parts leave nothing, and change nothing";
  EXPECT_FALSE(fs::exists(at("set/episodes.mrpack.parts")));
}

TEST_F(ConvertTest, AFileThatCannotBeConvertedIsNamedAndTheOthersGoOn) {
  put_dataset(4);
  put("set/episode_2.csv", "t,x,task\n1,2,go\n1,oops,go\n");
  put("set/empty.csv", "");
  for (const auto to : {ConvertTo::kNpz, ConvertTo::kPacked}) {
    const ConvertReport report = convert({.to = to});
    EXPECT_EQ(report.converted, 3);
    ASSERT_THAT(report.failed, SizeIs(2));
    EXPECT_THAT(report.failed[0].error.message(), HasSubstr("empty.csv:1:1: the file is empty"));
    EXPECT_THAT(report.failed[1].error.message(), HasSubstr("episode_2.csv:3:3: \"oops\" in column \"x\""));
    const auto opened = to == ConvertTo::kNpz ? open_episodes(at("set")) : open_episodes(at("set/episodes.mrpack"));
    ASSERT_TRUE(opened);
    EXPECT_THAT((*opened)->names(), ElementsAre("episode_0", "episode_1", "episode_3"));
    // A file that lacks episodes is made again.
    EXPECT_EQ(convert({.to = to}).failed.size(), 2);
  }
  EXPECT_EQ(content_of(at("set/episode_2.csv")), "t,x,task\n1,2,go\n1,oops,go\n");
}

TEST_F(ConvertTest, OtherColumnsAreAnotherKind) {
  put("set/a.csv", "t,x\n1,2\n");
  put("set/b.csv", "t,y\n1,word\n");
  put("set/c.csv", "t,x\n1,3\n");
  const ConvertReport report = convert();
  EXPECT_EQ(report.converted, 3);
  ASSERT_THAT(report.kinds, SizeIs(2));
  EXPECT_EQ(report.kinds[0].files, 2);
  EXPECT_THAT(report.kinds[1].texts, ElementsAre("y"));
  EXPECT_EQ(code_of((*open_episodes(at("set")))->episode(1)), ErrorCode::kInvalidArgument);
  const ConvertReport packed = convert({.to = ConvertTo::kPacked});
  ASSERT_THAT(packed.failed, SizeIs(1));
  EXPECT_THAT(packed.failed[0].error.message(), HasSubstr("it lacks x and has also y"));
}

TEST_F(ConvertTest, TypesAreDecidedOnceForAllFiles) {
  put("set/a.csv", "x,s\n");
  put("set/b.csv", "x,s\n1,word\n");
  put("set/c.csv", "x,s\nword,word\n");
  const ConvertReport report = convert();
  EXPECT_EQ(report.converted, 2);
  ASSERT_THAT(report.failed, SizeIs(1));
  EXPECT_THAT(report.failed[0].error.message(), HasSubstr("c.csv:2:1: \"word\" in column \"x\" is not a number"));
  EXPECT_THAT((*open_episodes(at("set/a.npz")))->columns().texts, ElementsAre("s"));
}

TEST_F(ConvertTest, FilesOfOtherProgramsAreNotReplaced) {
  put_dataset(2);
  put("set/episode_1.npz", "mine");
  put("set/episodes.mrpack", "mine too");
  const ConvertReport report = convert();
  ASSERT_THAT(report.failed, SizeIs(1));
  EXPECT_THAT(report.failed[0].error.message(), HasSubstr("another program wrote it"));
  EXPECT_EQ(content_of(at("set/episode_1.npz")), "mine");
  EXPECT_EQ(code_of(convert_episodes(at("set"), {.to = ConvertTo::kPacked})), ErrorCode::kAlreadyExists);
  EXPECT_EQ(content_of(at("set/episodes.mrpack")), "mine too");
}

TEST_F(ConvertTest, ADryRunWritesNoFileAndKnowsTheSize) {
  put_dataset(5);
  for (const auto to : {ConvertTo::kNpz, ConvertTo::kPacked}) {
    const ConvertReport dry = convert({.to = to, .dry_run = true});
    EXPECT_EQ(dry.converted, 5);
    EXPECT_THAT(outputs(), SizeIs(0));
    EXPECT_EQ(convert({.to = to}).output_bytes, dry.output_bytes);
    for (const auto& [name, _] : outputs()) fs::remove(at("set/" + name));
  }
}

TEST_F(ConvertTest, LargeValuesThatFloat32RoundsAreNamed) {
  put("set/a.csv", "t,x\n1,2\n1700000000.5,3\n");
  const ConvertReport report = convert();
  ASSERT_THAT(report.rounded, SizeIs(1));
  EXPECT_EQ(report.rounded[0].column, "t");
  EXPECT_EQ(report.rounded[0].row, 1);
  EXPECT_THAT(convert({.is_float64 = true}).rounded, SizeIs(0));
}

TEST_F(ConvertTest, OneFileAPatternAnotherFolder) {
  put_dataset(3);
  ConvertOptions options{.output = at("out")};
  ASSERT_TRUE(convert_episodes(at("set/episode_2.csv"), options));
  EXPECT_TRUE(fs::exists(at("out/episode_2.npz")));
  EXPECT_EQ(convert_episodes(at("set/episode_[01].csv"), options)->converted, 2);
  EXPECT_EQ(convert_episodes(at("set/episode_1.csv"), {.to = ConvertTo::kPacked})->output, at("set/episode_1.mrpack"));
  EXPECT_EQ(code_of(convert_episodes(at("none"), options)), ErrorCode::kNotFound);
}

// Kills a run at random moments until one comes through; its outputs are those of a run that was not disturbed.
TEST_F(ConvertTest, AKilledRunLeavesNothingHalfAndTheNextGoesOn) {
  SCOPED_TRACE(test_seed());
  std::mt19937_64 random(test_seed());
  put_dataset(24, 30);
  const auto clear = [&] {
    for (const auto& [name, _] : outputs()) fs::remove(at("set/" + name));
  };
  for (const auto to : {ConvertTo::kNpz, ConvertTo::kPacked}) {
    clear();
    ConvertOptions options{.to = to, .threads = 2, .part_bytes = 40'000};
    convert(options);
    const auto expected = outputs();
    int killed = 0;
    int64_t kept = 0;
    for (int turn = 0; turn < rounds(5); ++turn) {
      clear();
      for (int64_t pause_us = 2000;; pause_us *= 2) {
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) ::_exit(convert_episodes(at("set"), options) ? 0 : 1);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<uint64_t>(pause_us)));
        ::kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        const bool finished = !WIFSIGNALED(status);
        killed += finished ? 0 : 1;
        // What has its name is whole.
        for (const auto& [name, content] : outputs()) {
          ASSERT_TRUE(!expected.contains(name) || content == expected.at(name)) << name;
        }
        if (finished) break;
        const auto report = convert_episodes(at("set"), {.to = to, .dry_run = true, .part_bytes = 40'000});
        ASSERT_TRUE(report);
        kept += report->kept;
      }
      EXPECT_EQ(convert(options).kept, 24);
      auto found = outputs();
      for (const auto& [name, content] : expected) ASSERT_TRUE(found[name] == content) << name;
    }
    EXPECT_GT(killed, 0);
    std::cout << killed << " kills, " << kept << " files kept\n";
  }
}

// Stops a run when `items` files are read; false when it was faster.
bool is_stopped_after(const std::string& source, ConvertOptions options, int64_t items) {
  Progress progress;
  std::stop_source stop;
  std::atomic<bool> done = false;
  options.progress = &progress;
  options.stop = stop.get_token();
  const Thread stopper("stopper", [&] {
    while (progress.snapshot().items < items && !done) std::this_thread::yield();
    stop.request_stop();
  });
  const auto report = convert_episodes(source, options);
  done = true;
  return code_of(report) == ErrorCode::kCancelled;
}

TEST_F(ConvertTest, PartsOfAnEarlierRunAreTaken) {
  const ConvertOptions options{.to = ConvertTo::kPacked, .threads = 1, .part_bytes = 5'000};
  int episodes = 30;
  for (put_dataset(episodes, 10); !is_stopped_after(at("set"), options, 12); put_dataset(episodes, 10)) {
    ASSERT_LT(episodes *= 2, 1000) << "never stopped";
    fs::remove(at("set/episodes.mrpack"));
  }
  EXPECT_FALSE(fs::exists(at("set/episodes.mrpack")));
  const ConvertReport report = convert(options);
  EXPECT_GT(report.kept, 0);
  EXPECT_EQ(report.kept + report.converted, episodes);
  EXPECT_THAT(outputs(), SizeIs(1));
}

TEST(NaturalOrder, CountsRunsOfDigitsAsNumbers) {
  const std::vector<std::string> right = {"a", "a1", "a01b", "a2", "a10", "a10b", "b/2", "b/10", "b0"};
  for (size_t i = 0; i < right.size(); ++i) {
    for (size_t j = 0; j < right.size(); ++j)
      EXPECT_EQ(natural_less(right[i], right[j]), i < j) << right[i] << right[j];
  }
}

}  // namespace
}  // namespace millrace::episodes
