// SPDX-License-Identifier: Apache-2.0
// Trees are made equal, and what cannot be copied is said.
#include "millrace/sync/sync.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>

#include "millrace/storage/testing/fault.h"
#include "millrace/sync/testing/sync.h"

namespace millrace::sync {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  // When one file of a batch cannot be made durable, none of the batch counts as durable; all are copied again.
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
