// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "millrace/base/testing/helpers.h"
#include "millrace/link/config.h"

namespace millrace::link {
namespace {

using State = LinkFile::State;

LinkFile file_at(const std::string& path, int64_t size = 3) {
  return {.path = path, .size = size, .here = {"here-" + path, 7}, .there = "there", .hash = xxh3_128(path)};
}

// As statfs(2) of such a file system answers, until it goes out of scope.
class OnFileSystem {
 public:
  explicit OnFileSystem(int64_t number) { set_file_system_for_test(number); }
  ~OnFileSystem() { set_file_system_for_test(std::nullopt); }
  OnFileSystem(const OnFileSystem&) = delete;
  OnFileSystem& operator=(const OnFileSystem&) = delete;
};

TEST(LinkState, IsRefusedWhereItsLogWouldBeDamaged) {
  const TempDir dir;
  const std::string path = dir.path() + "/state.db";
  const std::pair<int64_t, const char*> kRemote[] = {{0x6969, "NFS"}, {0x0BD00BD0, "Lustre"}, {0x65735546, "FUSE"}};
  for (const auto& [number, name] : kRemote) {
    const OnFileSystem remote(number);
    const auto refused = LinkState::open(path);
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
    const std::string& text = refused.error().message();
    EXPECT_NE(text.find(dir.path() + " lies on " + name), std::string::npos) << text;
    EXPECT_NE(text.find("MILLRACE_LINKS"), std::string::npos) << text;
    EXPECT_FALSE(std::filesystem::exists(path)) << "nothing is begun there";
  }
  const OnFileSystem ext4(0xEF53);
  EXPECT_TRUE(LinkState::open(path));
}

TEST(LinkState, NoLinkIsMadeWhereItsStateMayNotLie) {
  const TempDir dir;
  const std::string links = dir.path() + "/links";
  LinkConfig config{.name = "one", .directory = dir.path() + "/directory", .url = "mem://refused/data"};
  std::filesystem::create_directories(config.directory);
  {
    const OnFileSystem lustre(0x0BD00BD0);
    EXPECT_EQ(code_of(add_link(links, config)), ErrorCode::kUnsupported);
  }
  EXPECT_FALSE(std::filesystem::exists(config.directory + "/.millrace"));
  EXPECT_TRUE(read_links(links)->empty());
  config.take_over_s = 60;
  EXPECT_TRUE(add_link(links, config));
  const OnFileSystem nfs(0x6969);
  EXPECT_EQ(code_of(join_link(dir.path() + "/others", config.directory, "")), ErrorCode::kUnsupported);
}

TEST(LinkState, KeepsWhatItIsGivenInByteOrder) {
  const TempDir dir;
  const std::string path = dir.path() + "/state.db";
  // Bytes above 0x7f and no UTF-8; '-' < '.' < '/' < '0'.
  const std::vector<std::string> paths = {"a", "a-b", "a.b", "a/b", "a0", "b\xff", "\xc3\xa9"};
  {
    const auto state = *LinkState::open(path);
    for (auto each = paths.rbegin(); each != paths.rend(); ++each) ASSERT_TRUE(state->put(file_at(*each)));
    ASSERT_TRUE(state->forget("a.b"));
    ASSERT_TRUE(state->set_fact("error", "none"));
  }
  const auto state = *LinkState::open_to_read(path);
  std::vector<std::string> found;
  std::string after;
  while (true) {
    const auto page = *state->page(after, "", 2);
    if (page.empty()) break;
    for (const LinkFile& file : page) found.push_back(file.path);
    after = page.back().path;
  }
  EXPECT_EQ(found, (std::vector<std::string>{"a", "a-b", "a/b", "a0", "b\xff", "\xc3\xa9"}));
  EXPECT_EQ(**state->find("a/b"), file_at("a/b"));
  EXPECT_EQ((*state->find_here("here-a0"))->path, "a0");
  EXPECT_FALSE(*state->find("nothing"));
  EXPECT_EQ((*state->page("", "a/", 9)).size(), 1U);
  EXPECT_EQ(*state->fact("error"), "none");
  EXPECT_EQ((*state->counts()).files, 6);
}

TEST(LinkState, CountsConflictsAndProblems) {
  const TempDir dir;
  const auto state = *LinkState::open(dir.path() + "/state.db");
  LinkFile released = file_at("r", 100);
  released.state = State::kReleased;
  released.proof = "etag";
  ASSERT_TRUE(state->put(released));
  ASSERT_TRUE(state->put(file_at("e", 10)));
  LinkFile gone = file_at("g", 1000);
  gone.state = State::kGoneHere;
  ASSERT_TRUE(state->put(gone));
  ASSERT_TRUE(state->add_conflict({1, "a", "both sides changed", "x"}));
  ASSERT_TRUE(state->add_conflict({2, "b", "both sides changed", "y"}));
  ASSERT_TRUE(state->set_problem("p", "first"));
  const int64_t since = (*state->problems(9))[0].since;
  ASSERT_TRUE(state->set_problem("p", "second"));
  ASSERT_TRUE(state->set_problem("q", "third"));
  ASSERT_TRUE(state->clear_problem("q"));
  const StateCounts counts = *state->counts();
  EXPECT_EQ(counts.files, 2);
  EXPECT_EQ(counts.bytes, 110);
  EXPECT_EQ(counts.released, 1);
  EXPECT_EQ(counts.released_bytes, 100);
  EXPECT_EQ(counts.proven, 1);
  EXPECT_EQ(counts.conflicts, 2);
  EXPECT_EQ(counts.problems, 1);
  EXPECT_EQ((*state->conflicts(1))[0].path, "b");
  const Problem problem = (*state->problems(9))[0];
  EXPECT_EQ(problem.error, "second");
  EXPECT_EQ(problem.since, since);
  EXPECT_EQ(*state->paths_in(State::kReleased, "", 9), std::vector<std::string>{"r"});
}

TEST(LinkState, ADamagedFileIsPutAsideAndBegunAnew) {
  const TempDir dir;
  const std::string path = dir.path() + "/state.db";
  std::ofstream(path) << std::string(8192, 'x');
  const auto state = LinkState::open(path);
  ASSERT_TRUE(state) << state.error().to_string();
  EXPECT_EQ((*(*state)->counts()).files, 0);
  int aside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    aside += entry.path().filename().string().starts_with("state.db.damaged-");
  }
  EXPECT_EQ(aside, 1);
}

TEST(LinkState, WhatWasCommittedSurvivesAKill) {
  const TempDir dir;
  const std::string path = dir.path() + "/state.db";
  int channel[2];
  ASSERT_EQ(::pipe(channel), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto state = *LinkState::open(path);
    for (int i = 0;; ++i) {
      static_cast<void>(state->put(file_at(fmt::format("{:06}", i))));
      if (i % 10 != 9) continue;
      static_cast<void>(state->commit());
      static_cast<void>(!::write(channel[1], &i, sizeof i));
    }
  }
  int last = 0;
  for (int n = 0; n < 50; ++n) ASSERT_EQ(::read(channel[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto state = *LinkState::open(path);
  for (int i = 0; i <= last; ++i) ASSERT_TRUE(*state->find(fmt::format("{:06}", i))) << i;
}

}  // namespace
}  // namespace millrace::link
