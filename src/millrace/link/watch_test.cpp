// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "millrace/base/testing/helpers.h"
#include "millrace/base/thread/sync.h"

namespace millrace::link {
namespace {

namespace fs = std::filesystem;

// Everything seen until nothing comes for a while.
TreeWatch::Seen all_of(TreeWatch& watch) {
  TreeWatch::Seen all;
  while (true) {
    const TreeWatch::Seen seen = watch.wait(std::chrono::milliseconds(100), -1);
    const bool is_quiet = seen.paths.empty() && seen.renamed.empty() && seen.created.empty();
    if (is_quiet && !seen.removed && !seen.lost) return all;
    all.paths.insert(all.paths.end(), seen.paths.begin(), seen.paths.end());
    all.renamed.insert(all.renamed.end(), seen.renamed.begin(), seen.renamed.end());
    all.created.insert(all.created.end(), seen.created.begin(), seen.created.end());
    all.removed |= seen.removed;
    all.lost |= seen.lost;
  }
}

std::set<std::string> set_of(const TreeWatch::Seen& seen) {
  std::set<std::string> all(seen.paths.begin(), seen.paths.end());
  all.insert(seen.created.begin(), seen.created.end());
  return all;
}

TEST(TreeWatch, SeesFilesInOldAndNewFolders) {
  const TempDir dir;
  fs::create_directories(dir.path() + "/old/deep");
  std::ofstream(dir.path() + "/old/quiet") << "x";
  const auto watch = *TreeWatch::open(dir.path());
  EXPECT_TRUE(set_of(all_of(*watch)).empty());
  std::ofstream(dir.path() + "/old/deep/a") << "x";
  // Faster than its watch can be set.
  fs::create_directories(dir.path() + "/new/deeper/deepest");
  std::ofstream(dir.path() + "/new/deeper/deepest/b") << "x";
  fs::create_directories(dir.path() + "/.millrace");
  std::ofstream(dir.path() + "/.millrace/hidden") << "x";
  EXPECT_EQ(set_of(all_of(*watch)), (std::set<std::string>{"old/deep/a", "new/deeper/deepest/b"}));
}

TEST(TreeWatch, FollowsARenamedFolder) {
  const TempDir dir;
  fs::create_directories(dir.path() + "/one/sub");
  std::ofstream(dir.path() + "/one/sub/a") << "x";
  const auto watch = *TreeWatch::open(dir.path());
  fs::rename(dir.path() + "/one", dir.path() + "/two");
  const TreeWatch::Seen renamed = all_of(*watch);
  EXPECT_TRUE(renamed.removed);
  EXPECT_EQ(set_of(renamed), std::set<std::string>{"two/sub/a"});
  std::ofstream(dir.path() + "/two/sub/b") << "x";
  EXPECT_EQ(set_of(all_of(*watch)), std::set<std::string>{"two/sub/b"});
  fs::rename(dir.path() + "/two/sub/b", dir.path() + "/two/c");
  const TreeWatch::Seen file = all_of(*watch);
  EXPECT_THAT(file.renamed, testing::ElementsAre("two/c")) << "a file that is whole";
  EXPECT_TRUE(file.paths.empty());
  fs::rename(dir.path() + "/two/c", dir.path() + "/two/sub/b");
  static_cast<void>(all_of(*watch));
  fs::remove(dir.path() + "/two/sub/b");
  EXPECT_TRUE(all_of(*watch).removed);
}

TEST(TreeWatch, TellsANewNameFromAFileThatIsWritten) {
  const TempDir dir;
  std::ofstream(dir.path() + "/old") << "x";
  const auto watch = *TreeWatch::open(dir.path());
  fs::create_hard_link(dir.path() + "/old", dir.path() + "/linked");
  std::ofstream(dir.path() + "/old", std::ios::app) << "y";
  const TreeWatch::Seen seen = all_of(*watch);
  EXPECT_THAT(seen.created, testing::ElementsAre("linked"));
  EXPECT_THAT(seen.paths, testing::Each("old"));
  EXPECT_FALSE(seen.paths.empty());
}

TEST(TreeWatch, SaysWhenEventsWereLost) {
  const TempDir dir;
  const auto watch = *TreeWatch::open(dir.path());
  // More than fs.inotify.max_queued_events, which is 16,384 unless somebody changed it.
  std::ifstream limit_file("/proc/sys/fs/inotify/max_queued_events");
  int limit = 16384;
  limit_file >> limit;
  if (limit > 100'000) GTEST_SKIP() << "this machine queues " << limit << " events";
  for (int i = 0; i < limit / 2 + 10; ++i) std::ofstream(fmt::format("{}/{}", dir.path(), i)) << "x";
  EXPECT_TRUE(all_of(*watch).lost);
}

}  // namespace
}  // namespace millrace::link
