// SPDX-License-Identifier: Apache-2.0
// Tiers that fail, hang or are gone: the others have the step, and what a tier lists is whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/checkpoint/tier_testing.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

// An error at every operation of each tier: the others have the step, and what a tier lists is whole.
TEST(TierFaults, AtEveryOperationCostTheStepInOneTierOnly) {
  for (size_t at_tier = 0; at_tier < 3; ++at_tier) {
    for (int64_t at = 0;; ++at) {
      SCOPED_TRACE(testing::Message() << "tier " << at_tier << ", operation " << at);
      Tiers tiers;
      const auto saver = tiers.saver({.keep = {.last = 1}});
      ASSERT_TRUE(wait_for_all(*start(*saver, 1)));
      tiers.plans[at_tier]->add({.skip = at, .error = errno_error(EIO, "a fault")});
      const auto save = start(*saver, 2);
      const Status saved = wait_for_all(*save);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(save->wait({}, i).has_value(), save->state(i) == TierState::kDurable);
        if (i != at_tier) {
          EXPECT_EQ(save->state(i), TierState::kDurable) << i;
        }
        const auto steps = whole_steps(tiers.plain[i]);
        EXPECT_EQ(steps.back(), save->state(i) == TierState::kDurable ? 2 : 1);
      }
      EXPECT_OK(load_over(tiers.plain, 2));
      const bool hit = tiers.plans[at_tier]->hits() > 0;
      tiers.heal();
      EXPECT_OK(wait_for_all(*start(*saver, 3)));
      for (const Location& tier : tiers.plain) EXPECT_THAT(whole_steps(tier), ElementsAre(3));
      if (!hit || HasFailure()) {
        EXPECT_GT(at, 8);
        break;
      }
    }
    if (HasFailure()) break;
  }
}

// Each tier hangs from some of its operations on. The others have the later steps, and those before, unless the only
// copy was where it hangs; and it takes part again when it answers.
TEST(TierFaults, ATierThatHangsIsGivenUpUntilItAnswers) {
  for (size_t hung = 0; hung < 3; ++hung) {
    for (const int64_t from : {0, 2, 4, 7}) {
      if (leave_out_case()) continue;
      SCOPED_TRACE(testing::Message() << "tier " << hung << " from operation " << from);
      Tiers tiers;
      Hang hang;
      const auto saver = tiers.saver({.tier_timeout = kPatience});
      tiers.plans[hung]->add({.skip = from, .count = FaultRule::kForever, .before = hang.hook()});
      for (int64_t step = 1; step <= 7; ++step) {
        const auto save = start(*saver, step);
        ASSERT_NE(save, nullptr);
        if (step % 2 == 0) continue;  // the next save waits for what must be waited for
        static_cast<void>(save->wait());
        for (size_t i = 0; i < 3; ++i) EXPECT_NE(save->state(i), TierState::kPending);
      }
      for (size_t i = 0; i < 3; ++i) {
        if (i != hung) {
          EXPECT_THAT(whole_steps(tiers.plain[i]), testing::IsSupersetOf({5, 6, 7})) << "tier " << i;
        }
      }
      hang.release();
      std::shared_ptr<PendingSave> save;
      for (int64_t step = 8; step < 200 && (!save || save->state(hung) != TierState::kDurable); ++step) {
        save = start(*saver, step);
        static_cast<void>(save->wait());
      }
      EXPECT_EQ(save->state(hung), TierState::kDurable);
      EXPECT_EQ(whole_steps(tiers.plain[hung]).back(), save->step());
    }
  }
}

// One that hangs for ever holds up neither the program's end nor the snapshot of the next save.
TEST(TierFaults, ATierThatHangsForEverIsLeftBehind) {
  Tiers tiers(2);
  const auto hang = std::make_shared<Hang>();
  {
    const auto saver = tiers.saver({.tier_timeout = kPatience});
    tiers.plans[0]->add({.call = FaultCall::kWrite, .count = FaultRule::kForever, .before = hang->hook()});
    const auto first = start(*saver, 1), second = start(*saver, 2);
    EXPECT_CODE(first->wait({}, 0), ErrorCode::kTimeout);
    EXPECT_CODE(second->wait({}, 0), ErrorCode::kUnavailable);
    EXPECT_OK(first->wait({}, 1));
  }
  EXPECT_THAT(whole_steps(tiers.plain[1]), ElementsAre(1, 2));
  EXPECT_THAT(committed_steps(tiers.plain[0]), ElementsAre());
  hang->release();
  for (int i = 0; i < 5000 && committed_steps(tiers.plain[0]).empty(); ++i) ::usleep(2000);
  EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(1)) << "it writes from memory of its own, and may end late";
}

// A state that goes through less memory than it takes.
Arrays larger_arrays(int64_t step) {
  Arrays arrays = arrays_of(step);
  arrays["large"] = make_array(formats::Dtype::kU8, {300'000}, static_cast<uint64_t>(step));
  return arrays;
}
constexpr int64_t kLittleMemory = 64 << 10;

std::shared_ptr<PendingSave> start_larger(Saver& saver, int64_t step) {
  RankTensors tensors = whole_tensors(larger_arrays(step));
  auto save = saver.save(step, tensors.tensors(), "{}", "null");
  EXPECT_TRUE(save) << explain(save);
  tensors.scribble();
  return save ? *save : nullptr;
}

TEST(TierFaults, ASaveThroughLittleMemoryComesToEveryTierButTheOneThatFails) {
  for (size_t bad = 0; bad < 3; ++bad) {
    for (int64_t at = 0; at < 12; ++at) {
      SCOPED_TRACE(testing::Message() << "tier " << bad << " at operation " << at);
      const Tiers tiers;
      const auto saver = tiers.saver({.memory_bytes = kLittleMemory});
      tiers.plans[bad]->add({.skip = at, .error = errno_error(EIO, "a fault")});
      const auto save = start_larger(*saver, 1);
      static_cast<void>(save->wait());
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(i == bad || save->state(i) == TierState::kDurable) << i;
        if (save->state(i) == TierState::kDurable) {
          EXPECT_OK(load_and_compare(tiers.plain[i], 1, larger_arrays(1)));
        }
      }
    }
  }
}

// It reads the training's own memory, so what hangs must not read on when the training goes on.
TEST(TierFaults, ATierThatHangsIsCutOffFromTensorsThatChange) {
  for (int64_t from = 0; from < 3; ++from) {
    Tiers tiers(2);
    const auto hang = std::make_shared<Hang>();
    {
      const auto saver = tiers.saver({.memory_bytes = kLittleMemory, .tier_timeout = kPatience});
      tiers.plans[0]->add(
          {.call = FaultCall::kWrite, .skip = from, .count = FaultRule::kForever, .before = hang->hook()});
      const auto save = start_larger(*saver, 1);
      EXPECT_CODE(save->wait({}, 0), ErrorCode::kTimeout);
      EXPECT_OK(save->wait({}, 1));
      EXPECT_OK(load_and_compare(tiers.plain[1], 1, larger_arrays(1)));
    }
    hang->release();
    ::usleep(100'000);
    EXPECT_THAT(committed_steps(tiers.plain[0]), ElementsAre()) << "what it would write is no longer there";
  }
}

// Training that is ended while it stands still for such a save: the save ends at once, and the next one is not told.
TEST(TierFaults, ASaveThroughLittleMemoryIsStopped) {
  const Tiers tiers(1);
  Hang hang;
  const auto saver = tiers.saver({.memory_bytes = kLittleMemory});
  tiers.plans[0]->add({.call = FaultCall::kWrite, .count = FaultRule::kForever, .before = hang.hook()});
  std::stop_source stop;
  Thread ends("test-stop", [&] {
    ::usleep(50'000);
    stop.request_stop();
  });
  RankTensors tensors = whole_tensors(larger_arrays(1));
  const auto stopped = saver->save(1, tensors.tensors(), "{}", "null", {}, stop.get_token());
  tensors.scribble();
  EXPECT_CODE(stopped, ErrorCode::kCancelled);
  hang.release();
  const auto next = start_larger(*saver, 2);
  EXPECT_OK(next->wait());
  EXPECT_THAT(committed_steps(tiers.plain[0]), ElementsAre(2));
  EXPECT_OK(load_and_compare(tiers.plain[0], 2, larger_arrays(2)));
}

// A tier that is slow, but goes on, is not given up.
TEST(TierFaults, ASlowTierIsNoTierThatHangs) {
  Tiers tiers(2);
  const auto saver = tiers.saver({.tier_timeout = 2 * kPatience});
  tiers.plans[0]->add({.count = FaultRule::kForever, .delay = kPatience / 3});
  EXPECT_OK(start(*saver, 1)->wait());
  EXPECT_GT(tiers.plans[0]->hits(), 6) << "longer in all than the timeout";
}

// A tier that is gone, full, or answers EIO from the middle of a save on, and comes back.
TEST(TierFaults, ATierThatIsGoneCostsTheOthersNothing) {
  for (const int reason : {EIO, ENOSPC, ENOENT}) {
    for (size_t gone = 0; gone < 3; ++gone) {
      SCOPED_TRACE(testing::Message() << "errno " << reason << ", tier " << gone);
      Tiers tiers;
      const auto saver = tiers.saver();
      tiers.plans[gone]->add({.skip = 3, .count = FaultRule::kForever, .error = errno_error(reason, "a fault")});
      for (int64_t step = 1; step <= 4; ++step) {
        const auto save = start(*saver, step);
        ASSERT_NE(save, nullptr) << "one tier that failed is no failure of the save";
        EXPECT_FALSE(save->wait({}, gone));
        for (size_t i = 0; i < 3; ++i) {
          if (i != gone) {
            EXPECT_OK(save->wait({}, i));
          }
        }
      }
      tiers.heal();
      EXPECT_OK(start(*saver, 5)->wait());
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(whole_steps(tiers.plain[i]).size(), i == gone ? 1U : 5U);
    }
  }
}

TEST(TierFaults, AStepThatNoTierHasIsTheFailureOfTheSave) {
  Tiers tiers;
  const auto saver = tiers.saver();
  for (const auto& plan : tiers.plans)
    plan->add({.call = FaultCall::kOpenWrite, .count = FaultRule::kForever, .error = errno_error(EIO, "a fault")});
  start(*saver, 1);
  std::shared_ptr<PendingSave> second;
  Status failed;
  for (int64_t step = 2; step <= 6 && failed; ++step) {  // at the latest when three are unfinished
    const auto next = saver->save(step, whole_tensors(arrays_of(step)).tensors(), "{}", "null");
    if (!next) failed = tl::unexpected<Error>(next.error());
  }
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().to_string(), HasSubstr("the save of step"));
}

// What the near tier has lost must not reach the far one.
TEST(TierFaults, ADamagedFileIsNotCopied) {
  const Tiers tiers(2);
  const auto saver = tiers.saver();
  tiers.plans[0]->add({.call = FaultCall::kRead, .key_part = "rank-", .count = 2, .flip_bit = true});
  const auto save = start(*saver, 1);
  EXPECT_OK(save->wait({}, 0));
  const Status copied = save->wait({}, 1);
  EXPECT_CODE(copied, ErrorCode::kCorruption);
  EXPECT_THAT(copied.error().to_string(), HasSubstr("test://t0/step-000000000001"));
  EXPECT_THAT(committed_steps(tiers.plain[1]), ElementsAre());
}

TEST(TierFaults, AFarTierIsCopiedFromAnyTierThatHasTheFile) {
  const Tiers tiers;
  const auto saver = tiers.saver();
  tiers.plans[0]->add(
      {.call = FaultCall::kRead, .key_part = "rank-", .skip = 1, .count = FaultRule::kForever, .flip_bit = true});
  // The middle tier gets the one good read, because the far one waits before it looks at the step.
  tiers.plans[2]->add({.call = FaultCall::kOpenRead, .key_part = "manifest", .delay = milliseconds(150)});
  EXPECT_OK(start(*saver, 1)->wait());
  EXPECT_THAT(whole_steps(tiers.plain[1]), ElementsAre(1));
  EXPECT_THAT(whole_steps(tiers.plain[2]), ElementsAre(1));
}

}  // namespace
}  // namespace millrace::checkpoint
