// SPDX-License-Identifier: Apache-2.0
// What a sync that was stopped or killed leaves, and what the next one makes of it.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "millrace/sync/sync.h"
#include "millrace/sync/testing/sync.h"

namespace millrace::sync {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

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

}  // namespace
}  // namespace millrace::sync
