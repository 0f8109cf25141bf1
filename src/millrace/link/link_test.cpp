// SPDX-License-Identifier: Apache-2.0
// Sweeps of a link between a directory and a bucket in memory: what is carried, conflicts, renames and faults.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "millrace/base/text/utf8.h"
#include "millrace/link/status.h"
#include "millrace/link/testing.h"
#include "millrace/link/wait.h"

namespace millrace::link {
namespace {

using ::testing::StartsWith;
namespace fs = std::filesystem;

TEST(Link, CarriesNewAndChangedFilesBothWays) {
  LinkBench link(everything());
  link.write("a", "one");
  link.write("folder/b \xc3\xa9", "two");
  link.put("c", "three");
  link.put("other/d", "four");
  LinkCounts counts = link.swept();
  EXPECT_EQ(counts.exported, 2);
  EXPECT_EQ(counts.imported, 2);
  const Files all = {{"a", "one"}, {"folder/b \xc3\xa9", "two"}, {"c", "three"}, {"other/d", "four"}};
  EXPECT_EQ(link.files(), all);
  EXPECT_EQ(link.objects(), all);

  counts = link.swept();
  EXPECT_EQ(counts.exported + counts.imported + counts.failed, 0);
  link.write("a", "one, changed");
  link.put("c", "three, changed");
  counts = link.swept();
  EXPECT_EQ(counts.exported, 1);
  EXPECT_EQ(counts.imported, 1);
  EXPECT_EQ(link.files(), link.objects());
  EXPECT_EQ(link.files().at("c"), "three, changed");
  EXPECT_EQ(link.objects().at("a"), "one, changed");
}

TEST(Link, ARenamedFileNeedNotBeQuietOnce) {
  LinkBench link(everything());
  link.config().quiet_s = 3600;
  Carrier carrier(link.config(), link.here(), link.there(), link.state(), link.engine(), {}, {});
  EXPECT_EQ(carrier.look_at_renamed("gone").value(), Step::kNone) << "removed before it was looked at";
  link.write("gone", "written slowly");
  EXPECT_EQ(carrier.look_at("gone").value(), Step::kPostpone);
  link.write("renamed", "x");
  EXPECT_EQ(carrier.look_at_renamed("renamed").value(), Step::kNone);
  ASSERT_TRUE(carrier.finish());
  EXPECT_EQ(link.objects(), (Files{{"renamed", "x"}}));
}

TEST(Link, AChangeOfEqualSizeWithTheOldTimeIsFound) {
  LinkBench link(everything());
  link.write("a", "one");
  link.swept();
  struct stat info{};
  const std::string path = link.directory() / "a";
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  link.write("a", "two");
  const timespec times[2] = {info.st_atim, info.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  link.swept();
  EXPECT_EQ(link.objects().at("a"), "two");
}

TEST(Link, AConflictOfALongNameCutsItAtACharacter) {
  std::string hangul;
  for (int i = 0; i < 76; ++i) hangul += "\xEA\xB0\x80";
  for (const std::string& name : {hangul + ".txt", std::string(255, 'a'), "a." + std::string(253, 'b')}) {
    SCOPED_TRACE(name);
    LinkBench link(everything());
    link.write(name, "here");
    link.put(name, "there");
    EXPECT_EQ(link.swept().conflicts, 1);
    link.swept();  // exports the file with the other name
    const Files files = link.files();
    EXPECT_EQ(files, link.objects());
    ASSERT_EQ(files.size(), 2U);
    EXPECT_EQ(files.at(name), "there");
    for (const auto& [path, content] : files) {
      EXPECT_LE(path.size(), 255U);
      EXPECT_TRUE(is_utf8(path));
      EXPECT_EQ(path.ends_with(".txt"), name.ends_with(".txt"));
      EXPECT_EQ(content == "here", path.find(".conflict-") != path.npos);
    }
  }
}

TEST(Link, AConflictKeepsBothUnlessARuleSaysMore) {
  for (const ConflictRule rule :
       {ConflictRule::kBoth, ConflictRule::kBucket, ConflictRule::kDirectory, ConflictRule::kNewest}) {
    SCOPED_TRACE(conflict_rule_name(rule));
    LinkConfig config = everything();
    config.conflict = rule;
    LinkBench link(config);
    link.write("folder/a.txt", "old");
    link.swept();
    link.write("folder/a.txt", "the directory's");
    // Longer ago, so that the directory has the newest.
    link.put("folder/a.txt", "the bucket's");
    std::filesystem::last_write_time(link.directory() / "folder/a.txt",
                                     std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
    EXPECT_EQ(link.swept().conflicts, 1);
    link.swept();  // exports the file with the other name
    EXPECT_EQ(link.files(), link.objects());
    const bool bucket = rule == ConflictRule::kBoth || rule == ConflictRule::kBucket;
    EXPECT_EQ(link.files().at("folder/a.txt"), bucket ? "the bucket's" : "the directory's");
    const auto conflicts = *link.state().conflicts(9);
    ASSERT_EQ(conflicts.size(), 1U);
    EXPECT_EQ(conflicts[0].path, "folder/a.txt");
    if (rule == ConflictRule::kBoth) {
      ASSERT_EQ(link.files().size(), 2U);
      EXPECT_THAT(link.files().begin()->first, StartsWith("folder/a.conflict-"));
      EXPECT_EQ(link.files().begin()->second, "the directory's");
    } else {
      EXPECT_EQ(link.files().size(), 1U);
      EXPECT_EQ(bucket ? link.trash_here() : link.trash_there(),
                (Files{{"folder/a.txt", bucket ? "the directory's" : "the bucket's"}}));
    }
  }
}

TEST(Link, MoreConflictsThanCopiesAtOnceAreSettled) {
  LinkConfig config = everything();
  config.conflict = ConflictRule::kDirectory;
  config.there.trash.reset();
  LinkBench link(config);
  for (int i = 0; i < 600; ++i) {
    link.write(fmt::format("{:03}", i), "here");
    link.put(fmt::format("{:03}", i), "in the bucket");
  }
  EXPECT_EQ(link.swept().conflicts, 600);
  EXPECT_EQ(link.files(), link.objects());
}

TEST(Link, AChangeAndARemovalEndInTheChange) {
  LinkBench link(everything());
  for (const char* name : {"a", "b", "c"}) link.write(name, name);
  link.swept();
  link.remove("a");
  link.put("a", "changed there");
  link.write("b", "changed here");
  link.remove_object("b");
  EXPECT_EQ(link.swept().conflicts, 2);
  EXPECT_EQ(link.files(), (Files{{"a", "changed there"}, {"b", "changed here"}, {"c", "c"}}));
  EXPECT_EQ(link.objects(), link.files());
}

TEST(Link, ALostStateIsFoundOutAgainWithoutACopy) {
  LinkBench link(everything());
  for (const char* name : {"a", "b", "c"}) link.write(name, std::string(name) + " content");
  link.swept();
  ASSERT_TRUE(link.state().commit());
  for (const char* tail : {"", "-wal", "-shm"}) fs::remove(link.home().state_path() + tail);
  link.reopen();
  link.remove("c");  // nobody knows that it was here, so it comes back
  const LinkCounts counts = link.swept();
  EXPECT_EQ(counts.exported, 0);
  EXPECT_EQ(counts.conflicts, 0);
  EXPECT_EQ(counts.imported, 1);
  EXPECT_EQ((*link.state().counts()).files, 3);
}

TEST(Link, ARenameIsACopyInsideTheBucket) {
  LinkBench link(everything());
  link.write("old/a", test_bytes(100'000, 1));
  link.write("old/b", test_bytes(100'000, 2));
  link.write("stay", "x");
  link.swept();
  fs::rename(link.directory() / "old", link.directory() / "new");
  const LinkCounts counts = link.swept();
  EXPECT_EQ(counts.moved, 2);
  EXPECT_EQ(counts.exported, 0);
  EXPECT_EQ(counts.deleted_there, 2);
  EXPECT_EQ(counts.moved_bytes, 0);
  EXPECT_EQ(link.objects(), link.files());
}

TEST(Link, ARenamedFileThatWasEditedIsSentWhole) {
  LinkBench link(everything());
  link.write("a", "one");
  link.write("b", "x");
  link.swept();
  struct stat info{};
  ASSERT_EQ(::stat((link.directory() / "a").c_str(), &info), 0);
  link.write("a", "two");
  const timespec times[2] = {info.st_atim, info.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, (link.directory() / "a").c_str(), times, 0), 0);
  fs::rename(link.directory() / "a", link.directory() / "c");
  link.swept();
  EXPECT_EQ(link.objects(), (Files{{"b", "x"}, {"c", "two"}}));
}

TEST(Link, AFileWithAWriterWaits) {
  LinkBench link(everything());
  link.write("a", "half");
  const int writer = ::open((link.directory() / "a").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_GE(writer, 0);
  EXPECT_EQ(link.swept().postponed, 1);
  EXPECT_TRUE(link.objects().empty());
  ASSERT_EQ(::write(writer, " and whole", 10), 10);
  ::close(writer);
  EXPECT_EQ(link.swept().exported, 1);
  EXPECT_EQ(link.objects().at("a"), "half and whole");
  // Quiet for some time, too, unless its time lies ahead: a clock that was set back.
  link.config().quiet_s = 100;
  link.write("a", "new");
  EXPECT_EQ(link.swept().postponed, 1);
  fs::last_write_time(link.directory() / "a", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(link.swept().exported, 1);
}

TEST(Link, AnObjectThatChangesAfterTheListingIsNoFailure) {
  for (const bool vanishes : {false, true}) {
    LinkBench link(everything());
    link.put("a", "one");
    const auto change = [&] { vanishes ? link.remove_object("a") : link.put("a", "an upload that ended late"); };
    link.faults().add({.call = FaultCall::kOpenRead, .key_part = "/a", .before = change});
    const LinkCounts counts = link.swept();
    EXPECT_EQ(counts.postponed, 1);
    EXPECT_EQ(counts.failed, 0);
    EXPECT_EQ(link.swept().failed, 0);
    EXPECT_EQ(link.files(), link.objects());
  }
}

TEST(Link, AnUploadThatLosesItsConditionIsSentAgain) {
  LinkBench link(everything());
  link.write("a", "one");
  const Error lost(ErrorCode::kAlreadyExists, "it exists");  // by an upload that ended late, or in its middle
  link.faults().add({.call = FaultCall::kCommit, .key_part = "/a", .error = lost});
  EXPECT_EQ(link.swept().postponed, 1);
  EXPECT_EQ(link.swept().exported, 1);
  EXPECT_EQ(link.objects().at("a"), "one");
}

TEST(Link, TwoLinksOfOneDirectoryAreRefused) {
  LinkBench link;
  LinkConfig other = link.config();
  other.name = "other";
  EXPECT_EQ(code_of(add_link(link.links(), other)), ErrorCode::kAlreadyExists);
  fs::create_directories(link.directory() / "below");
  other.directory = link.directory() / "below";
  EXPECT_EQ(code_of(add_link(link.links(), other)), ErrorCode::kAlreadyExists);
  other.directory = link.directory().parent_path();
  EXPECT_EQ(code_of(add_link(link.links(), other)), ErrorCode::kAlreadyExists);
  other.directory = link.directory() / "missing";
  EXPECT_EQ(code_of(add_link(link.links(), other)), ErrorCode::kNotFound);
  ASSERT_TRUE(remove_link(link.links(), "test"));
  other.directory = link.directory();
  EXPECT_TRUE(add_link(link.links(), other));
}

TEST(Link, AProblemOfAPathThatIsGoneIsGone) {
  LinkBench link(everything());
  link.write("a", "x");
  const Error error(ErrorCode::kUnavailable, "a fault of this test");
  link.faults().add({.call = FaultCall::kOpenWrite, .key_part = "/a", .count = FaultRule::kForever, .error = error});
  EXPECT_EQ(link.swept().failed, 1);
  EXPECT_EQ((*link.state().counts()).problems, 1);
  link.remove("a");
  link.swept();
  EXPECT_EQ((*link.state().counts()).problems, 0);
}

TEST(Link, WaitDoesNotBelieveAnObjectThatIsOther) {
  LinkBench link(everything());
  link.write("a", "right");
  link.swept();
  // As if the state had been told wrongly: the object's version is known, its content is another.
  link.put("a", "wrong");
  LinkFile file = **link.state().find("a");
  file.there = link.there().storage->stat(link.there().child("a").key)->version;
  ASSERT_TRUE(link.state().put(file));
  ASSERT_TRUE(link.state().commit());
  EXPECT_FALSE(wait_for(link.config(), link.home(), "", std::chrono::seconds(0), {}, nullptr));
}

}  // namespace
}  // namespace millrace::link
