// SPDX-License-Identifier: Apache-2.0
// Releases, and sweeps that meet released files.
#include "millrace/link/release.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "millrace/base/io/descriptor.h"
#include "millrace/link/answers.h"
#include "millrace/link/leader.h"
#include "millrace/link/lease.h"
#include "millrace/link/testing.h"

namespace millrace::link {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Waiting would last until the kernel takes the lease away, 45 seconds, and a release that writes down what it did
// would wait for this sweep meanwhile.
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
  // Content of the stub's size, and of another size.
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

}  // namespace
}  // namespace millrace::link
