// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "millrace/prepare/testing.h"

namespace millrace::prepare {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A task of about ten shards, and what an undisturbed run makes of it.
class Restart : public ::testing::Test {
 protected:
  Restart()
      : seed_(test_seed()), trace_(__FILE__, __LINE__, fmt::format("MILLRACE_TEST_SEED={}", seed_)), random_(seed_) {
    write_file(at("tokenizer.json"), small_tokenizer_json());
    for (int i = 0; i < 4; ++i) write_file(at(fmt::format("raw/{}.txt", i)), random_text(random_, 300));
    options_.inputs = {at("raw")};
    options_.tokenizer = at("tokenizer.json");
    options_.threads = 2;
    options_.shards.shard_bytes = 250'000;
    options_.text_rules.max_invalid_utf8 = 1;  // random text has many
    expect_undisturbed();
  }
  void expect_undisturbed() {
    std::filesystem::remove_all(at("undisturbed"));
    options_.output = at("undisturbed");
    shards_ = std::ssize(done().part.shards);
    expected_ = folder_content(options_.output);
    options_.output = at("out");
  }
  std::string at(std::string_view name) const { return root_.path() + "/" + std::string(name); }
  PrepareReport done() const {
    auto report = prepare(options_);
    EXPECT_TRUE(report) << (report ? "" : report.error().to_string());
    return report ? *report : PrepareReport{};
  }
  void expect_as_expected() const {
    const auto files = folder_content(at("out"));
    EXPECT_EQ(names_of(files), names_of(expected_));
    EXPECT_TRUE(files == expected_);
  }
  static int64_t inode(const std::string& path) {
    struct stat info{};
    return ::stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_ino) : -1;
  }

  uint64_t seed_;
  ::testing::ScopedTrace trace_;
  std::mt19937_64 random_;
  TempDir root_{TempDir::Place::kMemory};
  PrepareOptions options_;
  int64_t shards_ = 0;
  std::map<std::string, std::string> expected_;
};

TEST_F(Restart, OfAFinishedTaskChangesNothing) {
  EXPECT_EQ(done().shards_reused, 0);
  expect_as_expected();
  std::map<std::string, int64_t> inodes;
  for (const auto& [name, content] : expected_) inodes[name] = inode(at("out/" + name));
  const PrepareReport again = done();
  EXPECT_EQ(again.shards_reused, shards_);
  expect_as_expected();
  for (const auto& [name, number] : inodes) EXPECT_EQ(inode(at("out/" + name)), number) << name;
}

TEST_F(Restart, AfterAKillLeavesNothingTwiceAndNothingHalf) {
  int killed = 0;
  const int turns = rounds(20);
  for (int turn = 0; turn < turns; ++turn) {
    if (turn % 2 == 0) {
      std::filesystem::remove_all(at("out"));
    } else {
      // Over the shards of the turn before, which are then of other inputs.
      write_file(at("raw/0.txt"), random_text(random_, 300));
      expect_undisturbed();
      options_.replace = true;
    }
    std::chrono::microseconds pause(1000);
    // Kill it again and again until one run comes through; the pauses grow, so that one does.
    for (bool finished = false; !finished;) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) ::_exit(prepare(options_) ? 0 : 1);
      const auto kill_at = Clock::now() + std::chrono::microseconds(random_() % static_cast<uint64_t>(pause.count()));
      int status = 0;
      while (::waitpid(child, &status, WNOHANG) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        if (Clock::now() >= kill_at) ::kill(child, SIGKILL);
      }
      ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
      finished = !WIFSIGNALED(status);
      killed += WIFSIGNALED(status) ? 1 : 0;
      const Status visible = check_visible(at("out"));
      ASSERT_TRUE(visible) << visible.error().to_string();
      pause = pause * 3;
    }
    expect_as_expected();
  }
  EXPECT_GE(killed, turns);
}

TEST_F(Restart, AfterAStopGoesOnBehindTheFinishedShards) {
  for (int turn = 0; turn < rounds(10); ++turn) {
    std::filesystem::remove_all(at("out"));
    const int64_t stop_at = static_cast<int64_t>(random_() % 1000);
    Progress progress;
    std::stop_source stop;
    std::jthread stopper([&] {
      while (progress.snapshot().items < stop_at) std::this_thread::yield();
      stop.request_stop();
    });
    const auto report = prepare(options_, stop.get_token(), &progress);
    EXPECT_TRUE(report || report.error().code() == ErrorCode::kCancelled);
    EXPECT_TRUE(check_visible(at("out")));
    const auto left = folder_content(at("out"));
    for (const auto& [name, content] : left) EXPECT_TRUE(expected_.at(name) == content) << name;
    const auto finished =
        std::count_if(left.begin(), left.end(), [](const auto& file) { return file.first.ends_with(".index"); });
    EXPECT_EQ(done().shards_reused, finished);
    expect_as_expected();
  }
}

TEST_F(Restart, StopsSoon) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(prepare(options_, stop.get_token()).error().code(), ErrorCode::kCancelled);
  done();
  EXPECT_EQ(prepare(options_, stop.get_token()).error().code(), ErrorCode::kCancelled);  // while checking
  expect_as_expected();

  const std::string some = random_text(random_, 2000);
  std::string text;
  while (text.size() < (48u << 20)) text += some;
  write_file(at("large.txt"), text);
  options_.inputs = {at("large.txt")};
  options_.output = at("large");
  std::stop_source later;
  Clock::time_point asked;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    asked = Clock::now();
    later.request_stop();
  });
  const auto report = prepare(options_, later.get_token());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  stopper.join();
  EXPECT_LT(Clock::now() - asked, std::chrono::seconds(1));
}

TEST_F(Restart, FindsDamageAndRepairsOnlyThat) {
  done();
  const auto names = names_of(expected_);
  for (int turn = 0; turn < rounds(25); ++turn) {
    const std::string& name = names[random_() % (names.size() - 1)];  // all but prepare.json, which sorts last
    const std::string path = at("out/" + name);
    std::string content = expected_.at(name);
    const uint64_t way = random_() % 3;
    SCOPED_TRACE(fmt::format("{}, way {}", name, way));
    if (way == 0) content[random_() % content.size()] ^= static_cast<char>(1 + random_() % 255);
    if (way == 1) content.resize(random_() % content.size());
    write_file(path, content);
    if (way == 2) std::filesystem::remove(path);
    const PrepareReport report = done();
    EXPECT_EQ(report.shards_reused, name.starts_with("part-") ? shards_ : shards_ - 1);
    expect_as_expected();
  }
}

TEST_F(Restart, WithOtherInputsIsRefused) {
  done();
  ASSERT_TRUE(finish(at("out")));
  const auto before = folder_content(at("out"));
  write_file(at("raw/1.txt"), "only the one\n");
  write_file(at("raw/9.txt"), "another\n");
  std::filesystem::remove(at("raw/3.txt"));
  for (const bool dry_run : {false, true}) {
    options_.dry_run = dry_run;
    const auto report = prepare(options_);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(report.error().message(), AllOf(HasSubstr("1.txt has changed"), HasSubstr("9.txt is new"),
                                                HasSubstr("3.txt is gone"), HasSubstr("--replace")));
  }
  EXPECT_TRUE(folder_content(at("out")) == before);
}

// The whole folder is the same whatever the inputs are called, where they lie and on which inode.
TEST_F(Restart, KnowsItsInputsByNameSizeAndTime) {
  options_.shards.rules.skip_errors = true;
  options_.shards.rules.max_document_bytes = 500;  // so that there are ledgers
  options_.max_errors = 1'000'000;
  write_file(at("raw/deep/4.txt"), random_text(random_, 300));
  expect_undisturbed();
  ASSERT_TRUE(std::ranges::any_of(names_of(expected_), [](const auto& name) { return name.ends_with(".jsonl"); }));
  done();

  const auto copy = [&](const std::string& to) {  // as cp -p does
    for (const auto& [name, content] : folder_content(at("raw"))) {
      write_file(at(to + "/" + name), content);
      std::filesystem::last_write_time(at(to + "/" + name), std::filesystem::last_write_time(at("raw/" + name)));
    }
  };
  copy("elsewhere/copied");
  const auto current = std::filesystem::current_path();
  std::filesystem::current_path(at("raw"));
  for (const std::vector<std::string>& inputs :
       std::vector<std::vector<std::string>>{{at("elsewhere/copied")},
                                             {at("raw//../raw/./")},
                                             {"file://" + at("raw")},
                                             {"."},
                                             {"./*.txt", "0.txt", at("raw/deep/4.txt")}}) {
    SCOPED_TRACE(inputs.front());
    options_.inputs = inputs;
    options_.output = at("out");
    EXPECT_EQ(done().shards_reused, shards_);
    expect_as_expected();
    options_.output = at("fresh");
    done();
    EXPECT_TRUE(folder_content(at("fresh")) == expected_);
    std::filesystem::remove_all(at("fresh"));
  }
  std::filesystem::current_path(current);

  std::filesystem::last_write_time(at("raw/0.txt"), std::filesystem::file_time_type::clock::now());
  options_.inputs = {at("raw")};
  options_.output = at("out");
  EXPECT_EQ(prepare(options_).error().code(), ErrorCode::kAlreadyExists);
}

TEST_F(Restart, WithOtherInputsAndReplaceStartsAgainAndLeavesNoneOfTheOldShards) {
  done();
  ASSERT_TRUE(finish(at("out")));
  options_.replace = true;
  std::filesystem::remove(at("raw/3.txt"));
  write_file(at("raw/1.txt"), "only the one\n");
  EXPECT_EQ(done().shards_reused, 0);
  const auto files = folder_content(at("out"));
  EXPECT_FALSE(files.contains("manifest.json"));
  options_.output = at("fresh");
  done();
  EXPECT_TRUE(folder_content(at("fresh")) == files);

  options_.output = at("out");
  options_.inputs = {at("raw/1.txt")};
  EXPECT_EQ(done().part.shards.size(), 1u);
  EXPECT_THAT(names_of(folder_content(at("out"))),
              ElementsAre("00000-00000.tar", "00000-00000.tar.index", "part-00000-of-00001.json", "prepare.json"));
}

TEST_F(Restart, LeavesFilesOfOthersAlone) {
  for (const char* name : {"00000.txt", "00000-x.tar", "00001.tar", "000000.tar", "notes/00000.tar"}) {
    write_file(at(std::string("out/") + name), "mine");
  }
  done();
  for (const char* name : {"00000.txt", "00000-x.tar", "00001.tar", "000000.tar", "notes/00000.tar"}) {
    EXPECT_EQ(read_file(at(std::string("out/") + name)), "mine");
  }
}

TEST_F(Restart, AShardOfAnotherPlaceIsWrittenAgain) {
  done();
  for (const char* ending : {".tar", ".tar.index"}) {
    std::filesystem::copy_file(at(std::string("out/00000-00001") + ending), at(std::string("out/00000-00002") + ending),
                               std::filesystem::copy_options::overwrite_existing);
  }
  EXPECT_EQ(done().shards_reused, shards_ - 1);
  expect_as_expected();
}

TEST_F(Restart, AShardWhoseIndexIsMissingIsWrittenAgain) {
  done();
  std::filesystem::remove(at("out/00000-00002.tar.index"));
  write_file(at("out/00000-00002.tar"), "anything");
  EXPECT_EQ(done().shards_reused, shards_ - 1);
  expect_as_expected();
}

}  // namespace
}  // namespace millrace::prepare
