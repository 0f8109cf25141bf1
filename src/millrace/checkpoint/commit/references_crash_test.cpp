// SPDX-License-Identifier: Apache-2.0
// Steps that refer to files of earlier ones, and a save that is stopped at every point: what is listed loads
// completely, so what it refers to was never removed before it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "millrace/checkpoint/crash_testing.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;

// Steps 1 and 2 share a base, 3 and 4 another, and so on.
Arrays arrays_at(int64_t step) {
  return adapter_arrays(step + 1, 2);
}

SaverOptions keep_one_referring(const std::string& attempt) {
  return {.attempt = attempt,
          .threads = 1,
          .refer_unchanged = true,
          .commit_timeout = milliseconds(100),
          .keep = {.last = 1}};
}

// The newest listed step, after loading and verifying every one; 0: none.
int64_t newest_whole_step(const Location& root) {
  int64_t newest = 0;
  const auto steps = list_steps(root, {.check_sizes = true});
  EXPECT_TRUE(steps) << explain(steps);
  if (!steps) return -1;
  for (const StepInfo& info : *steps) {
    EXPECT_FALSE(info.any_damage()) << info.any_damage()->to_string();
    EXPECT_OK(load_and_compare(root, info.step, arrays_at(info.step))) << info.step;
    const auto checkpoint = Checkpoint::open(root, info.step);
    EXPECT_TRUE(checkpoint && (*checkpoint)->verify(1)) << info.step;
    newest = info.step;
  }
  return newest;
}

// A new attempt saves two steps that continue what is there, and leaves nothing of the others.
void go_on_from(const Location& root, int64_t newest, int64_t step) {
  const auto attempt = make_attempt(root);
  ASSERT_TRUE(attempt) << explain(attempt);
  const auto saver = make_saver(root, keep_one_referring(*attempt));
  if (newest > 0) saver->continue_from(Lineage{{Checkpoint::open(root, newest).value()->info().attempt, newest}});
  EXPECT_OK(save_and_wait(*saver, step, arrays_at(step)));
  EXPECT_EQ(newest_whole_step(root), step);
  EXPECT_OK(save_and_wait(*saver, step + 2, arrays_at(step + 2)));
  EXPECT_EQ(newest_whole_step(root), step + 2);
  std::set<std::string> left;
  for (const std::string& key : keys_below(root)) left.insert(key.substr(0, key.find('/')));
  EXPECT_EQ(left, (std::set<std::string>{"latest", step_name(step + 2)}));
}

// Step 2 refers to step 1. Step 3 refers to nothing, and its commit removes both.
void save_the_first(Saver& saver) {
  ASSERT_TRUE(save_and_wait(saver, 1, arrays_at(1)));
  ASSERT_TRUE(save_and_wait(saver, 2, arrays_at(2)));
}

TEST(ReferenceFaults, AtEveryOperationLeaveEachListedStepWhole) {
  for (int64_t faulty_step : {2, 3}) {
    for (int64_t at = 0;; ++at) {
      SCOPED_TRACE(testing::Message() << "step " << faulty_step << ", operation " << at);
      const auto plan = std::make_shared<FaultPlan>();
      const auto storage = make_memory_storage("test");
      const Location root = root_of(storage), faulty = root_of(make_fault_storage(storage, plan));
      const auto saver = make_saver(faulty, keep_one_referring("r0000-a"));
      for (int64_t step = 1; step < faulty_step; ++step) ASSERT_TRUE(save_and_wait(*saver, step, arrays_at(step)));
      plan->add({.skip = at, .error = Error(ErrorCode::kUnavailable, "a fault")});
      const Status saved = save_and_wait(*saver, faulty_step, arrays_at(faulty_step));
      EXPECT_EQ(newest_whole_step(root), saved ? faulty_step : faulty_step - 1);
      const bool hit = plan->hits() > 0;
      plan->clear();
      EXPECT_OK(save_and_wait(*saver, 4, arrays_at(4)));
      go_on_from(root, newest_whole_step(root), 5);
      if (!hit || HasFailure()) {
        EXPECT_GT(at, 10);
        break;
      }
    }
    if (HasFailure()) break;
  }
}

TEST(ReferencePowerCut, AtEverySystemCallLeavesEachListedStepWhole) {
  bool saved = false;
  cut_power_at_every_call(
      50,
      [](const std::shared_ptr<Storage>& storage) {
        auto saver = make_saver(root_of(storage), keep_one_referring("r0000-a"));
        save_the_first(*saver);
        return saver;
      },
      [&](Saver& saver) { saved = save_and_wait(saver, 3, arrays_at(3)).has_value(); },
      [&](const std::shared_ptr<Storage>& storage) {
        const int64_t newest = newest_whole_step(root_of(storage));
        EXPECT_TRUE(newest == 3 || (newest == 2 && !saved)) << newest;
        go_on_from(root_of(storage), newest, 5);
      });
}

// Saves until it is killed; writes down each step whose wait() has returned.
void save_on_until_killed(const std::string& directory, std::atomic<int64_t>& committed) {
  const Location root = local_root(directory);
  SaverOptions options = keep_one_referring(make_attempt(root).value());
  options.keep.last = 2;
  const auto saver = Saver::create(root, options);
  if (committed > 0) {
    const auto newest = Checkpoint::open(root, committed);
    (*saver)->continue_from(Lineage{{(*newest)->info().attempt, committed}});
  }
  for (int64_t step = committed + 1;; ++step) {
    if (!save_and_wait(**saver, step, arrays_at(step))) return;
    committed = step;
  }
}

TEST(ReferenceKill, AtAnyMomentLeavesEachListedStepWhole) {
  const TempDir directory;
  kill_at_random_moments(
      15, [&](std::atomic<int64_t>& committed) { save_on_until_killed(directory.path(), committed); },
      [&] { return newest_whole_step(local_root(directory.path())); });
}

std::vector<Location> near_and_far(const std::string& directory) {
  const auto storage = open_local_storage(directory).value();
  return {root_of(storage, "near"), root_of(storage, "far")};
}

// Steps 1 and 2 are in both tiers. Saves 3 to 5, and is killed before operation `at` of one tier.
Status save_in_tiers_and_die(const std::string& directory, size_t at_tier, int64_t at) {
  const auto plan = std::make_shared<FaultPlan>();
  std::vector<Location> roots = near_and_far(directory);
  roots[at_tier].storage = make_fault_storage(roots[at_tier].storage, plan);
  SaverOptions options = keep_one_referring("r0001-b");
  options.commit_timeout = std::chrono::minutes(1);
  options.tiers.push_back({.root = roots[0], .keep = {.last = 1}});
  const auto saver = make_saver(roots[1], options);
  saver->continue_from(Lineage{{"r0000-a", 2}});
  plan->add({.skip = at, .before = [] { ::kill(::getpid(), SIGKILL); }});
  for (int64_t step = 3; step <= 5; ++step) RETURN_IF_ERROR(save_and_wait(*saver, step, arrays_at(step)));
  return {};
}

TEST(ReferenceKill, BeforeOperationsOfEachTierLeavesWhatEachListsWhole) {
  for (size_t at_tier = 0; at_tier < 2 && !HasFailure(); ++at_tier) {
    SCOPED_TRACE(testing::Message() << "tier " << at_tier);
    kill_at_every_operation(
        3, 20,  // every third: the test has a few seconds
        [](const std::string& directory) {
          const auto roots = near_and_far(directory);
          SaverOptions options = keep_one_referring("r0000-a");
          options.tiers.push_back({.root = roots[0], .keep = {.last = 1}});
          save_the_first(*make_saver(roots[1], options));
        },
        [&](const std::string& directory, int64_t at) { return save_in_tiers_and_die(directory, at_tier, at); },
        [](const std::string& directory, bool killed) {
          for (const Location& root : near_and_far(directory))
            EXPECT_GE(newest_whole_step(root), killed ? 2 : 5) << root.url;
        });
  }
}

}  // namespace
}  // namespace millrace::checkpoint
