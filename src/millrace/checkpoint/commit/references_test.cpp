// SPDX-License-Identifier: Apache-2.0
// Tensors that did not change are written once: a step refers to the files of earlier ones, which stay as long as it.
#include "millrace/checkpoint/commit/references.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kRun = "r0000-test";

std::unique_ptr<Saver> referring_saver(const Location& root, SaverOptions options = {}) {
  options.refer_unchanged = true;
  return make_saver(root, options);
}

StepInfo info_of(const Location& root, int64_t step) {
  const auto checkpoint = Checkpoint::open(root, step);
  EXPECT_TRUE(checkpoint) << explain(checkpoint);
  return checkpoint ? (*checkpoint)->info() : StepInfo{};
}

std::vector<int64_t> bases_of_step(const Location& root, int64_t step) {
  std::vector<int64_t> steps;
  for (const Ancestor& base : info_of(root, step).bases) steps.push_back(base.step);
  return steps;
}

// Every listed step is whole. Returns the steps.
std::vector<int64_t> whole_adapter_steps(const Location& root, int64_t period = 1'000) {
  const auto steps = committed_steps(root);
  for (const int64_t step : steps) {
    EXPECT_OK(load_and_compare(root, step, adapter_arrays(step, period))) << root.url << ", step " << step;
    EXPECT_OK((*Checkpoint::open(root, step))->verify(1)) << step;
  }
  return steps;
}

std::string rank_file(int64_t step, const std::string& attempt = kRun) {
  return step_name(step) + "/" + attempt + "/" + RankPlaces::of_new(1).file(0);
}

int64_t size_of(const Location& root, const std::string& key) {
  return root.storage->stat(root.child(key).key).value().size;
}

TEST(References, WhatDidNotChangeIsWrittenOnce) {
  const Location root = memory_root();
  const auto saver = referring_saver(root);
  for (int64_t step = 1; step <= 6; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  EXPECT_THAT(whole_adapter_steps(root), ElementsAre(1, 2, 3, 4, 5, 6));
  int64_t written = size_of(root, rank_file(1));
  EXPECT_GT(written, kAdapterBaseBytes);
  EXPECT_THAT(bases_of_step(root, 1), IsEmpty());
  for (int64_t step = 2; step <= 6; ++step) {
    EXPECT_LT(size_of(root, rank_file(step)), 8 << 10) << "a header and 200 bytes";
    EXPECT_EQ(info_of(root, step).referred_bytes, kAdapterBaseBytes);
    EXPECT_EQ(info_of(root, step).bytes, size_of(root, rank_file(step)));
    EXPECT_THAT(bases_of_step(root, step), ElementsAre(1)) << "never a reference to a reference";
    written += size_of(root, rank_file(step));
  }
  EXPECT_EQ(saver->metrics().value(Metric::kWriteBytes), written);
  EXPECT_EQ(saver->referred_bytes(), 5 * kAdapterBaseBytes);
}

TEST(References, AreNotMadeUnlessAsked) {
  const Location root = memory_root();
  const auto saver = make_saver(root);
  for (int64_t step = 1; step <= 2; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  EXPECT_THAT(bases_of_step(root, 2), IsEmpty());
  const auto text = read_object(*root.storage, root.child(step_name(2) + "/manifest.json").key);
  EXPECT_THAT(text.value(), HasSubstr("\"version\":1"));
  // What an earlier build may remove is never referred to.
  const auto next = referring_saver(root, {.attempt = "r0001-b"});
  next->continue_from(Lineage{{kRun, 2}});
  EXPECT_OK(save_and_wait(*next, 3, adapter_arrays(3)));
  EXPECT_THAT(bases_of_step(root, 3), IsEmpty());
}

// One tensor thaws for a step: later steps refer to two files.
TEST(References, FollowEachTensor) {
  const Location root = memory_root();
  const auto saver = referring_saver(root);
  std::map<int64_t, Arrays> saved;
  for (int64_t step = 1; step <= 5; ++step) {
    saved[step] = adapter_arrays(step);
    if (step >= 3) saved[step]["base.embed"] = make_array(formats::Dtype::kF32, {16, 256}, 99);
    EXPECT_OK(save_and_wait(*saver, step, saved[step]));
  }
  for (const auto& [step, arrays] : saved) EXPECT_OK(load_and_compare(root, step, arrays)) << step;
  EXPECT_THAT(bases_of_step(root, 3), ElementsAre(1));
  EXPECT_THAT(bases_of_step(root, 5), ElementsAre(1, 3));
  EXPECT_EQ(info_of(root, 5).referred_bytes, kAdapterBaseBytes);
  // A tensor of another shape under the same name is another one.
  saved[6] = saved[5];
  saved[6]["base.embed"].shape = {32, 128};
  EXPECT_OK(save_and_wait(*saver, 6, saved[6]));
  EXPECT_OK(load_and_compare(root, 6, saved[6]));
  EXPECT_EQ(info_of(root, 6).referred_bytes, 32 << 10);
}

// A few equal bytes are not worth holding a large file for.
TEST(References, AreNotMadeForLittle) {
  const Location root = memory_root();
  const auto saver = referring_saver(root);
  for (int64_t step = 1; step <= 2; ++step) {
    Arrays arrays{{"buffer", make_array(formats::Dtype::kF32, {64}, 1)},
                  {"weight", make_array(formats::Dtype::kF32, {128, 128}, static_cast<uint64_t>(step) * 10)}};
    EXPECT_OK(save_and_wait(*saver, step, arrays));
    EXPECT_OK(load_and_compare(root, step, arrays));
  }
  EXPECT_THAT(bases_of_step(root, 2), IsEmpty());
}

TEST(References, ASaveLargerThanItsMemoryRefersToo) {
  const Location root = memory_root();
  const auto saver = referring_saver(root, {.memory_bytes = 32 << 10});
  for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  EXPECT_THAT(whole_adapter_steps(root), ElementsAre(1, 2, 3));
  EXPECT_THAT(bases_of_step(root, 3), ElementsAre(1));
}

TEST(References, HoldWhatRetentionWouldRemove) {
  const Location root = memory_root();
  const auto saver = referring_saver(root, {.keep = {.last = 2}});
  constexpr int64_t kPeriod = 6;  // step 6 writes all anew
  for (int64_t step = 1; step <= 5; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step, kPeriod)));
  EXPECT_THAT(whole_adapter_steps(root, kPeriod), ElementsAre(1, 4, 5));
  EXPECT_OK(save_and_wait(*saver, 6, adapter_arrays(6, kPeriod)));
  EXPECT_THAT(whole_adapter_steps(root, kPeriod), ElementsAre(1, 5, 6)) << "5 refers to 1";
  EXPECT_OK(save_and_wait(*saver, 7, adapter_arrays(7, kPeriod)));
  EXPECT_THAT(whole_adapter_steps(root, kPeriod), ElementsAre(6, 7));
  EXPECT_THAT(keys_below(root.child(step_name(1))), IsEmpty());
  // A saver that does not refer itself leaves what is referred to.
  const auto other = make_saver(root, {.attempt = "r0001-b", .keep = {.last = 2}});
  EXPECT_OK(save_and_wait(*other, 8, adapter_arrays(8, kPeriod)));
  EXPECT_THAT(whole_adapter_steps(root, kPeriod), ElementsAre(6, 7, 8));
  EXPECT_OK(save_and_wait(*other, 9, adapter_arrays(9, kPeriod)));
  EXPECT_THAT(whole_adapter_steps(root, kPeriod), ElementsAre(8, 9));
}

TEST(References, StepsAreRemovedInAnyOrder) {
  std::vector<int64_t> order{1, 2, 3, 4};
  do {
    SCOPED_TRACE(testing::PrintToString(order));
    const Location root = memory_root();
    {
      const auto saver = referring_saver(root);
      for (int64_t step = 1; step <= 4; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step, 3)));
    }  // 2 refers to 1, and 4 to 3
    std::set<int64_t> left{1, 2, 3, 4};
    for (const int64_t step : order) {
      const bool is_held = step % 2 == 1 && left.contains(step + 1);
      if (is_held) {
        const Status removed = remove_step(root, step);
        EXPECT_CODE(removed, ErrorCode::kAlreadyExists);
        EXPECT_THAT(explain(removed), HasSubstr("a committed step refers to its files"));
      } else {
        EXPECT_OK(remove_step(root, step));
        left.erase(step);
      }
      EXPECT_EQ(whole_adapter_steps(root, 3), std::vector<int64_t>(left.begin(), left.end()));
    }
    for (const int64_t step : {3, 1}) {
      if (left.contains(step)) {
        EXPECT_OK(remove_step(root, step));
      }
    }
    EXPECT_THAT(keys_below(root), ElementsAre("latest"));
  } while (std::next_permutation(order.begin(), order.end()) && !testing::Test::HasFailure());
}

TEST(References, TheRulesSayWhatIsHeld) {
  std::vector<StepInfo> steps;
  for (int64_t step = 1; step <= 5; ++step) steps.push_back({.step = step, .attempt = kRun, .bytes = 10});
  steps[0].bytes = 100;
  for (size_t i : {1U, 2U, 4U}) steps[i].bases = {{kRun, 1}};
  const auto stays = [&](const KeepRules& rules) {
    std::vector<int64_t> left;
    const auto verdicts = judge_steps(steps, rules, {});
    for (size_t i = 0; i < steps.size(); ++i) {
      if (verdicts[i].stays) left.push_back(steps[i].step);
    }
    return left;
  };
  EXPECT_THAT(stays({.last = 1}), ElementsAre(1, 5));
  EXPECT_EQ(judge_steps(steps, {.last = 1}, {})[0].why, "step 5 refers to it");
  EXPECT_THAT(stays({.quota_bytes = 120}), ElementsAre(1, 4, 5)) << "the base cannot go, so others do";
  steps[4].bases.clear();
  EXPECT_THAT(stays({.last = 1}), ElementsAre(5));
  EXPECT_THAT(stays({.quota_bytes = 20}), ElementsAre(4, 5)) << "the base goes once nothing refers to it";
}

TEST(References, ANewProcessRefersToWhatItContinues) {
  const Location root = memory_root();
  {
    const auto saver = referring_saver(root);
    for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  }
  const auto next = referring_saver(root, {.attempt = "r0001-b", .keep = {.last = 1}});
  next->continue_from(Lineage{{kRun, 3}});
  EXPECT_OK(save_and_wait(*next, 4, adapter_arrays(4)));
  EXPECT_EQ(info_of(root, 4).bases, (std::vector<Ancestor>{{kRun, 1}}));
  EXPECT_THAT(whole_adapter_steps(root), ElementsAre(1, 4));
  // One that continues nothing writes all, and so does one with other ranks.
  const auto fresh = referring_saver(root, {.attempt = "r0002-c"});
  EXPECT_OK(save_and_wait(*fresh, 5, adapter_arrays(5)));
  EXPECT_THAT(bases_of_step(root, 5), IsEmpty());
}

// A run goes back and saves step 1 anew. What refers to the step 1 of before stays whole, and its files go with it.
TEST(References, OutliveTheReplacementOfAStep) {
  const Location root = memory_root();
  {
    const auto saver = referring_saver(root);
    for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  }
  {
    const auto back = referring_saver(root, {.attempt = "r0001-b"});
    back->continue_from(Lineage{});
    EXPECT_OK(save_and_wait(*back, 1, adapter_arrays(1)));
  }
  EXPECT_EQ(info_of(root, 1).attempt, "r0001-b");
  EXPECT_THAT(whole_adapter_steps(root), ElementsAre(1, 2, 3));
  EXPECT_CODE(remove_step(root, 1), ErrorCode::kAlreadyExists);
  const Location to = root_of(make_memory_storage("to"));
  const auto copied = copy_step(std::span(&root, 1), to, 3);
  EXPECT_CODE(copied, ErrorCode::kUnsupported);
  EXPECT_THAT(explain(copied), HasSubstr("which attempt r0001-b has replaced since"));
  EXPECT_OK(remove_step(root, 2));
  EXPECT_OK(remove_step(root, 3));
  const auto last = referring_saver(root, {.attempt = "r0002-c"});
  EXPECT_OK(save_and_wait(*last, 4, adapter_arrays(4)));
  EXPECT_THAT(keys_below(root.child(step_name(1) + "/" + kRun)), IsEmpty()) << "the sweep found it";
  EXPECT_THAT(whole_adapter_steps(root), ElementsAre(1, 4));
}

TEST(References, DamageOfTheReferredFileIsFound) {
  const Location root = memory_root();
  const auto saver = referring_saver(root);
  for (int64_t step = 1; step <= 2; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  const auto damaged = rank_file(1);
  std::string text = read_object(*root.storage, root.child(damaged).key).value();
  text[text.size() / 2] ^= 1;  // most of the file is the base
  ASSERT_TRUE(write_object(*root.storage, root.child(damaged).key, text));
  const Status loaded = load_and_compare(root, 2, adapter_arrays(2));
  EXPECT_CODE(loaded, ErrorCode::kCorruption);
  EXPECT_THAT(explain(loaded), AllOf(HasSubstr("load step 2"), HasSubstr(damaged), HasSubstr("base.")));
  EXPECT_CODE((*Checkpoint::open(root, 2))->verify(1), ErrorCode::kCorruption);
  // What lies in the step's own file still loads.
  const auto checkpoint = Checkpoint::open(root, 2).value();
  const auto arrays = adapter_arrays(2);
  EXPECT_OK(load_and_compare(*checkpoint, arrays, {{"adapter.a", box_of_all(arrays.at("adapter.a").shape)}}));

  ASSERT_TRUE(write_object(*root.storage, root.child(damaged).key, text.substr(0, text.size() - 1)));
  const auto steps = list_steps(root, {.check_sizes = true}).value();
  ASSERT_TRUE(steps[1].file_damage);
  EXPECT_THAT(steps[1].file_damage->to_string(), AllOf(HasSubstr("step 1 of attempt"), HasSubstr(damaged)));
}

TEST(References, AFlippedHeaderOfTheReferredFileIsFound) {
  const Location root = memory_root();
  const auto saver = referring_saver(root);
  for (int64_t step = 1; step <= 2; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  std::string text = read_object(*root.storage, root.child(rank_file(1)).key).value();
  text[20] ^= 1;
  ASSERT_TRUE(write_object(*root.storage, root.child(rank_file(1)).key, text));
  EXPECT_CODE((*Checkpoint::open(root, 2))->verify(1), ErrorCode::kCorruption);
  EXPECT_CODE(load_and_compare(root, 2, adapter_arrays(2)), ErrorCode::kCorruption);
}

TEST(References, ACopyBringsWhatIsReferredTo) {
  const Location from = memory_root(), to = root_of(make_memory_storage("to"));
  const auto saver = referring_saver(from);
  for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  const auto copied = copy_step(std::span(&from, 1), to, 3, {.keep = {.last = 1}});
  ASSERT_TRUE(copied) << explain(copied);
  EXPECT_THAT(whole_adapter_steps(to), ElementsAre(1, 3));
  EXPECT_EQ(read_object(*to.storage, to.child(kLatestName).key).value(), step_name(3) + "\n");
}

// Somebody removes the files behind the saver's back: one save fails and says why, the next writes all.
TEST(References, ABaseThatIsGoneCostsOneSave) {
  const Location root = memory_root();
  const auto saver = referring_saver(root);
  for (int64_t step = 1; step <= 2; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  std::vector<std::string> keys;
  for (const std::string& key : keys_below(root.child(step_name(1))))
    keys.push_back(root.child(step_name(1)).child(key).key);
  ASSERT_TRUE(root.storage->remove(keys));
  const Status failed = save_and_wait(*saver, 3, adapter_arrays(3));
  EXPECT_CODE(failed, ErrorCode::kNotFound);
  EXPECT_THAT(explain(failed), AllOf(HasSubstr("step 3 refers to"), HasSubstr("the next save writes all")));
  EXPECT_OK(save_and_wait(*saver, 4, adapter_arrays(4)));
  EXPECT_OK(load_and_compare(root, 4, adapter_arrays(4)));
  EXPECT_THAT(bases_of_step(root, 4), IsEmpty());
  EXPECT_OK(save_and_wait(*saver, 5, adapter_arrays(5)));
  EXPECT_THAT(bases_of_step(root, 5), ElementsAre(4));
}

// The manifest alone is gone, so nothing holds the files any more: rank 0 does not commit what refers to them.
TEST(References, ABaseThatIsNoStepIsNotCommittedTo) {
  const Location root = memory_root();
  const auto saver = referring_saver(root);
  for (int64_t step = 1; step <= 2; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  for (const int64_t step : {1, 2})
    ASSERT_TRUE(root.storage->remove(std::vector{root.child(step_name(step) + "/manifest.json").key}));
  const Status failed = save_and_wait(*saver, 3, adapter_arrays(3));
  EXPECT_CODE(failed, ErrorCode::kNotFound);
  EXPECT_THAT(explain(failed), HasSubstr("step 1 of attempt r0000-test, which ranks refer to"));
  EXPECT_OK(save_and_wait(*saver, 4, adapter_arrays(4)));
  EXPECT_THAT(whole_adapter_steps(root), ElementsAre(4));
}

struct ReferringRanks {
  explicit ReferringRanks(const Location& root, std::vector<bool> refers) {
    for (size_t rank = 0; rank < refers.size(); ++rank)
      savers.push_back(make_saver(root, {.rank = static_cast<int64_t>(rank),
                                         .world_size = static_cast<int64_t>(refers.size()),
                                         .refer_unchanged = refers[rank],
                                         .commit_timeout = std::chrono::minutes(2)}));
  }
  Status save(int64_t step, const Arrays& arrays) {
    std::mt19937_64 random(5);  // the same cut in every step
    const auto parts = sharded_tensors(arrays, std::ssize(savers), random);
    std::vector<std::shared_ptr<PendingSave>> saves;
    for (size_t rank = savers.size(); rank-- > 0;) {
      ASSIGN_OR_RETURN(saves.emplace_back(), savers[rank]->save(step, parts[rank].tensors(), "{}", "null"));
    }
    Status first;
    for (const auto& each : saves) {
      if (Status status = each->wait(); !status) first = std::move(status);
    }
    return first;  // of rank 0
  }
  std::vector<std::unique_ptr<Saver>> savers;
};

TEST(References, EachRankRefersToItsOwnFile) {
  const Location root = memory_root();
  ReferringRanks ranks(root, {true, true, true});
  for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(ranks.save(step, adapter_arrays(step)));
  EXPECT_THAT(whole_adapter_steps(root), ElementsAre(1, 2, 3));
  EXPECT_THAT(bases_of_step(root, 3), ElementsAre(1));
  EXPECT_GT(info_of(root, 3).referred_bytes, kAdapterBaseBytes / 2);
}

TEST(References, RanksWithDifferentOptionsAreToldSo) {
  const Location root = memory_root();
  ReferringRanks ranks(root, {true, false});
  const Status saved = ranks.save(1, adapter_arrays(1));
  EXPECT_CODE(saved, ErrorCode::kInvalidArgument);
  EXPECT_THAT(explain(saved), HasSubstr("give all ranks the same option"));
}

// Three folders; the far one takes every second step.
struct ReferringTiers {
  ReferringTiers() {
    for (size_t i = 0; i < 3; ++i) {
      plans.push_back(std::make_shared<FaultPlan>());
      const auto storage = make_memory_storage("tier" + std::to_string(i));
      plain.push_back(root_of(storage, "t" + std::to_string(i)));
      faulty.push_back(root_of(make_fault_storage(storage, plans.back()), plain.back().key));
    }
  }
  std::unique_ptr<Saver> saver(int64_t save_every, KeepRules keep = {}) const {
    SaverOptions options{.keep = keep, .save_every = save_every};
    for (size_t i = 0; i + 1 < faulty.size(); ++i) options.tiers.push_back({.root = faulty[i], .keep = keep});
    return referring_saver(faulty.back(), options);
  }
  std::vector<std::shared_ptr<FaultPlan>> plans;
  std::vector<Location> plain, faulty;
};

TEST(References, AreToStepsThatTheTierHas) {
  const ReferringTiers tiers;
  const auto saver = tiers.saver(2);
  for (int64_t step = 1; step <= 6; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  EXPECT_THAT(whole_adapter_steps(tiers.plain[0]), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(whole_adapter_steps(tiers.plain[1]), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(whole_adapter_steps(tiers.plain[2]), ElementsAre(2, 4, 6));
  EXPECT_THAT(bases_of_step(tiers.plain[2], 2), IsEmpty()) << "the far tier does not have step 1";
  EXPECT_THAT(bases_of_step(tiers.plain[2], 6), ElementsAre(2));
  EXPECT_THAT(bases_of_step(tiers.plain[0], 5), ElementsAre(2));
}

TEST(References, RetentionOfEachTierHoldsThem) {
  const ReferringTiers tiers;
  const auto saver = tiers.saver(2, {.last = 1});
  for (int64_t step = 1; step <= 9; ++step) {
    EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step, 5)));
    for (const Location& tier : tiers.plain) EXPECT_TRUE(step == 1 || !whole_adapter_steps(tier, 5).empty());
  }
  EXPECT_THAT(whole_adapter_steps(tiers.plain[2], 5), ElementsAre(6, 8));
  EXPECT_THAT(whole_adapter_steps(tiers.plain[1], 5), testing::IsSupersetOf({6, 9}));
}

TEST(References, AreNotMadeWhileATierFails) {
  const ReferringTiers tiers;
  const auto saver = tiers.saver(0);
  for (int64_t step = 1; step <= 2; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  tiers.plans[2]->add({.call = FaultCall::kOpenWrite,
                       .key_part = "rank-",
                       .error = Error(ErrorCode::kUnavailable, "the far tier is gone")});
  EXPECT_CODE(save_and_wait(*saver, 3, adapter_arrays(3)), ErrorCode::kUnavailable);
  EXPECT_OK(save_and_wait(*saver, 4, adapter_arrays(4)));
  EXPECT_OK(save_and_wait(*saver, 5, adapter_arrays(5)));
  EXPECT_THAT(whole_adapter_steps(tiers.plain[0]), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(whole_adapter_steps(tiers.plain[2]), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(bases_of_step(tiers.plain[0], 4), IsEmpty());
  EXPECT_THAT(bases_of_step(tiers.plain[2], 5), ElementsAre(4));
}

TEST(References, ADamagedFileIsReadFromAnotherTierAndMended) {
  const ReferringTiers tiers;
  const auto saver = tiers.saver(0);
  for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(save_and_wait(*saver, step, adapter_arrays(step)));
  const std::string before = read_object(*tiers.plain[0].storage, tiers.plain[0].child(rank_file(1)).key).value();
  std::string text = before;
  text[text.size() / 2] ^= 1;
  ASSERT_TRUE(write_object(*tiers.plain[0].storage, tiers.plain[0].child(rank_file(1)).key, text));
  const auto checkpoint = Checkpoint::open(tiers.plain, 3).value();
  const Arrays arrays = adapter_arrays(3);
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays) boxes[name] = box_of_all(array.shape);
  EXPECT_OK(load_and_compare(*checkpoint, arrays, boxes));
  const auto healed = checkpoint->heal();
  ASSERT_TRUE(healed) << explain(healed);
  EXPECT_EQ(*healed, 1);
  EXPECT_EQ(read_object(*tiers.plain[0].storage, tiers.plain[0].child(rank_file(1)).key).value(), before);
}

}  // namespace
}  // namespace millrace::checkpoint
