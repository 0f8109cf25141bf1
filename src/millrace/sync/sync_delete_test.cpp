// SPDX-License-Identifier: Apache-2.0
// What a sync removes, and what keeps it from removing.
#include <gmock/gmock.h>

#include <filesystem>

#include "millrace/storage/testing/fault.h"
#include "millrace/sync/sync.h"
#include "millrace/sync/testing/sync.h"

namespace millrace::sync {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace millrace::sync
