// SPDX-License-Identifier: Apache-2.0
// A save ends in bounded time on every rank and names the rank and the cause. The waits here end long before the
// timeouts of the ranks that are well, which are minutes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/checkpoint/records/failure.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::chrono::minutes kLong{10};
constexpr milliseconds kShort{1'000};

// Ranks that share a folder, each through faults of its own.
class Ranks {
 public:
  explicit Ranks(int64_t count) {
    std::mt19937_64 random(1);
    tensors_ = sharded_tensors(arrays, count, random);
    for (int64_t rank = 0; rank < count; ++rank) {
      plans.push_back(std::make_shared<FaultPlan>());
      start(rank, kLong);
    }
  }

  void start(int64_t rank, milliseconds timeout) {
    const auto at = static_cast<size_t>(rank);
    savers.resize(plans.size());
    savers[at].reset();
    savers[at] = make_saver(root_of(make_fault_storage(storage_, plans[at], 1)),
                            {.attempt = "r0000-a",
                             .rank = rank,
                             .world_size = static_cast<int64_t>(tensors_.size()),
                             .threads = 1,
                             .commit_timeout = timeout,
                             .tier_timeout = timeout});
  }

  Result<std::shared_ptr<PendingSave>> save(size_t rank, int64_t step, const FillImage& fill = {}) {
    std::vector<TensorToSave> given = tensors_[rank].tensors();
    if (fill) {
      for (TensorToSave& tensor : given) tensor.data = nullptr;
    }
    return savers[rank]->save(step, given, "{}", "null", {}, {}, fill);
  }

  std::shared_ptr<PendingSave> save_part(size_t rank, int64_t step) {
    return savers[rank]->save_part(step, tensors_[rank].tensors(), "null").value();
  }

  // All ranks save `step`, which is then whole.
  void expect_good(int64_t step) {
    std::vector<std::shared_ptr<PendingSave>> saves;
    for (size_t rank = 0; rank < savers.size(); ++rank) {
      auto pending = save(rank, step);
      ASSERT_TRUE(pending) << explain(pending);
      saves.push_back(std::move(*pending));
    }
    for (const auto& each : saves) EXPECT_OK(wait_for_all(*each));
    EXPECT_OK(load_and_compare(root, step, arrays));
  }

  const Arrays arrays = small_arrays(1);
  std::vector<std::shared_ptr<FaultPlan>> plans;
  std::vector<std::unique_ptr<Saver>> savers;

 private:
  const std::shared_ptr<Storage> storage_ = make_memory_storage("bounded");
  std::vector<RankTensors> tensors_;

 public:
  const Location root = root_of(storage_);
};

TEST(BoundedSave, AFailedRankEndsTheWaitOfTheOthers) {
  for (const char* what : {"rank-00001", "part-00001"}) {
    Ranks ranks(3);
    ranks.plans[1]->add(
        {.call = FaultCall::kCommit, .key_part = what, .error = Error(ErrorCode::kPermissionDenied, "a broken disk")});
    std::vector<std::shared_ptr<PendingSave>> saves;
    for (const size_t rank : {2, 0, 1}) saves.push_back(ranks.save(rank, 1).value());
    for (const auto& each : saves) {
      const Status status = each->wait();
      EXPECT_CODE(status, ErrorCode::kPermissionDenied) << "of the cause";
      EXPECT_THAT(status.error().to_string(), HasSubstr("a broken disk"));
      if (each != saves[2]) {
        EXPECT_THAT(status.error().to_string(), HasSubstr("rank 1 on " + host_name() + " failed"));
      }
    }
    EXPECT_THAT(committed_steps(ranks.root), IsEmpty());
    ranks.expect_good(2);
    EXPECT_THAT(keys_below(step_location(ranks.root, 1)), IsEmpty()) << "what it left is swept";
  }
}

TEST(BoundedSave, ARankThatCannotBeginTellsTheOthers) {
  Ranks ranks(3);
  const auto first = ranks.save(0, 1).value(), third = ranks.save(2, 1).value();
  const FillImage fill = [](std::span<std::byte>, std::span<const ImagePlace>, FillMode) {
    return Status(fail(ErrorCode::kResourceExhausted, "the device is full"));
  };
  EXPECT_CODE(ranks.save(1, 1, fill), ErrorCode::kResourceExhausted);
  for (const auto& each : {first, third}) {
    const Status status = each->wait();
    EXPECT_CODE(status, ErrorCode::kResourceExhausted);
    EXPECT_THAT(status.error().to_string(), AllOf(HasSubstr("rank 1 on "), HasSubstr("the device is full")));
  }
  EXPECT_CODE(ranks.save(1, 1), ErrorCode::kInvalidArgument) << "the others have given the step up";
  ranks.expect_good(2);
}

TEST(BoundedSave, OneThatIsSilentIsNamedToAll) {
  Ranks ranks(4);
  ranks.start(0, kShort);
  const auto first = ranks.save(0, 1).value(), third = ranks.save(2, 1).value();
  EXPECT_CODE(first->wait(), ErrorCode::kTimeout);
  const Status status = third->wait();
  EXPECT_CODE(status, ErrorCode::kTimeout);
  EXPECT_THAT(status.error().to_string(),
              AllOf(HasSubstr("rank 0 on "), HasSubstr("no part record of rank 1, 3 (of 4) in time")));
  ranks.start(0, kLong);
  ranks.expect_good(2);
}

// A part that is there counts, whatever its rank says later.
TEST(BoundedSave, AFailureIsNoPartAndNoPartFails) {
  Ranks ranks(2);
  const Location attempt = step_location(ranks.root, 1).child("r0000-a");
  const RankPlaces places = RankPlaces::of_new(2);
  EXPECT_FALSE(read_failure(attempt, places, 1).value());
  const auto second = ranks.save(1, 1).value();
  while (!ranks.root.storage->stat(attempt.child(places.record(1)).key)) std::this_thread::yield();
  EXPECT_OK(write_failure(attempt, places, 1, Error(ErrorCode::kTimeout, "it waited \"too\" long \xff")));
  const auto failure = read_failure(attempt, places, 1).value();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ErrorCode::kTimeout);
  EXPECT_THAT(failure->message(), HasSubstr("it waited \"too\" long"));
  EXPECT_OK(ranks.save(0, 1).value()->wait());
  EXPECT_OK(second->wait());
  EXPECT_OK(load_and_compare(ranks.root, 1, ranks.arrays));
  ASSERT_TRUE(write_object(*ranks.root.storage, attempt.child(places.failure(0)).key, "cut"));
  EXPECT_THAT(read_failure(attempt, places, 0).value()->message(), HasSubstr("cannot be read"));
}

// Saves until one succeeds: what hung or was slow may need a moment to let go.
void expect_good_soon(Saver& saver, const Location& root, int64_t step) {
  const auto until = Clock::now() + std::chrono::seconds(60);
  Status status;
  do {
    status = save_and_wait(saver, ++step, small_arrays(1));
  } while (!status && Clock::now() < until);
  EXPECT_OK(status);
  EXPECT_THAT(committed_steps(root), Contains(step));
  EXPECT_OK(load_and_compare(root, step, small_arrays(1)));
}

TEST(BoundedSave, OneThatHangsHoldsTheNextSaveUpNoLongerThanTheTimeout) {
  Ranks ranks(1);
  Hang hang;
  ranks.start(0, kShort);
  ranks.plans[0]->add({.call = FaultCall::kWrite, .count = FaultRule::kForever, .before = hang.hook()});
  const auto first = ranks.save(0, 1).value();
  const Status next = ranks.save(0, 2).map([](const auto&) {});
  EXPECT_CODE(next, ErrorCode::kTimeout);
  EXPECT_THAT(next.error().to_string(), AllOf(HasSubstr("step 1"), HasSubstr("1 s")));
  EXPECT_CODE(first->wait(), ErrorCode::kTimeout) << "it has ended, too";
  EXPECT_CODE(ranks.save(0, 2), ErrorCode::kUnavailable) << "at once";
  hang.release();
  ranks.plans[0]->clear();
  expect_good_soon(*ranks.savers[0], ranks.root, 2);
}

TEST(BoundedSave, StorageThatHangsAtTheFirstLookIsLeft) {
  Ranks ranks(1);
  Hang hang;
  ranks.start(0, kShort);
  ranks.plans[0]->add({.call = FaultCall::kOpenRead, .count = FaultRule::kForever, .before = hang.hook()});
  EXPECT_CODE(ranks.save(0, 1), ErrorCode::kTimeout);
  EXPECT_CODE(ranks.save(0, 1), ErrorCode::kUnavailable) << "at once";
  hang.release();
  ranks.plans[0]->clear();
  expect_good_soon(*ranks.savers[0], ranks.root, 2);
}

TEST(BoundedSave, ACommitOfPartsEndsWhenItsStorageHangs) {
  Ranks ranks(1);
  Hang hang;
  ranks.start(0, kShort);
  const auto part = ranks.save_part(0, 1);
  EXPECT_OK(part->wait());
  ranks.plans[0]->add({.call = FaultCall::kOpenWrite, .key_part = "manifest", .before = hang.hook()});
  const Status committed = ranks.savers[0]->commit(1, "{}");
  EXPECT_CODE(committed, ErrorCode::kTimeout);
  EXPECT_THAT(committed.error().to_string(), AllOf(HasSubstr("rank 0"), HasSubstr("has not answered for 1 s")));
  EXPECT_CODE(ranks.save(0, 2), ErrorCode::kUnavailable) << "at once";
  hang.release();
  expect_good_soon(*ranks.savers[0], ranks.root, 2);
}

// Slow storage answers all the time, so it is not one that hangs.
TEST(BoundedSave, AThrottledRankIsGivenUpByItsNextSave) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto storage = make_memory_storage("throttled");
  const Location root = root_of(storage);
  const auto saver = make_saver(root_of(make_fault_storage(storage, plan, 1)),
                                {.attempt = "r0000-a", .commit_timeout = kShort, .tier_timeout = kShort});
  plan->add({.call = FaultCall::kWrite, .count = FaultRule::kForever, .delay = kShort * 3 / 4});
  const Arrays arrays{{"w", make_array(formats::Dtype::kU8, {40 << 20}, 1)}};
  const RankTensors tensors = whole_tensors(arrays);
  const auto first = saver->save(1, tensors.tensors(), "{}", "null").value();
  const Status next = saver->save(2, tensors.tensors(), "{}", "null").map([](const auto&) {});
  EXPECT_CODE(next, ErrorCode::kTimeout);
  // On a machine that stands still meanwhile it looks like one that hangs.
  EXPECT_THAT(next.error().to_string(),
              AllOf(HasSubstr("step 1"), AnyOf(HasSubstr("raise commit_timeout"), HasSubstr("has not answered"))));
  EXPECT_CODE(first->wait(), ErrorCode::kTimeout);
  plan->clear();
  expect_good_soon(*saver, root, 2);
  EXPECT_THAT(committed_steps(root), Not(Contains(1)));
}

}  // namespace
}  // namespace millrace::checkpoint
