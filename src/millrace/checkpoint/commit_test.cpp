// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;
using std::chrono::milliseconds;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

SaverOptions options_of(const std::string& attempt, int64_t rank = 0, int64_t world_size = 1) {
  return {
      .attempt = attempt, .rank = rank, .world_size = world_size, .threads = 1, .commit_timeout = milliseconds(100)};
}

TEST(Commit, NeedsEveryRank) {
  const Location root = memory_root();
  const Arrays arrays = small_arrays(1);
  std::mt19937_64 random(1);
  const auto ranks = sharded_tensors(arrays, 4, random);
  std::vector<std::unique_ptr<Saver>> savers;
  for (int64_t rank = 0; rank < 4; ++rank) savers.push_back(make_saver(root, options_of("r0000-a", rank, 4)));
  const auto save = [&](size_t rank, int64_t step) {
    return savers[rank]->save(step, ranks[rank].tensors(), "{}", "null").value();
  };
  const auto first = save(0, 1), third = save(2, 1);
  const Status missed = first->wait();
  EXPECT_CODE(missed, ErrorCode::kTimeout);
  EXPECT_THAT(missed.error().to_string(), HasSubstr("no part record of rank 1, 3 (of 4)"));
  EXPECT_CODE(third->wait(), ErrorCode::kTimeout);
  EXPECT_THAT(committed_steps(root), IsEmpty());
  EXPECT_CODE(Checkpoint::open(root, 1), ErrorCode::kNotFound);

  // The next step succeeds and takes what the failed one left with it.
  std::vector<std::shared_ptr<PendingSave>> saves;
  for (size_t rank = 4; rank-- > 0;) saves.push_back(save(rank, 2));
  for (const auto& each : saves) EXPECT_OK(each->wait());
  EXPECT_OK(load_and_compare(root, 2, arrays));
  EXPECT_THAT(keys_below(root.child("step-000000000001")), IsEmpty());
}

TEST(Commit, PartsThatDoNotMakeOneTensorAreRefused) {
  const Array array = make_array(Dtype::kF32, {4, 4}, 1);
  const auto outcome = [&](const RankTensors& zero, const RankTensors& one) {
    const Location root = memory_root();
    const auto committer = make_saver(root, options_of("r0000-a", 0, 2)),
               other = make_saver(root, options_of("r0000-a", 1, 2));
    const auto theirs = other->save(1, one.tensors(), "{}", "null").value();
    const Status status = committer->save(1, zero.tensors(), "{}", "null").value()->wait();
    EXPECT_EQ(theirs->wait().has_value(), status.has_value());
    EXPECT_EQ(committed_steps(root).size(), status.has_value() ? 1U : 0U);
    return status;
  };
  RankTensors top, bottom, all, none, short_bottom, other_type, other_shape;
  top.add("w", array, {{0, 0}, {2, 4}});
  bottom.add("w", array, {{2, 0}, {2, 4}});
  short_bottom.add("w", array, {{2, 0}, {1, 4}});
  all.add("w", array, {{0, 0}, {4, 4}});
  other_type.add("w", {Dtype::kI32, array.shape, array.bytes}, {{2, 0}, {2, 4}});
  other_shape.add("w", {Dtype::kF32, {2, 8}, array.bytes}, {{0, 0}, {2, 8}});
  EXPECT_OK(outcome(top, bottom));
  EXPECT_OK(outcome(none, all));
  const auto refused = [&](const RankTensors& zero, const RankTensors& one, const char* reason) {
    const Status status = outcome(zero, one);
    EXPECT_CODE(status, ErrorCode::kCorruption);
    EXPECT_THAT(status.error().to_string(), testing::AllOf(HasSubstr("'w'"), HasSubstr(reason)));
  };
  refused(top, none, "gap");
  refused(top, short_bottom, "gap");
  refused(all, all, "overlap");
  refused(top, all, "overlap");
  refused(top, other_type, "other ranks have");
  refused(top, other_shape, "other ranks have");
}

TEST(Commit, AFileOfAnotherSizeIsRefused) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto storage = make_memory_storage("test");
  const Location root = root_of(storage);
  const Location slow = root_of(make_fault_storage(storage, plan));
  // Rank 1's file is cut between its record and the committer's look.
  plan->add({.call = FaultCall::kList, .delay = milliseconds(150)});
  const RankTensors tensors = whole_tensors(small_arrays(1));
  const auto one = make_saver(root, options_of("r0000-a", 1, 2));
  const auto theirs = one->save(1, tensors.tensors(), "{}", "null").value();
  const auto zero = make_saver(slow, options_of("r0000-a", 0, 2));
  const auto ours = zero->save(1, {}, "{}", "null").value();
  const std::string record = root.child("step-000000000001/r0000-a/part-00001-of-00002.json").key;
  while (!storage->stat(record)) std::this_thread::yield();
  ASSERT_TRUE(
      write_object(*storage, root.child("step-000000000001/r0000-a/rank-00001-of-00002.safetensors").key, "cut"));
  const Status status = ours->wait();
  EXPECT_CODE(status, ErrorCode::kCorruption);
  EXPECT_THAT(status.error().to_string(), HasSubstr("its file has 3 bytes"));
  EXPECT_CODE(theirs->wait(), ErrorCode::kTimeout);
}

TEST(Attempt, CountsUpFromWhatIsThere) {
  const Location root = memory_root();
  const auto first = make_attempt(root).value();
  EXPECT_THAT(first, StartsWith("r0000-"));
  EXPECT_NE(first, make_attempt(root).value());
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0007-x")), 1, small_arrays(1)));
  EXPECT_THAT(make_attempt(root).value(), StartsWith("r0008-"));
  // An attempt that never committed counts too.
  const auto dead = make_saver(root, options_of("r0011-x", 1, 2));
  const RankTensors tensors = whole_tensors(small_arrays(1));
  EXPECT_CODE(dead->save(1, tensors.tensors(), "{}", "null").value()->wait(), ErrorCode::kTimeout);
  EXPECT_THAT(make_attempt(root).value(), StartsWith("r0012-"));
}

TEST(Attempt, AZombieNeverCommitsOverANewerOne) {
  const Location root = memory_root();
  const auto zombie = make_saver(root, options_of("r0001-old"));
  EXPECT_OK(save_and_wait(*zombie, 1, small_arrays(1)));
  const auto now = make_saver(root, options_of("r0002-new"));
  EXPECT_OK(save_and_wait(*now, 2, small_arrays(2)));
  const auto refused = save_and_wait(*zombie, 2, small_arrays(1));
  EXPECT_CODE(refused, ErrorCode::kAlreadyExists);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("r0002-new, which is not older than r0001-old"));
  // Nor may another attempt of the same age, nor this one a second time.
  EXPECT_CODE(save_and_wait(*make_saver(root, options_of("r0002-two")), 2, small_arrays(1)), ErrorCode::kAlreadyExists);
  EXPECT_CODE(save_and_wait(*make_saver(root, options_of("r0002-new")), 2, small_arrays(1)), ErrorCode::kAlreadyExists);
  EXPECT_OK(load_and_compare(root, 2, small_arrays(2)));
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
}

// The zombie's look at the step came before the newer attempt's commit, its own commit comes after.
TEST(Attempt, AZombieInMidSaveLosesToo) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto storage = make_memory_storage("test");
  const Location root = root_of(storage);
  plan->add({.call = FaultCall::kCommit, .key_part = "manifest", .delay = milliseconds(200)});
  const auto zombie = make_saver(root_of(make_fault_storage(storage, plan)), options_of("r0001-old"));
  const RankTensors old_tensors = whole_tensors(small_arrays(1));
  const auto late = zombie->save(5, old_tensors.tensors(), "{}", "null").value();
  while (plan->hits() == 0) std::this_thread::yield();
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-new")), 5, small_arrays(2)));
  EXPECT_CODE(late->wait(), ErrorCode::kAlreadyExists);
  EXPECT_OK(load_and_compare(root, 5, small_arrays(2)));
}

TEST(Attempt, ANewerOneReplacesAStepAndItsFiles) {
  for (const bool damaged : {false, true}) {
    const Location root = memory_root();
    EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0001-old")), 5, small_arrays(1)));
    const std::string manifest = root.child("step-000000000005/manifest.json").key;
    if (damaged) {
      ASSERT_TRUE(write_object(*root.storage, manifest, "{"));
    }
    EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-new")), 5, small_arrays(2)));
    EXPECT_OK(load_and_compare(root, 5, small_arrays(2)));
    EXPECT_THAT(keys_below(root.child("step-000000000005")), Not(Contains(StartsWith("r0001-old/"))));
  }
}

TEST(Attempt, ItsFirstCommitRemovesWhatOlderOnesLeft) {
  const Location root = memory_root();
  const RankTensors tensors = whole_tensors(small_arrays(1));
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0001-a")), 1, small_arrays(1)));
  for (const int64_t step : {2, 9}) {
    const auto dead = make_saver(root, options_of("r0001-a", 1, 2));
    EXPECT_CODE(dead->save(step, tensors.tensors(), "{}", "null").value()->wait(), ErrorCode::kTimeout);
  }
  const auto newer = make_saver(root, options_of("r0003-c", 1, 2));
  EXPECT_CODE(newer->save(9, tensors.tensors(), "{}", "null").value()->wait(), ErrorCode::kTimeout);
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-b")), 3, small_arrays(3)));
  EXPECT_THAT(keys_below(root.child("step-000000000002")), IsEmpty());
  EXPECT_THAT(keys_below(root.child("step-000000000009")), Each(StartsWith("r0003-c/"))) << "newer: not ours to judge";
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
  EXPECT_OK(load_and_compare(root, 3, small_arrays(3)));
}

TEST(Retention, KeepsTheLastAndEveryNth) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  SaverOptions options = options_of("r0000-a");
  options.keep_last = 2;
  options.keep_every = 40;
  const auto saver = make_saver(root, options);
  for (int64_t step = 10; step <= 100; step += 10) EXPECT_OK(save_and_wait(*saver, step, small_arrays(1)));
  EXPECT_THAT(committed_steps(root), ElementsAre(40, 80, 90, 100));
  for (const int64_t step : {40, 80, 90, 100}) EXPECT_OK(load_and_compare(root, step, small_arrays(1)));
  EXPECT_THAT(keys_below(root.child("step-000000000070")), IsEmpty());
}

TEST(Retention, OfARunThatWasSetBackLeavesTheLaterStepsAndItsOwn) {
  const Location root = memory_root();
  SaverOptions options = options_of("r0001-a");
  for (int64_t step = 10; step <= 50; step += 10)
    EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0001-a")), step, small_arrays(1)));
  options.attempt = "r0002-b";
  options.keep_last = 1;
  const auto saver = make_saver(root, options);
  EXPECT_OK(save_and_wait(*saver, 20, small_arrays(2)));
  EXPECT_THAT(committed_steps(root), ElementsAre(20, 30, 40, 50));
  EXPECT_OK(load_and_compare(root, 20, small_arrays(2)));
}

TEST(Retention, AZombieRemovesNothingOfANewerAttempt) {
  const Location root = memory_root();
  SaverOptions options = options_of("r0001-a");
  options.keep_last = 1;
  const auto zombie = make_saver(root, options);
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-b")), 10, small_arrays(2)));
  EXPECT_OK(save_and_wait(*zombie, 20, small_arrays(1)));
  EXPECT_THAT(committed_steps(root), ElementsAre(10, 20));
  EXPECT_OK(load_and_compare(root, 10, small_arrays(2)));
}

TEST(Retention, ItsFailureIsNotTheSaves) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  SaverOptions options = options_of("r0000-a");
  options.keep_last = 1;
  const auto saver = make_saver(root, options);
  EXPECT_OK(save_and_wait(*saver, 1, small_arrays(1)));
  plan->add({.call = FaultCall::kRemove, .error = Error(ErrorCode::kUnavailable, "not now")});
  plan->add({.call = FaultCall::kCommit, .key_part = "latest", .error = Error(ErrorCode::kUnavailable, "not now")});
  EXPECT_OK(save_and_wait(*saver, 2, small_arrays(2)));
  EXPECT_THAT(committed_steps(root), ElementsAre(1, 2));
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
  EXPECT_OK(save_and_wait(*saver, 3, small_arrays(3)));
  EXPECT_THAT(committed_steps(root), ElementsAre(3));
}

// The order in which things become visible: every write of a save is stopped, one after the other.
TEST(Commit, LatestComesLast) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  const auto saver = make_saver(root, options_of("r0000-a"));
  plan->add({.call = FaultCall::kCommit, .key_part = "manifest", .error = Error(ErrorCode::kUnavailable, "no")});
  EXPECT_CODE(save_and_wait(*saver, 1, small_arrays(1)), ErrorCode::kUnavailable);
  EXPECT_CODE(root.storage->stat(root.child("latest").key), ErrorCode::kNotFound);
  plan->add({.call = FaultCall::kCommit, .key_part = "part-", .error = Error(ErrorCode::kUnavailable, "no")});
  EXPECT_CODE(save_and_wait(*saver, 2, small_arrays(1)), ErrorCode::kUnavailable);
  EXPECT_THAT(committed_steps(root), IsEmpty());
}

}  // namespace
}  // namespace millrace::checkpoint
