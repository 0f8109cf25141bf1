// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/sync.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/sync/testing.h"

namespace millrace::sync {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// From a folder on disk, whose times a test can set, to memory.
class SyncTest : public testing::Test {
 protected:
  SyncReport run(SyncOptions options = {}, std::stop_token stop = {}) {
    events_.clear();
    options.on_event = [this](const SyncEvent& event) {
      events_.push_back(std::string(event_name(event.kind)) + " " + event.path + ": " + event.reason);
    };
    auto report = sync(source_, target_, options, stop);
    EXPECT_TRUE(report) << report.error().to_string();
    return report ? *std::move(report) : SyncReport();
  }
  // Changes bytes in place and puts the old times back.
  void edit_secretly(const std::string& name, const std::string& content) {
    const std::string path = dir_.path() + "/source/" + name;
    struct stat before{};
    ASSERT_EQ(::stat(path.c_str(), &before), 0);
    ASSERT_EQ(before.st_size, std::ssize(content));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the tick of change times
    std::fstream(path, std::ios::in | std::ios::out) << content;
    const timespec times[2] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  TempDir dir_;
  Location source_ = *open_url(dir_.path() + "/source");
  Location target_ = memory_location("to");
  std::vector<std::string> events_;
};

TEST_F(SyncTest, ASecondRunMovesNothing) {
  const Tree tree{{"a", "1"}, {"a.b", "22"}, {"d/e/f", "333"}, {"empty", ""}};
  put_all(source_, tree);
  const SyncReport first = run();
  EXPECT_EQ(first.copied_files, 4);
  EXPECT_EQ(first.moved_bytes, 6);
  EXPECT_TRUE(first.status());
  EXPECT_EQ(tree_of(target_), tree);
  EXPECT_THAT(events_, Contains("copy d/e/f: not at the target"));
  const SyncReport second = run();
  EXPECT_EQ(second.copied_files, 0);
  EXPECT_EQ(second.moved_bytes, 0);
  EXPECT_EQ(second.skipped_files, 4);
  EXPECT_EQ(second.saved_bytes(), 6);
  EXPECT_THAT(events_, Contains("skip a: unchanged since the last sync"));
}

TEST_F(SyncTest, WhatVanishesMeanwhileEndsNothing) {
  Tree tree;
  for (int i = 0; i < 4200; ++i) tree[fmt::format("many/{:04}", i)] = "x";  // more than a page
  put_all(source_, tree);
  put_all(source_, {{"z/deep/1", "1"}, {"z/deep/2", "2"}});
  put_all(target_, {{"only here", "kept"}});
  const auto bent = std::make_shared<BentStorage>(source_.storage);
  source_.storage = bent;
  bent->bend_page = [&](ListPage&) { std::filesystem::remove_all(dir_.path() + "/source/z"); };
  bent->on_open = [&](std::string_view key) {
    if (key.ends_with("/0007")) std::filesystem::remove(dir_.path() + "/source/many/0007");
  };
  const SyncReport report = run({.delete_extra = true});
  EXPECT_TRUE(report.end) << report.end.error().to_string();
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.copied_files, 4199);
  EXPECT_THAT(events_, Contains(HasSubstr("fail many/0007")));
  EXPECT_THAT(report.not_deleted, HasSubstr("failed"));
  tree.erase("many/0007");
  tree["only here"] = "kept";
  EXPECT_EQ(tree_of(target_), tree);
}

TEST_F(SyncTest, AMoveRemovesOnlyTheVersionThatItCopied) {
  put_all(source_, {{"changes", "1"}, {"d/moves", "22"}, {"d/e/moves", "333"}, {"fails", "4"}});
  const auto bent = std::make_shared<BentStorage>(target_.storage);
  target_.storage = bent;
  bent->on_write = [](std::string_view key) {
    return key.ends_with("fails") ? fail(ErrorCode::kUnavailable, "the disk is ill") : Status();
  };
  SyncOptions moving{.compare = CompareBy::kNone, .remove_source = true};
  moving.on_event = [&](const SyncEvent& event) {
    if (event.path == "changes") put_all(source_, {{"changes", "1 and more"}});  // after it was copied
  };
  const auto report = sync(source_, target_, moving);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->copied_files, 3);
  EXPECT_EQ(report->removed_files, 2);
  EXPECT_EQ(report->failed, 2);
  EXPECT_EQ(tree_of(source_), (Tree{{"changes", "1 and more"}, {"fails", "4"}}));
  EXPECT_EQ(tree_of(target_), (Tree{{"changes", "1"}, {"d/moves", "22"}, {"d/e/moves", "333"}}));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/source/d")) << "folders that became empty go";
  bent->on_write = {};
  moving.on_event = {};
  EXPECT_EQ(sync(source_, target_, moving)->removed_files, 2);
  EXPECT_EQ(tree_of(source_), Tree());
  std::filesystem::create_directory(dir_.path() + "/source");
  EXPECT_EQ(sync(source_, target_, moving)->removed_files, 0);
  EXPECT_TRUE(std::filesystem::exists(dir_.path() + "/source")) << "there was nothing to move";
}

TEST_F(SyncTest, SmallFilesAreMadeDurableTogetherBeforeTheyAreReported) {
  Tree tree;
  for (int i = 0; i < 600; ++i) tree[fmt::format("d{}/{:03}", i % 3, i)] = "x";
  put_all(source_, tree);
  const auto bent = std::make_shared<BentStorage>(open_url(dir_.path())->storage);
  target_ = *open_url(dir_.path() + "/target");
  target_.storage = bent;
  Mutex mutex;
  std::multiset<std::string> durable;
  size_t calls = 0, too_early = 0;
  bent->on_durable = [&](std::span<const std::string> keys) -> Status {
    MutexLock lock(mutex);
    ++calls;
    durable.insert(keys.begin(), keys.end());
    return {};
  };
  SyncOptions watched;
  watched.on_event = [&](const SyncEvent& event) {
    MutexLock lock(mutex);
    too_early += durable.count(target_.child(event.path).key) == 0;
  };
  EXPECT_EQ(sync(source_, target_, watched)->copied_files, 600);
  EXPECT_EQ(durable.size(), 600U);
  EXPECT_LE(calls, 10U);
  EXPECT_EQ(too_early, 0U) << "reported before they were durable";
  // Of those that were to be durable together with one that cannot be, none is taken to be; they are copied again.
  for (auto& [path, content] : tree) content = "yy";
  put_all(source_, tree);
  size_t together = 0;
  bent->on_durable = [&](std::span<const std::string> keys) -> Status {  // tells of it once, as file systems do
    const bool bad = std::any_of(keys.begin(), keys.end(), [](const auto& key) { return key.ends_with("/007"); });
    if (!bad || together > 0) return {};
    together = keys.size();
    return fail(ErrorCode::kInternal, "the disk is ill");
  };
  const SyncReport ill = run();
  EXPECT_GT(together, 0U);
  EXPECT_EQ(ill.failed, static_cast<int64_t>(together));
  EXPECT_EQ(ill.copied_files, 600 - static_cast<int64_t>(together));
  EXPECT_THAT(events_, Contains(HasSubstr("fail d1/007: the disk is ill")));
  bent->on_durable = {};
  run();
  EXPECT_THAT(events_, Contains(HasSubstr(" d1/007: ")));
  EXPECT_EQ(tree_of(target_), tree);
}

// Where nobody knows whose they are, only those that nobody can still be at.
TEST_F(SyncTest, OldUploadsAreEnded) {
  put_all(source_, {{"a", "1"}});
  const auto bent = std::make_shared<BentStorage>(target_.storage);
  target_.storage = bent;
  const auto now = std::chrono::system_clock::now();
  bent->left = {{.key = "to/young", .modified = now - std::chrono::hours(24 * 6)},
                {.key = "to/old", .modified = now - std::chrono::hours(24 * 8)}};
  std::vector<std::string> ended;
  bent->on_abort = [&](std::span<const ObjectInfo> uploads) {
    for (const ObjectInfo& upload : uploads) ended.push_back(upload.key);
  };
  bent->forgets_dead = true;
  run();
  EXPECT_THAT(ended, ElementsAre("to/old"));
  run();
  EXPECT_EQ(ended.size(), 1U) << "nothing was copied";
}

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

TEST_F(SyncTest, NothingIsDeletedUnlessAsked) {
  put_all(source_, {{"a", "1"}, {"d/a", "1"}});
  put_all(target_, {{"b", "2"}, {"d/b", "2"}});
  EXPECT_EQ(run().extra_files, 2);
  EXPECT_THAT(tree_of(target_), testing::SizeIs(4));
  const SyncReport held = run({.delete_extra = true, .max_delete = 1});
  EXPECT_EQ(held.deleted_files, 0);
  EXPECT_THAT(held.status().error().to_string(), HasSubstr("2 would be deleted, more than --max-delete 1"));
  const SyncReport report = run({.delete_extra = true, .max_delete = 2});
  EXPECT_EQ(report.deleted_files, 2);
  EXPECT_EQ(report.deleted_bytes, 2);
  EXPECT_EQ(events_.back(), "delete d/b: not at the source");
  EXPECT_EQ(tree_of(target_), tree_of(source_));
}

TEST_F(SyncTest, BlockHashesGoWithTheirObject) {
  put_all(source_, {{"d/large", std::string(kBlockBytes + 1, 'x')}, {"small", "1"}});
  run();
  put(target_, "d/.millrace/large.blocks", "as a storage that writes parts has them");
  EXPECT_EQ(tree_of(target_).size(), 2u);
  EXPECT_EQ(run({.delete_extra = true}).extra_files, 0);
  ASSERT_TRUE(source_.storage->remove(std::vector{source_.child("d/large").key}));
  EXPECT_EQ(run({.delete_extra = true}).deleted_files, 1);
  EXPECT_EQ(tree_of(target_, true).count("d/.millrace/large.blocks"), 0u);
}

TEST_F(SyncTest, AnEmptySourceDeletesNothing) {
  put(target_, "a", "1");
  std::filesystem::create_directories(dir_.path() + "/source/empty");
  const SyncReport report = run({.delete_extra = true});
  EXPECT_EQ(report.not_deleted, "the source has no files");
  EXPECT_EQ(tree_of(target_).size(), 1u);
}

TEST_F(SyncTest, AMissingSourceIsAnError) {
  EXPECT_EQ(sync(source_, target_).error().code(), ErrorCode::kNotFound);
  put(target_, "one", "1");
  EXPECT_THAT(sync(target_.child("one"), source_).error().to_string(), HasSubstr("cp copies it"));
  const Location memory = memory_location("nothing");
  EXPECT_EQ(sync(memory, target_).error().code(), ErrorCode::kNotFound);
  put(memory, "one", "1");
  SyncOptions none;
  ASSERT_TRUE(none.filter.exclude("*"));
  EXPECT_TRUE(sync(memory, target_, none)) << "something is there, though it is left out";
  EXPECT_TRUE(sync(located(make_memory_storage("bucket"), ""), target_)) << "a bucket may be empty";
}

TEST_F(SyncTest, AListingThatFailsInTheMiddleDeletesNothing) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto memory = make_memory_storage("source");
  source_ = located(make_fault_storage(memory, plan), "from");
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(write_object(*memory, fmt::format("from/{:05}", i), "x", {}, Durability::kVisible));
  }
  put(target_, "00000-extra", "1");
  put(target_, "zzz", "1");
  for (int skip = 0; skip < 3; ++skip) {
    plan->clear();
    plan->add({.call = FaultCall::kList, .skip = skip, .error = Error(ErrorCode::kUnavailable, "gone")});
    const SyncReport report = run({.delete_extra = true});
    EXPECT_EQ(report.end.error().code(), ErrorCode::kUnavailable);
    EXPECT_EQ(report.deleted_files, 0);
    EXPECT_EQ(tree_of(target_).count("00000-extra"), 1u);
  }
  plan->clear();
  EXPECT_EQ(run({.delete_extra = true}).deleted_files, 2);
  EXPECT_EQ(tree_of(target_), tree_of(source_));
}

TEST_F(SyncTest, AFailedFileIsCountedAndTheRestGoesOn) {
  const auto plan = std::make_shared<FaultPlan>();
  put_all(source_, {{"a", "1"}, {"b", "2"}, {"c", "3"}});
  put(target_, "z", "9");
  source_.storage = make_fault_storage(source_.storage, plan);
  plan->add({.call = FaultCall::kOpenRead, .key_part = "/b", .error = Error(ErrorCode::kPermissionDenied, "no")});
  const SyncReport report = run({.delete_extra = true});
  EXPECT_EQ(report.copied_files, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.status().error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(report.not_deleted, "files failed");
  EXPECT_THAT(events_, Contains(testing::AllOf(testing::StartsWith("fail b: "), testing::EndsWith(": no"))));
  EXPECT_EQ(run({.delete_extra = true}).copied_files, 1);
  EXPECT_EQ(tree_of(target_), tree_of(source_));
}

TEST_F(SyncTest, ADryRunSaysItAndChangesNothing) {
  put_all(source_, {{"a", "1"}, {"b", "22"}, {"same", "3"}, {"x", "1"}});
  put_all(target_, {{"b", "2"}, {"gone", "3"}, {"same", "3"}});
  const Tree before = tree_of(target_, true);
  const SyncReport dry = run({.delete_extra = true, .dry_run = true});
  const auto said = events_;
  EXPECT_EQ(tree_of(target_, true), before);
  EXPECT_THAT(said, ElementsAre("copy a: not at the target", "copy b: another size", "skip same: the same content",
                                "copy x: not at the target", "delete gone: not at the source"));
  const SyncReport wet = run({.delete_extra = true});
  EXPECT_EQ(events_, said);
  EXPECT_EQ(dry.copied_bytes, wet.copied_bytes);
  EXPECT_EQ(dry.deleted_files, wet.deleted_files);
}

TEST_F(SyncTest, WhatIsLeftOutIsNeitherCopiedNorDeleted) {
  put_all(source_, {{"a.tmp", "1"}, {"b", "2"}, {"logs/x", "3"}});
  put_all(target_, {{"old.tmp", "1"}, {"logs/y", "2"}, {"z", "3"}});
  SyncOptions options{.delete_extra = true};
  ASSERT_TRUE(options.filter.exclude("*.tmp"));
  ASSERT_TRUE(options.filter.exclude("/logs/"));
  run(options);
  EXPECT_THAT(tree_of(target_), testing::UnorderedElementsAre(testing::Pair("b", "2"), testing::Pair("old.tmp", "1"),
                                                              testing::Pair("logs/y", "2")));
}

TEST_F(SyncTest, TheRecordOfOtherFilesStays) {
  put_all(source_, {{"a", "old"}, {"b", "old"}});
  run();
  SyncOptions only_b;
  ASSERT_TRUE(only_b.filter.exclude("a"));
  put(source_, "b", "new");
  run(only_b);
  edit_secretly("a", "new");
  run();
  EXPECT_EQ(tree_of(target_).at("a"), "new");
}

TEST_F(SyncTest, LinksAndDevicesArePassedOver) {
  put_all(source_, {{"a", "1"}, {"real/x", "2"}});
  put_all(target_, {{"dir/kept", "1"}});
  const std::string path = dir_.path() + "/source/";
  std::filesystem::create_symlink("a", path + "link");
  std::filesystem::create_directory_symlink("real", path + "dir");
  ASSERT_EQ(::mkfifo((path + "pipe").c_str(), 0600), 0);
  const SyncReport report = run({.delete_extra = true});
  EXPECT_EQ(report.passed, 3);
  EXPECT_TRUE(report.status());
  EXPECT_THAT(events_, Contains("pass link: a symbolic link"));
  EXPECT_THAT(events_, Contains("pass pipe: a socket, pipe or device"));
  EXPECT_THAT(tree_of(target_), testing::SizeIs(3));  // what lies in the folder of a link's name is not deleted
  run({.follow_links = true});
  EXPECT_EQ(tree_of(target_).at("link"), "1");
  EXPECT_EQ(tree_of(target_).at("dir/x"), "2");
}

TEST_F(SyncTest, NothingIsWrittenThroughALinkOfTheTarget) {
  std::filesystem::create_directories(dir_.path() + "/to");
  std::filesystem::create_directories(dir_.path() + "/outside");
  std::filesystem::create_directory_symlink(dir_.path() + "/outside", dir_.path() + "/to/dir");
  std::filesystem::create_symlink(dir_.path() + "/outside/file", dir_.path() + "/to/file");
  target_ = *open_url(dir_.path() + "/to");
  put_all(source_, {{"dir/x", "1"}, {"file", "2"}});
  const SyncReport report = run();
  EXPECT_EQ(report.refused, 1);
  EXPECT_FALSE(report.status());
  EXPECT_THAT(events_, ElementsAre("extra dir: a symbolic link",
                                   "refuse dir/x: at the target a symbolic link is where its folder belongs",
                                   "copy file: a symbolic link at the target"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path() + "/outside"));
}

TEST_F(SyncTest, KeysThatAreNoPathsAreRefusedOneByOne) {
  const auto bent = std::make_shared<BentStorage>(make_memory_storage("s3"));
  bent->bend_page = [](ListPage& page) {
    for (const char* key : {"from//x", "from/../y", "from/dir/", "from/z/"}) page.objects.push_back({.key = key});
    page.objects.back().size = 3;
    std::sort(page.objects.begin(), page.objects.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  };
  put_all(located(bent, "from"), {{"a", "1"}, {"dir/b", "2"}});
  source_ = located(bent, "from");
  target_ = *open_url(dir_.path() + "/to");
  const SyncReport report = run();
  EXPECT_EQ(report.refused, 3);
  EXPECT_EQ(report.passed, 1);
  EXPECT_EQ(report.copied_files, 2);
  EXPECT_THAT(events_, Contains("refuse z/: the key is no legal path"));
  EXPECT_THAT(events_, Contains("pass dir/: a folder marker"));
  EXPECT_THAT(tree_of(target_), testing::SizeIs(2));
}

TEST_F(SyncTest, ANameThatIsFileAndFolder) {
  source_ = memory_location("from");
  put_all(source_, {{"a", "1"}, {"a!", "2"}, {"a/b", "3"}, {"a/c/d", "4"}});
  run();
  EXPECT_EQ(tree_of(target_), tree_of(source_));
  target_ = *open_url(dir_.path() + "/to");
  const SyncReport report = run();
  EXPECT_EQ(report.copied_files, 2);
  EXPECT_EQ(report.refused, 2);
  EXPECT_THAT(events_, Contains("refuse a/b: the source has a file of the name of its folder"));
  EXPECT_THAT(tree_of(target_), testing::SizeIs(2));
}

TEST_F(SyncTest, AStorageWithoutOrderIsRefused) {
  const auto bent = std::make_shared<BentStorage>(make_memory_storage("s3"));
  put_all(located(bent, "from"), {{"a", "1"}, {"b", "2"}});
  bent->bend_page = [](ListPage& page) { std::reverse(page.objects.begin(), page.objects.end()); };
  source_ = located(bent, "from");
  EXPECT_EQ(run().end.error().code(), ErrorCode::kUnsupported);
}

TEST_F(SyncTest, SpaceIsCheckedBefore) {
  const auto bent = std::make_shared<BentStorage>(make_memory_storage("small"));
  target_ = located(bent, "to");
  put_all(source_, {{"a", "12345"}, {"b", "12345"}});
  bent->free_bytes = 9;
  const SyncReport report = run();
  EXPECT_EQ(report.end.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(tree_of(target_, true), IsEmpty());
  EXPECT_THAT(report.end.error().to_string(), AllOf(HasSubstr("10 B"), HasSubstr("9 B"), HasSubstr("quota of a test")));
  bent->free_bytes = 10;
  EXPECT_TRUE(run().status()) << "exactly";
  put_all(source_, {{"a", "123456"}});
  bent->free_bytes = 5;
  EXPECT_FALSE(run().end) << "the old one stays until the new one is whole";
  bent->free_bytes = 6;
  EXPECT_TRUE(run().status());
}

TEST_F(SyncTest, WhatAKilledRunLeftCountsAsRoom) {
  const auto bent = std::make_shared<BentStorage>(make_memory_storage("small"));
  target_ = located(bent, "to");
  put_all(source_, {{"a", "12345"}, {"b", "12345"}});
  bent->free_bytes = 6;
  EXPECT_FALSE(run().end);
  bent->left = {{.key = "to/a", .size = 4}};
  EXPECT_TRUE(run().status());
}

TEST_F(SyncTest, ALostOrDamagedRecordCostsOnlyTime) {
  put_all(source_, {{"a", "1"}, {"b", "2"}});
  run();
  const std::string key = target_.child(record_path(source_)).key;
  const std::string good = *read_object(*target_.storage, key);
  for (const std::string& bad : {std::string(), std::string("nonsense"), good.substr(0, good.size() - 1)}) {
    ASSERT_TRUE(write_object(*target_.storage, key, bad));
    EXPECT_EQ(run().skipped_files, 2);
    run();
    EXPECT_THAT(events_, ElementsAre("skip a: unchanged since the last sync", "skip b: unchanged since the last sync"));
  }
}

TEST_F(SyncTest, AStopIsCleanAndTheNextRunGoesOn) {
  SCOPED_TRACE(test_seed());
  Tree tree;
  for (int i = 0; i < 200; ++i) tree[fmt::format("{:03}", i)] = std::to_string(i);
  put_all(source_, tree);
  const auto bent = std::make_shared<BentStorage>(source_.storage);
  source_.storage = bent;
  int64_t copied = 0;
  for (int round = 0; round < 3; ++round) {
    std::stop_source stop;
    std::atomic<int> opened{0};
    bent->on_open = [&](std::string_view) {
      if (++opened == 50) stop.request_stop();
    };
    const SyncReport report = run({.delete_extra = true}, stop.get_token());
    EXPECT_EQ(report.end.error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(report.failed, 0);
    copied += report.copied_files;
  }
  bent->on_open = {};
  const SyncReport last = run();
  EXPECT_TRUE(last.status());
  EXPECT_EQ(copied + last.copied_files, 200);
  EXPECT_EQ(tree_of(target_), tree);
  EXPECT_EQ(run().copied_files, 0);
  EXPECT_THAT(events_, Contains("skip 000: unchanged since the last sync"));
  EXPECT_THAT(events_, Contains("skip 199: unchanged since the last sync"));
}

TEST_F(SyncTest, AKilledRunIsNotDoneAgain) {
  Tree tree;
  for (int i = 0; i < 700; ++i) tree[fmt::format("{:03}", i)] = "old " + std::to_string(100 + i);
  put_all(source_, tree);
  target_ = *open_url(dir_.path() + "/to");
  run();
  for (auto& [path, content] : tree) {
    content = "new" + content.substr(3);
    std::fstream(dir_.path() + "/source/" + path, std::ios::in | std::ios::out) << content;
  }
  ASSERT_FALSE(succeeds_in_child([&] {
    int copied = 0;
    SyncOptions options{.record_every = std::chrono::milliseconds(0)};
    options.on_event = [&](const SyncEvent&) {
      if (++copied == 600) _exit(9);
    };
    static_cast<void>(sync(source_, target_, options));
    return true;
  }));
  const SyncReport report = run();
  EXPECT_TRUE(report.status());
  EXPECT_GT(report.copied_files, 0);
  EXPECT_LT(report.copied_files, 700);  // how many fewer depends on when the record was saved last
  EXPECT_THAT(events_, Contains("skip 000: unchanged since the last sync"));
  EXPECT_EQ(tree_of(target_), tree);
  EXPECT_THAT(tree_of(target_, true), testing::SizeIs(701));
  EXPECT_EQ(run().copied_files, 0);
}

TEST_F(SyncTest, WhatAKilledRunLeftGoesThoughNothingIsToBeCopied) {
  put_all(source_, {{"a", "1"}, {"b", "2"}});
  target_ = *open_url(dir_.path() + "/to");
  run();
  ASSERT_TRUE(succeeds_in_child([&] {
    const auto writer = target_.storage->open_write(target_.child("c").key, {});
    _exit(writer && (*writer)->append(as_bytes("half")) ? 0 : 1);
    return false;
  }));
  ASSERT_EQ(target_.storage->list_uploads(prefix_of(target_))->size(), 1U);
  EXPECT_EQ(run().copied_files, 0);
  EXPECT_EQ(target_.storage->list_uploads(prefix_of(target_))->size(), 1U) << "a sync without work looks for none";
  std::filesystem::remove_all(dir_.path() + "/to/.millrace");  // as if it had been killed before it could record
  EXPECT_EQ(run().copied_files, 0);
  EXPECT_THAT(*target_.storage->list_uploads(prefix_of(target_)), IsEmpty());
}

TEST_F(SyncTest, OverlapsAreRefused) {
  EXPECT_EQ(sync(source_, source_.child("below")).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sync(source_, source_).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sync(source_.child("below"), source_, {.delete_extra = true}).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(SyncTest, ATreeLargerThanWhatIsPlannedAhead) {
  source_ = memory_location("from");
  for (int i = 0; i < 34'000; ++i) put(source_, fmt::format("{:02}/{:05}", i % 7, i), "x");
  EXPECT_EQ(run().copied_files, 34'000);
  EXPECT_EQ(run().skipped_files, 34'000);
  put(source_, "06/33998", "yy");
  EXPECT_EQ(run({.delete_extra = true}).copied_files, 1);
}

// Random changes on both sides; after each sync the target is what a map says.
TEST_F(SyncTest, RandomTrees) {
  SCOPED_TRACE(test_seed());
  std::mt19937_64 random(test_seed());
  const auto below = [&](uint64_t limit) { return random() % limit; };
  const auto path = [&] {
    static const std::vector<std::string> names{"a", "b", "ab", "a.b", "a-", "\xC3\xA9", "x y", "%2F", "~"};
    std::string text = "d" + std::to_string(below(4));
    for (uint64_t i = below(3); i > 0; --i) text += "/d" + names[below(names.size())];
    return text + "/f" + names[below(names.size())];
  };
  for (const bool to_disk : {false, true}) {
    if (to_disk) target_ = *open_url(dir_.path() + "/to");
    Tree expected;
    for (int round = 0; round < rounds(25); ++round) {
      for (int i = 0; i < 12; ++i) {
        const std::string at = path();
        const Tree now = tree_of(source_);
        const uint64_t what = below(4);
        if (what == 0) {
          ASSERT_TRUE(source_.storage->remove(std::vector{source_.child(at).key}));
        } else if (what == 1 && now.contains(at)) {
          edit_secretly(at, test_bytes(now.at(at).size(), random()));
        } else {
          put(source_, at, test_bytes(below(3000), random()));
        }
        if (below(6) == 0) put(target_, path(), "foreign");
      }
      const bool deletes = below(2) == 0;
      expected = deletes ? Tree() : tree_of(target_);
      for (const auto& [at, content] : tree_of(source_)) expected[at] = content;
      const SyncReport report = run({.delete_extra = deletes});
      EXPECT_TRUE(report.status()) << report.status().error().to_string();
      ASSERT_EQ(tree_of(target_), expected) << round;
      ASSERT_EQ(run().copied_files, 0);
    }
  }
}

}  // namespace
}  // namespace millrace::sync
