// SPDX-License-Identifier: Apache-2.0
// Copies of steps between folders, and damaged files that are written anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kStep = "step-000000000001", kAttempt = kStep + "/r0000-test";

Location folder(const std::string& name) {
  return root_of(make_memory_storage(name), name);
}

void save_by_ranks(const Location& root, int64_t step, int64_t world_size) {
  std::mt19937_64 random(3);
  const auto ranks = sharded_tensors(arrays_of(step), world_size, random);
  std::vector<std::unique_ptr<Saver>> savers;
  std::vector<std::shared_ptr<PendingSave>> saves;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    savers.push_back(make_saver(root, {.rank = rank, .world_size = world_size}));
    saves.push_back(savers.back()->save(step, ranks[static_cast<size_t>(rank)].tensors(), "{}", "null").value());
  }
  for (const auto& save : saves) EXPECT_OK(save->wait());
}

std::map<std::string, std::string> content(const Location& root) {
  std::map<std::string, std::string> files;
  for (const std::string& key : keys_below(root)) files[key] = read_object(*root.storage, root.child(key).key).value();
  return files;
}

void flip_last(const Location& root, const std::string& key) {
  std::string text = read_object(*root.storage, root.child(key).key).value();
  text.back() ^= 1;
  ASSERT_TRUE(write_object(*root.storage, root.child(key).key, text));
}

std::string file_of(int64_t rank, int64_t world_size = 2) {
  return kAttempt + "/" + RankPlaces::of_new(world_size).file(rank);
}

Status load_all(std::span<const Location> tiers, std::unique_ptr<Checkpoint>& checkpoint) {
  ASSIGN_OR_RETURN(checkpoint, Checkpoint::open(tiers, 1));
  std::map<std::string, Box> boxes;
  const Arrays arrays = arrays_of(1);
  for (const auto& [name, array] : arrays) boxes[name] = box_of_all(array.shape);
  return load_and_compare(*checkpoint, arrays, boxes);
}

TEST(StepCopy, IsTheSameStep) {
  const Location from = folder("from"), to = folder("to");
  save_by_ranks(from, 1, 2);
  const auto copied = copy_step(std::span(&from, 1), to, 1);
  ASSERT_TRUE(copied) << explain(copied);
  EXPECT_EQ(copied->parts, 2);
  EXPECT_EQ(copied->copied, 2);
  EXPECT_EQ(content(to), content(from));
  const auto again = copy_step(std::span(&from, 1), to, 1);
  ASSERT_TRUE(again) << explain(again);
  EXPECT_EQ(again->copied, 0);
  EXPECT_CODE(copy_step(std::span(&from, 1), to, 2), ErrorCode::kNotFound);
}

TEST(StepCopy, MendsWhatIsDamagedFromWhateverIsWhole) {
  const Location far = folder("far"), near = folder("near");
  save_by_ranks(far, 1, 2);
  ASSERT_TRUE(copy_step(std::span(&far, 1), near, 1));
  const auto before = content(far);
  // Each folder has damage; together they are whole.
  flip_last(near, file_of(0));
  flip_last(near, kAttempt + "/" + RankPlaces::of_new(2).record(0));
  flip_last(far, file_of(1));
  const std::vector<Location> both{near, far};
  EXPECT_CODE(copy_step(std::span(&far, 1), folder("third"), 1), ErrorCode::kCorruption);
  for (const Location& target : both) {
    const auto mended = copy_step(both, target, 1);
    ASSERT_TRUE(mended) << explain(mended);
    EXPECT_EQ(mended->copied, 1);
    EXPECT_EQ(content(target), before);
  }
  flip_last(near, kStep + "/manifest.json");
  ASSERT_TRUE(copy_step(both, near, 1));
  EXPECT_EQ(content(near), before);
}

TEST(StepCopy, OfOneRankWaitsForTheOthers) {
  const Location from = folder("from"), to = folder("to");
  save_by_ranks(from, 1, 2);
  const auto alone = copy_step(std::span(&from, 1), to, 1, {.rank = 0, .timeout = milliseconds(50)});
  EXPECT_CODE(alone, ErrorCode::kTimeout);
  EXPECT_THAT(alone.error().to_string(), HasSubstr("1 of 2 parts"));
  EXPECT_THAT(committed_steps(to), ElementsAre());
  EXPECT_OK(copy_step(std::span(&from, 1), to, 1, {.rank = 1, .attempt = "r0000-test"}));
  EXPECT_THAT(committed_steps(to), ElementsAre());
  EXPECT_OK(copy_step(std::span(&from, 1), to, 1, {.rank = 0}));
  EXPECT_EQ(content(to), content(from));
  EXPECT_CODE(copy_step(std::span(&from, 1), to, 1, {.attempt = "r0001-b", .timeout = milliseconds(20)}),
              ErrorCode::kTimeout);
}

TEST(StepCopy, KeepsByTheRulesAndReplacesOnlyOlderAttempts) {
  const Location from = folder("from"), to = folder("to");
  for (int64_t step = 1; step <= 3; ++step) {
    save_by_ranks(from, step, 1);
    EXPECT_OK(copy_step(std::span(&from, 1), to, step, {.keep = {.last = 2}}));
  }
  EXPECT_THAT(committed_steps(to), ElementsAre(2, 3));
  EXPECT_OK(save_and_wait(*make_saver(to, {.attempt = "r0005-c"}), 4, arrays_of(4)));
  save_by_ranks(from, 4, 1);
  EXPECT_CODE(copy_step(std::span(&from, 1), to, 4), ErrorCode::kAlreadyExists);
  EXPECT_OK(copy_step(std::span(&to, 1), from, 4)) << "over an older attempt";
  EXPECT_EQ(list_steps(from)->back().attempt, "r0005-c");
}

// A failure at any operation of the target leaves it without the step, or with all of it; the next try ends.
TEST(StepCopy, IsAllOrNothing) {
  const Location from = folder("from");
  save_by_ranks(from, 1, 2);
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    const auto plan = std::make_shared<FaultPlan>();
    const Location plain = folder("to");
    const Location to = root_of(make_fault_storage(plain.storage, plan), plain.key);
    plan->add({.skip = at, .error = errno_error(EIO, "a fault")});
    const auto copied = copy_step(std::span(&from, 1), to, 1);
    if (!committed_steps(plain).empty()) {
      EXPECT_OK(load_and_compare(plain, 1, arrays_of(1)));
    } else {
      EXPECT_FALSE(copied);
    }
    const bool hit = plan->hits() > 0;
    plan->clear();
    EXPECT_OK(copy_step(std::span(&from, 1), to, 1));
    EXPECT_EQ(content(plain), content(from));
    if (!hit || HasFailure()) {
      EXPECT_GT(at, 6);
      break;
    }
  }
}

TEST(Heal, WritesDamagedFilesAnew) {
  for (const bool record_too : {false, true}) {
    const Location far = folder("far"), near = folder("near");
    save_by_ranks(far, 1, 2);
    ASSERT_TRUE(copy_step(std::span(&far, 1), near, 1));
    flip_last(near, file_of(1));
    if (record_too) flip_last(near, kAttempt + "/" + RankPlaces::of_new(2).record(0));
    std::unique_ptr<Checkpoint> checkpoint;
    EXPECT_OK(load_all(std::vector{near, far}, checkpoint));
    const auto healed = checkpoint->heal();
    ASSERT_TRUE(healed) << explain(healed);
    EXPECT_EQ(*healed, record_too ? 2 : 1);
    EXPECT_EQ(content(near), content(far));
    EXPECT_EQ(*checkpoint->heal(), 0) << "once";
    EXPECT_OK(load_all(std::vector{near}, checkpoint));
    EXPECT_EQ(*checkpoint->heal(), 0);
  }
}

TEST(Heal, LeavesOutWhatIsMerelyMissingOrWasRemoved) {
  const Location far = folder("far"), near = folder("near");
  save_by_ranks(far, 1, 2);
  ASSERT_TRUE(copy_step(std::span(&far, 1), near, 1));
  const auto remove = [&](const std::string& key) {
    ASSERT_TRUE(near.storage->remove(std::vector{near.child(key).key}));
  };
  remove(file_of(0));
  std::unique_ptr<Checkpoint> checkpoint;
  EXPECT_OK(load_all(std::vector{near, far}, checkpoint));
  EXPECT_EQ(*checkpoint->heal(), 0) << "another node has it";
  flip_last(near, file_of(1));
  EXPECT_OK(load_all(std::vector{near, far}, checkpoint));
  for (const std::string& key : keys_below(near)) remove(key);
  EXPECT_CODE(checkpoint->heal(), ErrorCode::kNotFound);
  EXPECT_THAT(keys_below(near), ElementsAre()) << "retention has removed the step";
}

TEST(Heal, WhatIsWholeNowhereIsAnError) {
  const Location far = folder("far"), near = folder("near");
  save_by_ranks(far, 1, 2);
  ASSERT_TRUE(copy_step(std::span(&far, 1), near, 1));
  flip_last(near, file_of(1));
  std::unique_ptr<Checkpoint> checkpoint;
  EXPECT_OK(load_all(std::vector{near, far}, checkpoint));
  flip_last(far, file_of(1));
  const auto before = content(near);
  EXPECT_CODE(checkpoint->heal(), ErrorCode::kCorruption);
  EXPECT_EQ(content(near), before);
}

}  // namespace
}  // namespace millrace::checkpoint
