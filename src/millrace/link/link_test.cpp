// SPDX-License-Identifier: Apache-2.0
// Sweeps of a link between a directory and a bucket in memory: every rule, and what must never happen.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "millrace/base/io/descriptor.h"
#include "millrace/link/answers.h"
#include "millrace/link/leader.h"
#include "millrace/link/lease.h"
#include "millrace/link/release.h"
#include "millrace/link/status.h"
#include "millrace/link/testing.h"
#include "millrace/link/wait.h"
#include "millrace/sync/testing.h"

namespace millrace::link {
namespace {

using ::testing::HasSubstr;
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

// Waiting would last until the kernel takes the lease away, 45 seconds, and a release that writes down what it did
// would wait for this sweep meanwhile.
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

TEST(Link, AFileThatIsBeingReleasedIsNotWaitedFor) {
  LinkBench link(everything());
  link.write("a", "whole");
  Descriptor holder(::open((link.directory() / "a").c_str(), O_RDWR | O_CLOEXEC));
  {
    const FileLease lease(holder.get(), FileLease::Kind::kNobody);
    ASSERT_TRUE(lease.is_held());
    EXPECT_EQ(link.swept().postponed, 1);
    EXPECT_TRUE(link.objects().empty());
  }
  EXPECT_EQ(link.swept().postponed, 1) << "open for writing";
  holder = Descriptor();
  EXPECT_EQ(link.swept().exported, 1);
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

TEST(Link, WhatIsUsedSoonestIsReleasedLast) {
  LinkBench link;
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "pinned/g"};
  for (const std::string& name : names) link.write(name, name);
  link.swept();
  const timespec now{.tv_sec = std::time(nullptr), .tv_nsec = 0};
  for (size_t i = 0; i < names.size(); ++i) {
    // "a" was used last.
    const timespec used{.tv_sec = now.tv_sec - static_cast<time_t>(3600 * (i + 1)), .tv_nsec = 0};
    const timespec times[2] = {used, used};
    ASSERT_EQ(::utimensat(AT_FDCWD, (link.directory() / names[i]).c_str(), times, 0), 0);
  }
  link.config().pins = {"pinned/"};
  // A dry run goes through all of them, because no such share of a file system is ever free.
  const auto order = [&](ReleaseOptions options) {
    std::string released;
    options.dry_run = true;
    options.on_file = [&](const std::string& path, int64_t, const std::string&) { released += path; };
    const auto report = release(link.config(), link.here(), link.state(), options, {});
    EXPECT_TRUE(report) << report.error().to_string();
    return released;
  };
  for (const size_t at_once : {size_t{1}, size_t{2}, size_t{3}, size_t{100}}) {
    EXPECT_EQ(order({.keep_free = 2, .most_candidates = at_once}), "fedcba");
    EXPECT_EQ(order({.keep_free = 2, .next_use = {"e", "b", "missing", "f"}, .most_candidates = at_once}), "dcafbe");
  }
  EXPECT_EQ(order({}), "abcdef");
  EXPECT_EQ(order({.pins = {"[bc]"}}), "adef");
  EXPECT_EQ(order({.older_than_s = 4.5 * 3600}), "ef");
  EXPECT_EQ(order({.below = "pinned"}), "");
  link.config().pins.clear();
  EXPECT_EQ(order({.below = "pinned"}), "pinned/g");
  EXPECT_EQ(order({.below = "pinned/g"}), "pinned/g");
  link.write("a.txt", "begins with the name of another");
  link.swept();
  EXPECT_EQ(order({.below = "a"}), "a");
  EXPECT_EQ(code_of(release(link.config(), link.here(), link.state(), {.below = "misspelt", .dry_run = true}, {})),
            ErrorCode::kNotFound);
}

TEST(Link, OnlyTheNodeThatRunsALinkReleases) {
  LinkBench link;
  link.write("a", "content");
  link.swept();
  link.config().take_over_s = 30;
  const auto released = [&] { return release(link.config(), link.here(), link.state(), {.dry_run = true}, {}); };
  EXPECT_TRUE(released()) << "nobody runs it";
  for (const std::string& node : {std::string("another"), host_name()}) {
    Leader leader(*open_url(link.config().url), node + "-1", node, std::chrono::seconds(30));
    ASSERT_TRUE(*leader.take());
    const auto report = released();
    EXPECT_EQ(report.has_value(), node == host_name());
    EXPECT_THAT(report ? "" : report.error().to_string(), HasSubstr(node == "another" ? "another runs the link" : ""));
    ASSERT_TRUE(leader.give_up());
  }
}

TEST(Link, WhatAnotherNodeReleasedAndRestoredIsNobodysChange) {
  LinkBench link(everything());
  const std::string content(300'000, 'x');
  link.write("file", content);
  link.swept();
  const std::string path = (link.directory() / "file").string();
  const Files objects = link.objects();
  // As `link release` of another node leaves it, whose state this one does not have.
  const auto time = fs::last_write_time(path);
  fs::resize_file(path, 0);
  fs::resize_file(path, content.size());
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  fs::last_write_time(path, time);
  EXPECT_EQ(link.swept().exported, 0);
  EXPECT_EQ((*link.state().find("file"))->state, LinkFile::State::kReleased);
  EXPECT_TRUE(link.objects() == objects);
  fs::remove(path);
  link.write("file", content);
  const LinkCounts counts = link.swept();
  EXPECT_EQ(counts.failed + counts.conflicts, 0);
  EXPECT_EQ((*link.state().find("file"))->state, LinkFile::State::kEqual);
  EXPECT_TRUE(link.objects() == objects);
}

TEST(Link, AStubThatIsRenamedOverAFileBringsItsContent) {
  LinkBench link(everything());
  link.write("stub", "content of the stub");
  link.write("file", "content of the file");
  link.swept();
  const std::string path = (link.directory() / "stub").string();
  const auto time = fs::last_write_time(path);
  fs::resize_file(path, 0);
  fs::resize_file(path, 19);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  fs::last_write_time(path, time);
  link.swept();
  ASSERT_EQ((*link.state().find("stub"))->state, LinkFile::State::kReleased);
  fs::rename(path, link.directory() / "file");
  EXPECT_EQ(link.swept().failed, 0);
  EXPECT_EQ(link.objects(), (Files{{"file", "content of the stub"}}));
  EXPECT_EQ((*link.state().find("file"))->state, LinkFile::State::kReleased);
  // One that nobody knows any more is sent to nobody.
  ASSERT_TRUE(link.state().forget("file"));
  fs::rename(link.directory() / "file", link.directory() / "other");
  EXPECT_EQ(link.swept().failed, 1);
  EXPECT_THAT((*link.state().problems(5)).front().error, HasSubstr("has no content"));
}

// As `link release` of a user who is not root leaves it.
void make_released(LinkBench& link, const std::string& name) {
  const std::string path = (link.directory() / name).string();
  const auto time = fs::last_write_time(path);
  const auto size = fs::file_size(path);
  fs::resize_file(path, 0);
  fs::resize_file(path, size);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  fs::last_write_time(path, time);
  link.swept();
  ASSERT_EQ((*link.state().find(name))->state, LinkFile::State::kReleased);
}

void restore_all(LinkBench& link) {
  const auto report = restore(link.config(), link.here(), link.there(), link.state(), link.engine(), {}, {}, nullptr);
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->failed, 0);
}

TEST(Link, AStubThatMeetsANewObjectUnderItsNewNameKeepsItsContent) {
  // Of the same size as the stub, and of another.
  for (const std::string other : {"content of another", "longer than the other content"}) {
    for (const ConflictRule rule : {ConflictRule::kBoth, ConflictRule::kDirectory, ConflictRule::kBucket}) {
      LinkConfig config = everything();
      config.conflict = rule;
      LinkBench link(config);
      link.write("a", "content of a stub!");
      link.write("stays", "x");
      link.swept();
      make_released(link, "a");
      fs::rename(link.directory() / "a", link.directory() / "b");
      link.put("b", other);
      EXPECT_EQ(link.swept().conflicts, 1);
      link.swept();
      restore_all(link);
      EXPECT_EQ(link.swept().failed, 0);
      const Files files = link.files();
      EXPECT_EQ(files, link.objects());
      EXPECT_EQ(files.at("b"), rule == ConflictRule::kDirectory ? "content of a stub!" : other);
      EXPECT_FALSE(files.contains("a"));
      EXPECT_EQ(files.size(), rule == ConflictRule::kBoth ? 3U : 2U);
      const Files trash = link.trash_there();
      if (rule == ConflictRule::kDirectory) {
        EXPECT_EQ(trash.at("b"), other);
      }
      if (rule == ConflictRule::kBucket) {
        EXPECT_EQ(trash.at("a"), "content of a stub!");
      }
      EXPECT_EQ((*link.state().counts()).problems, 0);
    }
  }
}

TEST(Link, AChainOfRenamedStubsKeepsEachContent) {
  LinkBench link(everything());
  const Files before = {{"a", "one"}, {"b", "two"}, {"c", "three"}, {"stays", "x"}};
  for (const auto& [name, content] : before) link.write(name, content);
  link.swept();
  for (const char* name : {"a", "b", "c"}) make_released(link, name);
  fs::rename(link.directory() / "c", link.directory() / "d");
  fs::rename(link.directory() / "b", link.directory() / "c");
  fs::rename(link.directory() / "a", link.directory() / "b");
  link.write("a", "new under an old name");
  EXPECT_EQ(link.swept().failed, 0);
  restore_all(link);
  const Files after = {{"a", "new under an old name"}, {"b", "one"}, {"c", "two"}, {"d", "three"}, {"stays", "x"}};
  EXPECT_EQ(link.files(), after);
  EXPECT_EQ(link.objects(), after);
}

TEST(Link, StubsThatChangeTheirNamesWithEachOtherKeepTheirContents) {
  LinkBench link(everything());
  link.write("a", "of a");
  link.write("b", "of b");
  link.write("stays", "x");
  link.swept();
  for (const char* name : {"a", "b"}) make_released(link, name);
  fs::rename(link.directory() / "a", link.directory() / "for a moment");
  fs::rename(link.directory() / "b", link.directory() / "a");
  fs::rename(link.directory() / "for a moment", link.directory() / "b");
  EXPECT_EQ(link.swept().postponed, 1);
  link.swept();
  restore_all(link);
  EXPECT_EQ(link.swept().failed, 0);
  EXPECT_EQ(link.files(), (Files{{"a", "of b"}, {"b", "of a"}, {"stays", "x"}}));
  EXPECT_EQ(link.objects(), link.files());
}

TEST(Link, AnObjectIsKeptWhileItsRenamedStubHasNone) {
  LinkConfig config = everything();
  config.here.trash = config.there.trash = std::nullopt;
  LinkBench link(config);
  link.write("a", "the only copy");
  link.write("stays", "x");
  link.swept();
  make_released(link, "a");
  fs::rename(link.directory() / "a", link.directory() / "b");
  // The copy of the object to its new name fails, for a while.
  link.faults().add({.call = FaultCall::kOpenWrite,
                     .key_part = "/b",
                     .count = FaultRule::kForever,
                     .error = Error(ErrorCode::kUnavailable, "a fault of this test")});
  EXPECT_EQ(link.swept().deleted_there, 0);
  EXPECT_EQ(link.objects().at("a"), "the only copy");
  link.faults().clear();
  EXPECT_EQ(link.swept().moved, 1);
  link.swept();
  EXPECT_EQ(link.objects(), (Files{{"b", "the only copy"}, {"stays", "x"}}));
  // Under a name that the filter leaves out: the object stays where it is.
  link.config().filter = {"- *.out"};
  fs::rename(link.directory() / "b", link.directory() / "b.out");
  EXPECT_EQ(link.swept().deleted_there, 0);
  EXPECT_EQ(link.objects().at("b"), "the only copy");
  // With its old name it is what it was.
  fs::rename(link.directory() / "b.out", link.directory() / "b");
  EXPECT_EQ(link.swept().failed, 0);
  restore_all(link);
  EXPECT_EQ(link.files().at("b"), "the only copy");
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

TEST(Link, AnOrderIsOfPathsOrUrlsOfTheLink) {
  LinkBench link;
  const std::string file = link.links() + "/order";
  const auto write_order = [&](const std::string& text) { std::ofstream(file) << text; };
  write_order(link.directory().string() + "/a\n\n" + link.config().url + "/b c\nd/e\n");
  EXPECT_EQ(*read_order(link.config(), file), (std::vector<std::string>{"a", "b c", "d/e"}));
  write_order("a\n/elsewhere/b\n");
  const auto read = read_order(link.config(), file);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message(), HasSubstr("line 2"));
  EXPECT_EQ(code_of(read_order(link.config(), file + "-missing")), ErrorCode::kNotFound);
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
