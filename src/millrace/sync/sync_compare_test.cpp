// SPDX-License-Identifier: Apache-2.0
// What a sync takes for equal, and what for changed.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "millrace/sync/sync.h"
#include "millrace/sync/testing/sync.h"

namespace millrace::sync {
namespace {

using testing::Contains;
using testing::ElementsAre;

TEST_F(SyncTest, AttributesThatChangedGoAlong) {
  const std::string file = dir_.path() + "/source/d/a";
  const SyncOptions posix{.transfer = {.posix = true}};
  const auto mode_of = [](const Location& at) {
    const auto found = at.storage->stat(at.child("d/a").key)->posix;
    return found ? found->mode & 07777 : 0;
  };
  for (const bool record : {true, false}) {
    for (const auto& target : {*open_url(dir_.path() + fmt::format("/target-{}", record)), memory_location("to")}) {
      SCOPED_TRACE(target.url + (record ? ", with a record" : ""));
      target_ = target;
      SyncOptions with = posix, without;
      with.record = without.record = record;
      put_all(source_, {{"d/a", "content"}});
      ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
      run(without);
      EXPECT_EQ(mode_of(target_), target.storage->capabilities().folders ? 0640U : 0U);
      run(with);  // the content is there, not its attributes
      EXPECT_EQ(mode_of(target_), 0640U);
      EXPECT_THAT(events_, Contains("copy d/a: other owner, mode or times"));
      EXPECT_EQ(run(with).copied_files, 0);
      ASSERT_EQ(::chmod(file.c_str(), 0750), 0);
      SyncOptions dry = with;
      dry.dry_run = true;
      EXPECT_EQ(run(dry).copied_files, 1);
      EXPECT_EQ(mode_of(target_), 0640U);
      EXPECT_EQ(run(with).copied_files, 1);
      EXPECT_EQ(mode_of(target_), 0750U);
      if (::geteuid() == 0) {
        ASSERT_EQ(::chown(file.c_str(), 12, 34), 0);
        EXPECT_EQ(run(with).copied_files, 1);
        EXPECT_EQ(target_.storage->stat(target_.child("d/a").key)->posix->group, 34U);
      }
      EXPECT_EQ(run(with).copied_files, 0);
      EXPECT_EQ(run(without).copied_files, 0);
      ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
      run(without);
      EXPECT_EQ(run(with).copied_files, 1) << "it was recorded as equal, but not its mode";
      EXPECT_EQ(mode_of(target_), 0600U);
    }
  }
}

TEST_F(SyncTest, AnEditWithTheOldTimeIsFound) {
  put_all(source_, {{"a", "old"}, {"b", "b"}});
  run();
  edit_secretly("a", "new");
  const SyncReport report = run();
  EXPECT_EQ(report.copied_files, 1);
  EXPECT_THAT(events_, ElementsAre("copy a: other content", "skip b: unchanged since the last sync"));
  EXPECT_EQ(tree_of(target_).at("a"), "new");
  EXPECT_EQ(run().copied_files, 0);
}

TEST_F(SyncTest, WithoutARecordContentDecides) {
  put(source_, "a", "old");
  run({.record = false});
  EXPECT_THAT(tree_of(target_, true), testing::SizeIs(1));
  EXPECT_EQ(run({.record = false}).moved_bytes, 0);
  EXPECT_THAT(events_, ElementsAre("skip a: the same content"));
  edit_secretly("a", "new");
  EXPECT_EQ(run({.record = false}).copied_files, 1);
  EXPECT_THAT(events_, ElementsAre("copy a: other content"));
  EXPECT_EQ(tree_of(target_).at("a"), "new");
}

// One checkpoint after another into one folder: of the same sizes, and the second may be the older one.
TEST_F(SyncTest, AnotherTreeOfTheSameSizesReplacesTheFirst) {
  const auto tree = [](char with) {
    return Tree{{"meta", std::string(1, with)}, {"w/large", std::string(kBlockBytes + 1, with)}};
  };
  int made = 0;
  const auto folder = [&](bool on_disk) {
    const std::string name = fmt::format("{}", made++);
    return on_disk ? *open_url(dir_.path() + "/" + name) : memory_location(name);
  };
  for (const bool from_disk : {false, true}) {
    for (const bool to_disk : {false, true}) {
      for (const bool record : {false, true}) {
        SCOPED_TRACE(fmt::format("from disk {}, to disk {}, record {}", from_disk, to_disk, record));
        const Location older = folder(from_disk), newer = folder(from_disk), target = folder(to_disk);
        put_all(older, tree('a'));
        put_all(newer, tree('b'));
        target_ = target;
        // There, over it, back, and over it again.
        for (const Location* from : {&newer, &older, &newer, &older}) {
          source_ = *from;
          run({.record = record});
          EXPECT_TRUE(tree_of(target_) == tree(from == &older ? 'a' : 'b'));
          EXPECT_EQ(run({.record = record}).moved_bytes, 0);
        }
      }
    }
  }
}

TEST_F(SyncTest, BetweenFileSystemsSizeAndTimeAreAProof) {
  target_ = *open_url(dir_.path() + "/to");
  put(source_, "a", "old");
  put(target_, "a", "new");
  const auto at = [&](const Location& side) {
    return std::filesystem::path(side.storage->name().substr(5)) / side.child("a").key;
  };
  const auto time = std::filesystem::last_write_time(at(source_));
  std::filesystem::last_write_time(at(target_), time);
  EXPECT_EQ(run({.record = false}).copied_files, 0);
  EXPECT_THAT(events_, ElementsAre("skip a: the same size and time"));
  for (const int ns : {-1, 1}) {
    put(target_, "a", "new");
    std::filesystem::last_write_time(at(target_), time + std::chrono::nanoseconds(ns));
    EXPECT_EQ(run({.record = false}).copied_files, 1) << ns;
    EXPECT_EQ(tree_of(target_).at("a"), "old");
  }
}

TEST_F(SyncTest, ANewTimeAloneMovesNothing) {
  put(source_, "a", "same");
  run();
  put(source_, "a", "same");
  EXPECT_EQ(run().copied_files, 0);
  EXPECT_THAT(events_, ElementsAre("skip a: the same content"));
  run();
  EXPECT_THAT(events_, ElementsAre("skip a: unchanged since the last sync"));
}

TEST_F(SyncTest, AChangeAtTheTargetIsMended) {
  put(source_, "a", "right");
  run();
  put(target_, "a", "wrong");
  run();
  EXPECT_THAT(events_, ElementsAre("copy a: changed at the target since the last sync"));
  EXPECT_EQ(tree_of(target_).at("a"), "right");
}

TEST_F(SyncTest, AFileThatWasNotReadIsWatchedFromThenOn) {
  put(source_, "a", "old");
  put(target_, "a", "old");
  EXPECT_EQ(run().copied_files, 0);
  edit_secretly("a", "new");
  EXPECT_EQ(run().copied_files, 1);
}

}  // namespace
}  // namespace millrace::sync
