// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/published.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "millrace/base/testing/helpers.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// A child with its own file in `folder`, which runs `work`, says that it is ready, and sleeps until it is killed.
pid_t publisher(const std::string& folder, const std::function<void()>& work) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // also after an assertion that ends the test
    setenv("MILLRACE_RUNTIME_DIR", folder.c_str(), 1);
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "16", 1);
    work();
    static_cast<void>(!write(ready[1], "x", 1));
    for (;;) pause();
  }
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  return child;
}

void kill_child(pid_t child, int signal = SIGKILL) {
  kill(child, signal);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

std::vector<PublishedProcess> read_in(const std::string& folder, int* newer = nullptr) {
  return read_published(std::vector{folder}, newer);
}

TEST(Published, IsSeenByAnotherProcess) {
  const TempDir dir;
  const std::string folder = dir.path() + "/run";
  const pid_t child = publisher(folder, [] {
    publish_add(Published::kBatches, 40);
    publish_add(Published::kBatches, 2);
    publish_set(Published::kQueueBatches, 5);
    publish_now(Published::kLastBatchNs);
  });
  const auto found = read_in(folder);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].pid, child);
  EXPECT_EQ(found[0].rank, 3);
  EXPECT_EQ(found[0].world_size, 16);
  EXPECT_EQ(found[0].value(Published::kBatches), 42);
  EXPECT_EQ(found[0].value(Published::kQueueBatches), 5);
  EXPECT_EQ(found[0].value(Published::kSaves), 0);
  EXPECT_GT(found[0].value(Published::kLastBatchNs), found[0].begun_ns - 1);
  kill_child(child);
}

// Killed at any moment: readers see counters that never go back, and nothing when it is gone; the next process removes
// the file.
TEST(Published, IsSoundAfterKill) {
  const TempDir dir;
  const std::string folder = dir.path() + "/run";
  for (int round = 0; round < 20; ++round) {
    const pid_t child = publisher(folder, [] {
      publish_add(Published::kSamples, 2);  // the file is there
      std::thread([] {
        for (;;) {
          publish_add(Published::kSamples, 2);
          publish_add(Published::kBatches, 1);
        }
      }).detach();
    });
    int64_t last = -1;
    for (int look = 0; look < 50; ++look) {
      const auto found = read_in(folder);
      ASSERT_EQ(found.size(), 1U);
      EXPECT_GE(found[0].value(Published::kBatches), last);
      last = found[0].value(Published::kBatches);
    }
    const std::string path = read_in(folder)[0].path;
    kill_child(child);
    EXPECT_TRUE(read_in(folder).empty()) << "it is gone";
    const auto left = read_published_file(path);
    ASSERT_TRUE(left) << left.error().to_string();
    EXPECT_GE(left->value(Published::kSamples), 2 * last) << "what it has counted stays readable";
    EXPECT_EQ(names_of(folder).size(), 1U) << "those of the rounds before were removed";
  }
}

TEST(Published, AChildAfterAForkHasItsOwn) {
  const TempDir dir;
  const std::string folder = dir.path() + "/run";
  const pid_t child = publisher(folder, [] {
    publish_add(Published::kBatches, 1);
    if (fork() == 0) {
      publish_add(Published::kBatches, 100);
      std::exit(0);
    }
    int status = 0;
    static_cast<void>(wait(&status));
  });
  const auto found = read_in(folder);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].value(Published::kBatches), 1);
  EXPECT_EQ(names_of(folder).size(), 1U) << "the grandchild has removed its own, and only its own";
  kill_child(child);
}

TEST(Published, GoesWithTheProcess) {
  const TempDir dir;
  const std::string folder = dir.path() + "/run";
  const pid_t child = fork();
  if (child == 0) {
    setenv("MILLRACE_RUNTIME_DIR", folder.c_str(), 1);
    publish_add(Published::kBatches, 1);
    std::exit(names_of(folder).size() == 1 ? 0 : 1);
  }
  int status = 1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(names_of(folder).empty());
}

// No folder, somebody else's, a link, no room: training goes on without a file.
TEST(Published, WithoutAFileNumbersStayInMemory) {
  const TempDir dir;
  fs::create_directory(dir.path() + "/other");
  fs::create_directory_symlink(dir.path() + "/other", dir.path() + "/link");
  std::ofstream(dir.path() + "/file") << "x";
  for (const std::string& folder :
       {std::string(), dir.path() + "/no/such", dir.path() + "/link", dir.path() + "/file"}) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("MILLRACE_RUNTIME_DIR", folder.c_str(), 1);
      publish_add(Published::kBatches, 1);
      publish_set(Published::kQueueBatches, 1);
      std::exit(0);
    }
    int status = 1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << folder;
    EXPECT_TRUE(names_of(dir.path() + "/other").empty());
  }
}

TEST(Published, DamageAndNewerVersionsAreSaid) {
  const TempDir dir;
  const std::string folder = dir.path() + "/run";
  const pid_t child = publisher(folder, [] { publish_add(Published::kBatches, 7); });
  const std::string path = read_in(folder).at(0).path;
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  ASSERT_EQ(good.size(), 4096U);
  const auto write = [&](const std::string& content) { std::ofstream(path, std::ios::binary) << content; };
  for (const size_t at : {0U, 9U, 12U, 16U, 24U, 40U, 48U, 64U, 96U}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write(bad);
    EXPECT_FALSE(read_published_file(path)) << at;
  }
  for (const size_t size : {0U, 10U, 63U, 64U, 100U}) {
    write(good.substr(0, size));
    EXPECT_EQ(code_of(read_published_file(path)), ErrorCode::kCorruption) << size;
    EXPECT_TRUE(read_in(folder).empty());
  }
  std::string newer = good;
  newer[8] = 2;
  write(newer);
  EXPECT_EQ(code_of(read_published_file(path)), ErrorCode::kUnsupported);
  int count = 0;
  EXPECT_TRUE(read_in(folder, &count).empty());
  EXPECT_EQ(count, 1);
  write(good);
  EXPECT_EQ(read_in(folder).at(0).value(Published::kBatches), 7);
  // A pipe, which would hold a reader up.
  ASSERT_EQ(mkfifo((path.substr(0, path.rfind('.')) + ".9").c_str(), 0600), 0);
  EXPECT_EQ(read_in(folder).size(), 1U);
  // A file that says another process than its name.
  const pid_t other = publisher(folder, [] { publish_add(Published::kBatches, 1); });
  for (const PublishedProcess& each : read_in(folder)) {
    if (each.pid == other) fs::copy_file(path, each.path, fs::copy_options::overwrite_existing);
  }
  EXPECT_EQ(read_in(folder).size(), 1U);
  kill_child(other);
  kill_child(child);
}

TEST(Published, ItsNamesFitTheFile) {
  for (const PublishedDef& def : published_defs()) {
    EXPECT_LE(def.name.size(), 23U) << def.name;
    EXPECT_FALSE(def.help.empty()) << def.name;
  }
}

}  // namespace
}  // namespace millrace
