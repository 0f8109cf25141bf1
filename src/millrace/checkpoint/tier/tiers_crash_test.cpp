// SPDX-License-Identifier: Apache-2.0
// A save to tiers that is stopped at every point, by a power cut or by kill -9: what a tier lists is whole, what was
// reported durable in it is there, and the next attempt goes on in all of them.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "millrace/checkpoint/crash_testing.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/tier_testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using Roots = std::vector<Location>;  // nearest first

Roots tiers_in(const std::shared_ptr<Storage>& storage) {
  return {root_of(storage, "near"), root_of(storage, "middle"), root_of(storage, "far")};
}

std::unique_ptr<Saver> saver_of(const Roots& roots, const std::string& attempt) {
  SaverOptions options{.attempt = attempt, .threads = 1, .keep = {.last = 1}};
  for (size_t i = 0; i + 1 < roots.size(); ++i) options.tiers.push_back({.root = roots[i], .keep = {.last = 1}});
  return make_saver(roots.back(), options);
}

// The newest step of the tier, after reading all that it lists; 0: none.
int64_t newest_whole(const Location& tier) {
  int64_t newest = 0;
  for (const int64_t step : committed_steps(tier)) {
    EXPECT_OK(load_and_compare(tier, step, arrays_of(step))) << tier.url << ", step " << step;
    EXPECT_OK(Checkpoint::open(tier, step).value()->verify(1));
    newest = step;
  }
  return newest;
}

// Step 1 is in all tiers; step 2 was being saved. A new attempt saves step 3, and leaves nothing else.
void check_and_go_on(const Roots& roots) {
  int64_t newest = 0;
  for (const Location& tier : roots) {
    const int64_t step = newest_whole(tier);
    EXPECT_TRUE(step == 1 || step == 2) << tier.url << " has " << step;
    newest = std::max(newest, step);
  }
  EXPECT_OK(load_over(roots, newest));
  std::string attempt;
  for (const Location& tier : roots) attempt = std::max(attempt, make_attempt(tier, "next").value());
  const auto saver = saver_of(roots, attempt);
  EXPECT_OK(save_and_wait(*saver, 3, arrays_of(3)));
  for (const Location& tier : roots) {
    EXPECT_EQ(newest_whole(tier), 3);
    std::set<std::string> left;
    for (const std::string& key : keys_below(tier)) left.insert(key.substr(0, key.find('/')));
    EXPECT_EQ(left, (std::set<std::string>{"latest", step_name(3)})) << tier.url;
  }
}

// Saves step 2, and is killed before operation `at` of one tier.
Status save_and_die(const std::string& directory, size_t at_tier, int64_t at) {
  const auto plan = std::make_shared<FaultPlan>();
  Roots roots = tiers_in(open_local_storage(directory).value());
  roots[at_tier].storage = make_fault_storage(roots[at_tier].storage, plan);
  plan->add({.skip = at, .before = [] { ::kill(::getpid(), SIGKILL); }});
  return save_and_wait(*saver_of(roots, "r0001-a"), 2, arrays_of(2));
}

TEST(KillWithTiers, BeforeEveryOperationOfEachTierLeavesWhatEachLists) {
  for (size_t at_tier = 0; at_tier < 3 && !HasFailure(); ++at_tier) {
    SCOPED_TRACE(testing::Message() << "tier " << at_tier);
    kill_at_every_operation(
        1, 8,
        [](const std::string& directory) {
          const auto saver = saver_of(tiers_in(open_local_storage(directory).value()), "r0000-a");
          EXPECT_OK(save_and_wait(*saver, 1, arrays_of(1)));
        },
        [&](const std::string& directory, int64_t at) { return save_and_die(directory, at_tier, at); },
        [](const std::string& directory, bool killed) {
          const Roots roots = tiers_in(open_local_storage(directory).value());
          for (const Location& tier : roots) EXPECT_TRUE(killed || newest_whole(tier) == 2) << tier.url;
          check_and_go_on(roots);
        });
  }
}

TEST(PowerCutWithTiers, AtEverySystemCallLeavesWhatEachTierReported) {
  const auto near_and_far = [](const std::shared_ptr<Storage>& storage) {
    return Roots{root_of(storage, "near"), root_of(storage, "far")};
  };
  std::vector<bool> reported;  // by tier
  cut_power_at_every_call(
      100,
      [&](const std::shared_ptr<Storage>& storage) {
        auto saver = saver_of(near_and_far(storage), "r0000-a");
        EXPECT_OK(save_and_wait(*saver, 1, arrays_of(1)));
        return saver;
      },
      [&](Saver& saver) {
        reported.assign(2, false);
        const auto save = saver.save(2, whole_tensors(arrays_of(2)).tensors(), "{}", "null");
        for (size_t tier = 0; save && tier < reported.size(); ++tier)
          reported[tier] = (*save)->wait({}, tier).has_value();
      },
      [&](const std::shared_ptr<Storage>& storage) {
        const Roots roots = near_and_far(storage);
        for (size_t tier = 0; tier < roots.size(); ++tier) {
          const int64_t newest = newest_whole(roots[tier]);
          EXPECT_TRUE(newest == 2 || !reported[tier]) << roots[tier].key << " has " << newest;
        }
        check_and_go_on(roots);
      });
}

}  // namespace
}  // namespace millrace::checkpoint
