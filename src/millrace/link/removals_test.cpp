// SPDX-License-Identifier: Apache-2.0
// Sweeps of a link: what removals remove, what they never remove, and the trash.
#include <gmock/gmock.h>

#include "millrace/link/release.h"
#include "millrace/link/testing.h"
#include "millrace/sync/testing.h"

namespace millrace::link {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Link, RemovalsGoOverToTheTrash) {
  LinkBench link(everything());
  for (const char* name : {"a", "b", "c"}) link.write(name, name);
  link.swept();
  link.remove("a");
  link.remove_object("b");
  const LinkCounts counts = link.swept();
  EXPECT_EQ(counts.deleted_there, 1);
  EXPECT_EQ(counts.deleted_here, 1);
  EXPECT_EQ(link.files(), (Files{{"c", "c"}}));
  EXPECT_EQ(link.objects(), (Files{{"c", "c"}}));
  EXPECT_EQ(link.trash_there(), (Files{{"a", "a"}}));
  EXPECT_EQ(link.trash_here(), (Files{{"b", "b"}}));
  // The trash itself is nobody's new file.
  EXPECT_EQ(link.swept().exported, 0);
}

TEST(Link, ATrashIsEmptiedWhenItsTimeIsOver) {
  LinkConfig config = everything();
  config.here.trash = config.there.trash = std::chrono::seconds(3600);
  LinkBench link(config);
  link.write(".millrace/trash/20200101T000000Z/old", "x");
  link.write(".millrace/trash/29990101T000000Z/young", "x");
  link.put(".millrace/trash/20200101T000000Z/old", "x");
  link.put(".millrace/trash/29990101T000000Z/young", "x");
  ASSERT_TRUE(Trash(link.config(), link.here(), link.there(), link.engine(), {}).empty());
  EXPECT_EQ(link.trash_here(), (Files{{"young", "x"}}));
  EXPECT_EQ(link.trash_there(), (Files{{"young", "x"}}));
}

TEST(Link, WithoutItRemovalsStayOnTheirSide) {
  LinkBench link;
  link.write("a", "a");
  link.put("b", "b");
  link.write("c", "c");
  link.swept();
  link.remove("a");
  link.remove_object("b");
  link.swept();
  EXPECT_EQ(link.swept().imported, 0);
  EXPECT_EQ(link.files(), (Files{{"b", "b"}, {"c", "c"}}));
  EXPECT_EQ(link.objects(), (Files{{"a", "a"}, {"c", "c"}}));
  // A change brings both back.
  link.put("a", "a2");
  link.write("b", "b2");
  link.swept();
  EXPECT_EQ(link.files(), (Files{{"a", "a2"}, {"b", "b2"}, {"c", "c"}}));
  EXPECT_EQ(link.objects(), link.files());
}

TEST(Link, AnEmptyBucketRemovesNothing) {
  LinkBench link(everything());
  for (const char* name : {"a", "b"}) link.write(name, name);
  link.swept();
  link.remove_object("a");
  link.remove_object("b");
  const auto report = link.sweep();
  ASSERT_TRUE(report);
  EXPECT_THAT(report->not_deleted, HasSubstr("no files at all"));
  EXPECT_EQ(link.files().size(), 2U);
}

TEST(Link, AnEmptyBucketRemovesNothingAfterANewFileCameThere) {
  LinkBench link(everything());
  for (const char* name : {"a", "b", "c"}) link.write(name, name);
  link.swept();
  for (const char* name : {"a", "b", "c"}) link.remove_object(name);
  link.write("new", "new");
  for (int i = 0; i < 3; ++i) {
    const auto report = link.sweep();
    ASSERT_TRUE(report);
    EXPECT_THAT(report->not_deleted, HasSubstr("remove them from the directory yourself")) << i;
    // A file that the link brings back is no sign that the others were meant.
    if (i == 1) link.write("a", "changed");
  }
  EXPECT_EQ(link.files(), (Files{{"a", "changed"}, {"b", "b"}, {"c", "c"}, {"new", "new"}}));
  EXPECT_EQ(link.objects(), (Files{{"a", "changed"}, {"new", "new"}}));
}

TEST(Link, AFileThatIsBackEndsTheHoldOfAnEmptyDirectory) {
  LinkBench link(everything());
  for (const char* name : {"a", "b"}) link.write(name, name);
  link.swept();
  fs::rename(link.directory() / "a", link.directory().parent_path() / "aside");
  link.remove("b");
  link.write("new", "new");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(link.swept().deleted_there, 0);
  fs::rename(link.directory().parent_path() / "aside", link.directory() / "a");
  EXPECT_EQ(link.swept().deleted_there, 1);
  EXPECT_EQ(link.objects(), (Files{{"a", "a"}, {"new", "new"}}));
}

TEST(Link, AnEmptyDirectoryRemovesNothingAfterANewObjectCameThere) {
  LinkBench link(everything());
  for (const char* name : {"a", "b"}) link.write(name, name);
  link.swept();
  for (const char* name : {"a", "b"}) link.remove(name);
  EXPECT_THAT(link.sweep()->not_deleted, HasSubstr("the directory has no files at all"));
  link.put("new", "new");
  for (int i = 0; i < 3; ++i) EXPECT_THAT(link.sweep()->not_deleted, HasSubstr("remove them from the bucket yourself"));
  EXPECT_EQ(link.objects(), (Files{{"a", "a"}, {"b", "b"}, {"new", "new"}}));
  // Who meant it removes them there, and then removals go over as before.
  for (const char* name : {"a", "b"}) link.remove_object(name);
  link.write("newer", "newer");
  link.swept();
  EXPECT_EQ(link.sweep()->not_deleted, "");
  link.remove("new");
  EXPECT_EQ(link.swept().deleted_there, 1);
  EXPECT_EQ(link.objects(), (Files{{"newer", "newer"}}));
}

// The file is known when the sweep comes, but was not there before.
TEST(Link, AFileThatWasCarriedSinceDoesNotHideAnEmptyBucket) {
  LinkBench link(everything());
  for (const char* name : {"a", "b"}) link.write(name, name);
  link.swept();
  for (const char* name : {"a", "b"}) link.remove_object(name);
  link.write("new", "new");
  const auto report = link.sweep_after_look_at("new");
  ASSERT_TRUE(report);
  EXPECT_THAT(report->not_deleted, HasSubstr("the bucket has none of the files that it had"));
  EXPECT_EQ(link.files().size(), 3U);
  EXPECT_EQ(link.objects(), (Files{{"new", "new"}}));
}

TEST(Link, ARenameOfAllFilesIsNoEmptyDirectory) {
  LinkBench link(everything());
  link.write("old/a", "a");
  link.swept();
  fs::rename(link.directory() / "old", link.directory() / "new");
  EXPECT_EQ(link.swept().deleted_there, 1);
  EXPECT_EQ(link.objects(), (Files{{"new/a", "a"}}));
}

TEST(Link, MoreThanTheLimitRemovesNothing) {
  LinkConfig config = everything();
  config.max_delete = 2;
  LinkBench link(config);
  for (const char* name : {"a", "b", "c", "d"}) link.write(name, name);
  link.swept();
  for (const char* name : {"a", "b", "c"}) link.remove(name);
  const auto report = link.sweep();
  ASSERT_TRUE(report);
  EXPECT_THAT(report->not_deleted, HasSubstr("--max-delete"));
  EXPECT_EQ(link.objects().size(), 4U);
}

TEST(Link, ADirectoryThatIsNotMountedRemovesNothing) {
  LinkBench link(everything());
  link.write("a", "a");
  link.write("b", "b");
  link.swept();
  const fs::path aside = link.directory().string() + ".aside";
  fs::rename(link.directory(), aside);
  fs::create_directory(link.directory());
  link.write("other", "x");
  const auto unmounted = link.sweep();
  ASSERT_FALSE(unmounted);
  EXPECT_EQ(unmounted.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(link.objects().size(), 2U);
  fs::remove_all(link.directory());
  fs::rename(aside, link.directory());
  EXPECT_EQ(link.swept().exported, 0);
}

TEST(Link, ADirectoryThatCannotBeReadRemovesNothing) {
  LinkBench link(everything());
  for (const char* name : {"a", "b", "c"}) link.write(name, name);
  link.swept();
  link.remove("a");
  // As root reads every directory, the listing is bent to have one that cannot be read.
  const auto bent = std::make_shared<sync::BentStorage>(link.here().storage);
  bent->bend_page = [&](ListPage& page) {
    ObjectInfo closed;
    closed.key = link.here().key + "/closed/";
    closed.kind = ObjectKind::kUnreadable;
    if (page.next_page_token.empty()) page.objects.push_back(closed);
  };
  Carrier carrier(link.config(), link.here(), link.there(), link.state(), link.engine(), {}, {});
  const Location here{bent, link.here().key, link.here().url};
  const auto report = sweep(link.config(), here, link.there(), link.state(), carrier, {});
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_THAT(report->not_deleted, HasSubstr("cannot be read"));
  EXPECT_EQ(link.objects().size(), 3U);
}

TEST(Link, WhatIsThrownAwayInOneSecondIsAllKept) {
  LinkBench link(everything());
  link.write("stays", "x");
  for (const std::string content : {"one", "two", "three"}) {
    link.write("a", content);
    link.swept();
    link.remove("a");
    EXPECT_EQ(link.swept().deleted_there, 1);
    link.put("b", content);
    link.swept();
    link.remove_object("b");
    EXPECT_EQ(link.swept().deleted_here, 1);
  }
  const auto count = [](const fs::path& trash, const char* name) {
    int found = 0;
    for (const auto& each : fs::recursive_directory_iterator(trash)) found += each.path().filename() == name ? 1 : 0;
    return found;
  };
  EXPECT_EQ(count(link.directory() / ".millrace/trash", "b"), 3);
  int there = 0;
  ASSERT_TRUE(
      for_each_object(*link.there().storage, link.there().key + "/.millrace/trash/", [&](const ObjectInfo&) -> Status {
        ++there;
        return {};
      }));
  EXPECT_EQ(there, 3);
}

TEST(Link, AClockThatIsSetAheadEmptiesNoTrashAndReleasesNothing) {
  LinkBench link(everything());
  link.write("a", "removed");
  link.write("b", "stays");
  link.swept();
  link.remove("a");
  link.swept();
  ASSERT_EQ(link.trash_there(), (Files{{"a", "removed"}}));
  {
    const OtherTime later(400 * kDay);
    ASSERT_TRUE(link.empty_trash());
    EXPECT_EQ(link.trash_there(), (Files{{"a", "removed"}}));
    const auto report = release(link.config(), link.here(), link.state(), {.older_than_s = kDay, .dry_run = true}, {});
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(report->files, 0);
  }
  // What is old goes.
  link.put(".millrace/trash/20200101T000000Z/old", "x");
  ASSERT_TRUE(link.empty_trash());
  EXPECT_EQ(link.trash_there(), (Files{{"a", "removed"}}));
}

TEST(Link, WhatIsThrownAwayWhileTheClockIsBehindIsKeptForItsTime) {
  LinkBench link(everything());
  link.write("a", "removed");
  link.write("b", "stays");
  link.swept();
  {
    const OtherTime earlier(-400 * kDay);
    link.remove("a");
    EXPECT_EQ(link.swept().deleted_there, 1);
  }
  ASSERT_TRUE(link.empty_trash());
  EXPECT_EQ(link.trash_there(), (Files{{"a", "removed"}}));
}

}  // namespace
}  // namespace millrace::link
