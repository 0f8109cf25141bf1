// SPDX-License-Identifier: Apache-2.0
// Checkpoints in tiers. Whatever happens to one tier, the others have the step, and a load over all of them gives what
// was saved or an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "millrace/base/log.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Three tiers, each behind its own faults.
struct Tiers {
  explicit Tiers(size_t count = 3) {
    for (size_t i = 0; i < count; ++i) {
      plans.push_back(std::make_shared<FaultPlan>());
      storages.push_back(make_memory_storage("tier" + std::to_string(i)));
      plain.push_back(root_of(storages.back(), "t" + std::to_string(i)));
      faulty.push_back(root_of(make_fault_storage(storages.back(), plans.back()), plain.back().key));
    }
  }
  // Threads that a hanging tier left behind let go of it soon after the hang; a process that ends before would leak
  // them.
  ~Tiers() {
    std::vector<std::weak_ptr<Storage>> left;
    for (const Location& each : faulty) left.push_back(each.storage);
    faulty.clear();
    for (int i = 0; i < 1000 && !std::ranges::all_of(left, &std::weak_ptr<Storage>::expired); ++i) {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  std::unique_ptr<Saver> saver(SaverOptions options = {}) const {
    if (options.tiers.empty()) {
      for (size_t i = 0; i + 1 < faulty.size(); ++i) options.tiers.push_back({.root = faulty[i], .keep = options.keep});
    }
    options.threads = 1;
    options.commit_timeout = std::chrono::minutes(2);
    return make_saver(faulty.back(), options);
  }
  void heal() {
    for (const auto& plan : plans) plan->clear();
  }
  std::vector<std::shared_ptr<FaultPlan>> plans;
  std::vector<std::shared_ptr<Storage>> storages;
  std::vector<Location> plain, faulty;  // nearest first
};

Status load_over(std::span<const Location> tiers, int64_t step) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(tiers, step));
  const Arrays arrays = arrays_of(step);
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays) boxes[name] = box_of_all(array.shape);
  return load_and_compare(*checkpoint, arrays, boxes);
}

// Every step that the tier lists is whole there. Returns the steps.
std::vector<int64_t> whole_steps(const Location& tier) {
  const auto steps = committed_steps(tier);
  for (const int64_t step : steps) {
    EXPECT_OK(load_and_compare(tier, step, arrays_of(step))) << tier.url << " step " << step;
    EXPECT_OK((*Checkpoint::open(tier, step))->verify(1));
  }
  return steps;
}

std::shared_ptr<PendingSave> start(Saver& saver, int64_t step) {
  const Arrays arrays = arrays_of(step);
  auto save = saver.save(step, whole_tensors(arrays).tensors(), "{}", "null");
  EXPECT_TRUE(save) << explain(save);
  return save ? *save : nullptr;
}

TEST(Tiers, EachCommitsByItself) {
  const Tiers tiers;
  const auto saver = tiers.saver();
  const auto save = start(*saver, 1);
  EXPECT_OK(save->wait());
  ASSERT_EQ(save->tiers(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(save->state(i), TierState::kDurable);
    EXPECT_THAT(whole_steps(tiers.plain[i]), ElementsAre(1));
  }
  EXPECT_OK(load_over(tiers.plain, 1));
  EXPECT_EQ(saver->metrics().value(Metric::kSaves), 1);
}

// The far tier takes its time; the near one is durable meanwhile, and training goes on.
TEST(Tiers, ASlowTierHoldsNobodyUp) {
  const Tiers tiers(2);
  const auto saver = tiers.saver({.keep = {.last = 1}});
  tiers.plans[1]->add({.call = FaultCall::kOpenWrite, .key_part = "rank-", .delay = milliseconds(150)});
  const auto first = start(*saver, 1);
  EXPECT_OK(first->wait({}, 0));
  EXPECT_EQ(first->state(1), TierState::kPending);
  const auto second = start(*saver, 2);
  EXPECT_OK(second->wait({}, 0));
  EXPECT_EQ(first->state(1), TierState::kPending) << "step 2 did not wait for it";
  EXPECT_THAT(committed_steps(tiers.plain[0]), ElementsAre(1, 2)) << "the far tier still reads step 1";
  EXPECT_OK(wait_for_all(*first));
  EXPECT_OK(wait_for_all(*second));
  EXPECT_OK(wait_for_all(*start(*saver, 3)));
  EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(3));
  EXPECT_THAT(whole_steps(tiers.plain[1]), ElementsAre(3));
}

TEST(Tiers, HaveTheirOwnRetentionAndIntervals) {
  const Tiers tiers;
  const auto saver = tiers.saver({.keep = {.last = 2},
                                  .tiers = {{.root = tiers.faulty[0], .keep = {.last = 1}},
                                            {.root = tiers.faulty[1], .keep = {.last = 1, .every = 4}}},
                                  .save_every = 2});
  for (int64_t step = 1; step <= 9; ++step) {
    const auto save = start(*saver, step);
    EXPECT_OK(wait_for_all(*save));
    EXPECT_EQ(save->state(2), step % 2 == 0 ? TierState::kDurable : TierState::kNotAsked);
  }
  EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(9));
  EXPECT_THAT(whole_steps(tiers.plain[1]), ElementsAre(4, 8, 9));
  EXPECT_THAT(whole_steps(tiers.plain[2]), ElementsAre(6, 8));
}

TEST(Tiers, AreRefusedWhereTheyCannotWork) {
  const Tiers tiers;
  const auto refused = [&](SaverOptions options) {
    options.attempt = "r0000-a";
    return Saver::create(tiers.plain[2], options);
  };
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[0], .save_every = 2}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[0], .keep = {.last = -1}}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.save_every = 2}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[0], .node_local = true}}, .save_every = 2}),
              ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[2]}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(tiers.saver()->save_part(1, {}, "null"), ErrorCode::kUnsupported);
}

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

// How long a tier may be silent: much longer than one that answers needs, also with sanitizers on a busy machine.
const milliseconds kPatience(tests_are_brief() ? 1000 : 250);

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

// A copy in parts, as to a service, of a file with many chunks and tensors that cross the borders of the parts.
TEST(Tiers, CopiesAreExactInParts) {
  Arrays arrays;
  for (int i = 0; i < 5; ++i)
    arrays["t" + std::to_string(i)] = make_array(formats::Dtype::kU8, {(3 << 20) + 77 * i}, static_cast<uint64_t>(i));
  const Location near = root_of(make_memory_storage("near"), "near");
  const auto service = std::make_shared<PartsService>();
  service->part_bytes = 1 << 20;
  const Location far = root_of(make_parts_storage(service));
  const auto saver = make_saver(far, {.tiers = {{.root = near}}});
  EXPECT_OK(save_and_wait(*saver, 1, arrays));
  EXPECT_OK(load_and_compare(far, 1, arrays));
  EXPECT_OK((*Checkpoint::open(far, 1))->verify(2));
}

// The lines that the library logs while it lives.
class Lines {
 public:
  Lines() {
    set_log_sink(
        [this](LogLevel, std::string_view line) {
          MutexLock lock(mutex_);
          text_.append(line).push_back('\n');
        },
        LogLevel::kWarning);
  }
  ~Lines() { set_log_sink({}, LogLevel::kError); }
  std::string text() {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  Mutex mutex_;
  std::string text_ GUARDED_BY(mutex_);
};

void flip(const Location& tier, const std::string& key, std::mt19937_64& random) {
  std::string content = read_object(*tier.storage, key).value();
  if (content.empty()) return;
  const size_t from = random() % 2 == 0 || content.size() < 256 ? 0 : content.size() - 256;  // the header, or the data
  content[from + random() % (content.size() - from)] ^= static_cast<char>(1 << random() % 8);
  ASSERT_TRUE(write_object(*tier.storage, key, content));
}

TEST(Healing, FlipsAndSwapsInOneTierAreReadFromAnother) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  std::vector<std::string> keys = keys_below(tiers.plain[0]);
  std::erase(keys, "latest");
  const int count = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 10'000 : rounds(300);
  for (int i = 0; i < count; ++i) {
    const Location& tier = tiers.plain[random() % 2];
    const std::string key = tier.child(keys[random() % keys.size()]).key;
    const std::string before = read_object(*tier.storage, key).value();
    const std::string other = tier.child(keys[random() % keys.size()]).key;
    const std::string other_before = read_object(*tier.storage, other).value();
    const bool is_swap = random() % 4 == 0 && other_before != before;
    if (is_swap) {
      ASSERT_TRUE(write_object(*tier.storage, key, other_before));
      ASSERT_TRUE(write_object(*tier.storage, other, before));
    } else {
      flip(tier, key, random);
    }
    EXPECT_FALSE(load_and_compare(tier, 1, arrays_of(1))) << key << ": the damage is seen in the tier alone";
    EXPECT_OK(load_over(tiers.plain, 1)) << key << (is_swap ? " and " + other : "");
    ASSERT_TRUE(write_object(*tier.storage, key, before));
    if (is_swap) {
      ASSERT_TRUE(write_object(*tier.storage, other, other_before));
    }
  }
}

TEST(Healing, SaysWhichCopyWasDamagedAndWhichWasRead) {
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  const std::string key = tiers.plain[0].child("step-000000000001/r0000-test/rank-00000-of-00001.safetensors").key;
  std::string content = read_object(*tiers.storages[0], key).value();
  content.back() ^= 1;
  ASSERT_TRUE(write_object(*tiers.storages[0], key, content));
  Lines lines;
  EXPECT_OK(load_over(tiers.plain, 1));
  EXPECT_THAT(lines.text(), HasSubstr("mem://tier0/" + key + ": tensor"));
  EXPECT_THAT(lines.text(), HasSubstr("do not match their hash; this block of the file read from mem://tier1/t1/"));
}

TEST(Healing, WhatIsDamagedEverywhereIsAnError) {
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  for (const Location& tier : tiers.plain) {
    const std::string key = tier.child("step-000000000001/r0000-test/rank-00000-of-00001.safetensors").key;
    std::string content = read_object(*tier.storage, key).value();
    content.back() ^= 1;
    ASSERT_TRUE(write_object(*tier.storage, key, content));
  }
  EXPECT_CODE(load_over(tiers.plain, 1), ErrorCode::kCorruption);
}

// EIO, a missing file or step, another size. A far tier that does not answer is no damage of the step.
TEST(Healing, WhatCannotBeReadComesFromTheNextTier) {
  Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  for (const char* file : {"rank-", "part-", "manifest"}) {
    tiers.plans[0]->add({.call = FaultCall::kRead, .key_part = file, .error = errno_error(EIO, "read")});
    EXPECT_OK(load_over(tiers.faulty, 1)) << file;
    tiers.plans[0]->add({.call = FaultCall::kRead, .key_part = file, .error = errno_error(EIO, "read")});
    tiers.plans[1]->add({.call = FaultCall::kAny,
                         .key_part = file,
                         .count = FaultRule::kForever,
                         .error = Error(ErrorCode::kUnavailable, "no answer")});
    EXPECT_CODE(load_over(tiers.faulty, 1), ErrorCode::kUnavailable) << file;
    tiers.heal();
  }
  for (const std::string& key : keys_below(tiers.plain[0]))
    ASSERT_TRUE(tiers.storages[0]->remove(std::vector{tiers.plain[0].child(key).key}));
  EXPECT_OK(load_over(tiers.plain, 1)) << "a new node";
  EXPECT_CODE(load_over(tiers.plain, 2), ErrorCode::kNotFound);
}

TEST(Healing, TheNewestAttemptOfAllTiersCounts) {
  const Tiers tiers(2);
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[0], {.attempt = "r0000-a"}), 1, arrays_of(7)));
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[1], {.attempt = "r0001-b"}), 1, arrays_of(1)));
  EXPECT_OK(load_over(tiers.plain, 1));
}

// The nearest tier answers `skip` of its calls and then no more. The load ends, from the next tier.
TEST(HangingLoad, GoesOnFromTheNextTier) {
  const Arrays arrays = {{"a", make_array(formats::Dtype::kF32, {3 << 20}, 1)},
                         {"b", make_array(formats::Dtype::kF32, {5 << 20}, 2)},
                         {"c", make_array(formats::Dtype::kF32, {7}, 3)}};
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays) boxes[name] = box_of_all(array.shape);
  for (const FaultCall call : {FaultCall::kRead, FaultCall::kOpenRead}) {
    for (const int64_t skip : {0, 1, 3}) {
      SCOPED_TRACE(testing::Message() << "call " << static_cast<int>(call) << " after " << skip);
      Tiers tiers(2);
      Hang hang;
      EXPECT_OK(save_and_wait(*tiers.saver(), 1, arrays));
      auto opened = Checkpoint::open(tiers.faulty, 1, kPatience);
      ASSERT_TRUE(opened) << explain(opened);
      tiers.plans[0]->add({.call = call, .skip = skip, .count = FaultRule::kForever, .before = hang.hook()});
      Lines lines;
      EXPECT_OK(load_and_compare(**opened, arrays, boxes));
      if (tiers.plans[0]->hits() == 0) {
        EXPECT_EQ(call, FaultCall::kOpenRead) << "it has so many reads";
      } else {
        EXPECT_THAT(lines.text(), HasSubstr("answer"));
      }
      EXPECT_OK(load_and_compare(**opened, arrays, boxes)) << "again, while it hangs";
      EXPECT_EQ((*opened)->heal().value(), 0) << "a tier that hangs is not damaged";
      hang.release();
      opened->reset();
    }
  }
}

TEST(HangingLoad, IsATimeoutWhereNoOtherTierHasIt) {
  for (const size_t count : {1, 2}) {
    Tiers tiers(count);
    Hang hang;
    EXPECT_OK(start(*tiers.saver(), 1)->wait());
    const auto opened = Checkpoint::open(tiers.faulty, 1, kPatience).value();
    for (const auto& plan : tiers.plans)
      plan->add({.call = FaultCall::kRead, .key_part = "rank-", .count = FaultRule::kForever, .before = hang.hook()});
    std::map<std::string, Box> boxes;
    for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
    EXPECT_CODE(load_and_compare(*opened, arrays_of(1), boxes), ErrorCode::kTimeout);
    hang.release();
  }
}

// Both tiers are folders of this node, which share the threads of local I/O; the hung ones hold all of them.
TEST(HangingLoad, LeavesTheNextTierItsThreads) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto inner = make_memory_storage("node");
  const auto storage = make_fault_storage(inner, plan, 1);
  const std::vector<Location> tiers = {root_of(storage, "near"), root_of(storage, "far")};
  Hang hang;
  const auto saver = make_saver(tiers[1], {.tiers = {{.root = tiers[0]}}});
  EXPECT_OK(start(*saver, 1)->wait());
  const auto opened = Checkpoint::open(tiers, 1, kPatience).value();
  plan->add({.call = FaultCall::kRead, .key_part = "near/", .count = FaultRule::kForever, .before = hang.hook()});
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
  EXPECT_OK(load_and_compare(*opened, arrays_of(1), boxes));
  hang.release();
}

// A storage that takes its time, but goes on, is not given up.
TEST(HangingLoad, IsNotASlowOne) {
  Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  const auto opened = Checkpoint::open(tiers.faulty, 1, 2 * kPatience).value();
  tiers.plans[0]->add({.call = FaultCall::kRead, .count = FaultRule::kForever, .delay = kPatience / 3});
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
  Lines lines;
  EXPECT_OK(load_and_compare(*opened, arrays_of(1), boxes));
  EXPECT_THAT(lines.text(), testing::Not(HasSubstr("answered")));
}

// A stop is heard while storage hangs.
TEST(HangingLoad, CanBeStopped) {
  Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  const auto opened = Checkpoint::open(tiers.faulty, 1, milliseconds(600'000)).value();
  Hang hang;
  std::stop_source stop;
  tiers.plans[0]->add({.call = FaultCall::kRead, .key_part = "rank-", .before = [&, held = hang.hook()] {
                         stop.request_stop();
                         held();
                       }});
  const Arrays arrays = arrays_of(1);
  std::map<std::string, std::string> room;
  std::vector<TensorToLoad> targets;
  for (const auto& [name, array] : arrays) {
    room[name].resize(array.bytes.size() + 1);
    targets.push_back({name, box_of_all(array.shape), reinterpret_cast<std::byte*>(room[name].data())});
  }
  EXPECT_CODE(opened->load(targets, 1, stop.get_token()), ErrorCode::kCancelled);
  hang.release();
}

TEST(Healing, WritesDamagedManifestsAnew) {
  for (const char* content : {"", "{}", "what else"}) {
    const Tiers tiers;
    EXPECT_OK(start(*tiers.saver(), 1)->wait());
    const Location manifest = tiers.plain[0].child("step-000000000001/manifest.json");
    const Location other = tiers.plain[1].child("step-000000000001/manifest.json");
    const std::string good = read_object(*other.storage, other.key).value();
    ASSERT_TRUE(write_object(*manifest.storage, manifest.key, content));
    const auto opened = Checkpoint::open(tiers.plain, 1).value();
    EXPECT_EQ(opened->heal().value(), 1);
    EXPECT_EQ(read_object(*manifest.storage, manifest.key).value(), good);
    EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(1));
    EXPECT_EQ(Checkpoint::open(tiers.plain, 1).value()->heal().value(), 0) << "once";
  }
}

// Both at once: the manifest goes first, for a part is only mended where its step is committed.
TEST(Healing, MendsAManifestAndAPart) {
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  for (const char* name : {"manifest.json", "r0000-test/rank-00000-of-00001.safetensors"}) {
    const Location at = tiers.plain[0].child("step-000000000001").child(name);
    std::string content = read_object(*at.storage, at.key).value();
    content.back() ^= 1;
    ASSERT_TRUE(write_object(*at.storage, at.key, content));
  }
  const auto opened = Checkpoint::open(tiers.plain, 1).value();
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
  EXPECT_OK(load_and_compare(*opened, arrays_of(1), boxes));
  EXPECT_EQ(opened->heal().value(), 2);
  EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(1));
}

// The damaged manifest may be a newer attempt's, whose parts are there and are all that is left of it.
TEST(Healing, LeavesManifestsOfOtherAttempts) {
  const Tiers tiers(2);
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[0], {.attempt = "r0001-b"}), 1, arrays_of(1)));
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[1], {.attempt = "r0000-a"}), 1, arrays_of(1)));
  const Location manifest = tiers.plain[0].child("step-000000000001/manifest.json");
  ASSERT_TRUE(write_object(*manifest.storage, manifest.key, "{}"));
  const auto opened = Checkpoint::open(tiers.plain, 1).value();
  EXPECT_EQ(opened->info().attempt, "r0000-a");
  EXPECT_EQ(opened->heal().value(), 0);
  EXPECT_EQ(read_object(*manifest.storage, manifest.key).value(), "{}");
}

// Two nodes of one rank each. Each node's tier has its own part and the manifest of all.
TEST(Nodes, ALostNodesPartComesFromTheSharedTier) {
  const Location nodes[] = {root_of(make_memory_storage("zero"), "node"), root_of(make_memory_storage("one"), "node")};
  const Location shared = memory_root();
  const auto save = [&](int64_t rank, int64_t step, Saver& saver) {
    const Arrays arrays = arrays_of(step);
    RankTensors mine;
    for (const auto& [name, array] : arrays) {
      if ((name < "m") == (rank == 0)) mine.add(name, array, box_of_all(array.shape));
    }
    return saver.save(step, mine.tensors(), "{}", "null").value();
  };
  std::vector<std::unique_ptr<Saver>> savers;
  for (int64_t rank = 0; rank < 2; ++rank)
    savers.push_back(make_saver(shared, {.rank = rank,
                                         .world_size = 2,
                                         .commit_timeout = std::chrono::minutes(2),
                                         .tiers = {{.root = nodes[rank], .keep = {.last = 2}, .node_local = true}}}));
  for (int64_t step = 1; step <= 3; ++step) {
    const auto zero = save(0, step, *savers[0]), one = save(1, step, *savers[1]);
    EXPECT_OK(wait_for_all(*zero));
    EXPECT_OK(wait_for_all(*one));
  }
  const Location lost = memory_root();
  for (const Location& node : nodes) {
    EXPECT_THAT(committed_steps(node), ElementsAre(2, 3)) << "each node keeps its last two";
    EXPECT_EQ(keys_below(node).size(), 2U * 3 + 1) << "a part record, its file and the manifest; latest";
    EXPECT_OK(load_over(std::vector{node, shared}, 3));
  }
  EXPECT_OK(load_over(std::vector{lost, shared}, 3));
  EXPECT_OK(load_over(std::vector{lost, shared}, 1));
  EXPECT_FALSE(load_over(std::vector{nodes[0], lost}, 3)) << "half of it is on the other node";
}

// Saves into three tiers until it is killed; writes down each step that each tier has reported durable.
[[noreturn]] void save_until_killed(const std::vector<Location>& tiers, std::atomic<int64_t>* committed) {
  SaverOptions options{.attempt = make_attempt(tiers[0]).value(), .threads = 1, .keep = {.last = 3}};
  for (size_t i = 0; i + 1 < tiers.size(); ++i) options.tiers.push_back({.root = tiers[i], .keep = {.last = 2}});
  const auto saver = Saver::create(tiers.back(), options);
  for (int64_t step = committed[0] + 1;; ++step) {
    const auto save = (*saver)->save(step, whole_tensors(arrays_of(step)).tensors(), "{}", "null");
    if (!save) ::_exit(1);
    for (size_t i = 0; i < tiers.size(); ++i) {
      if (i > 0 && step % 3 != 0) continue;  // two of three saves begin while the far tiers are written
      if (!(*save)->wait({}, i)) ::_exit(2);
      committed[i] = step;
    }
  }
}

TEST(TierKill, AtAnyMomentLeavesEveryTierWhole) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const TempDir directory;
  std::vector<Location> tiers;
  for (const char* name : {"near", "middle", "far"})
    tiers.push_back(root_of(open_local_storage(directory.path()).value(), name));
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* committed = new (shared) std::atomic<int64_t>[3]();
  for (int round = 0; round < rounds(15); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(tiers, committed);
    ::usleep(static_cast<useconds_t>(5'000 + random() % 80'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    int64_t newest = 0;
    for (size_t i = 0; i < 3; ++i) {
      const auto steps = whole_steps(tiers[i]);
      if (committed[i] > 0) {
        ASSERT_GE(steps.empty() ? 0 : steps.back(), committed[i]) << "tier " << i;
      }
      if (!steps.empty()) newest = std::max(newest, steps.back());
    }
    if (newest > 0) {
      EXPECT_OK(load_over(tiers, newest));
    }
    committed[0] = newest;
  }
  EXPECT_GT(committed[0], 0);
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace millrace::checkpoint
