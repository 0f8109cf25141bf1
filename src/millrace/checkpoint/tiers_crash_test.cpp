// SPDX-License-Identifier: Apache-2.0
// A save to tiers that is killed at each operation of each tier: what a tier lists is whole, and the next attempt goes
// on in all of them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/testing.h"
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

Status load_over(const Roots& roots, int64_t step) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::open(roots, step));
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays_of(step)) boxes[name] = box_of_all(array.shape);
  return load_and_compare(*checkpoint, arrays_of(step), boxes);
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

// In a child: saves step 2 and is killed right before operation `at` of one tier. Ends with 0 where there is no such
// one.
[[noreturn]] void save_and_die(const std::string& directory, size_t at_tier, int64_t at) {
  const auto plan = std::make_shared<FaultPlan>();
  Roots roots = tiers_in(open_local_storage(directory).value());
  roots[at_tier].storage = make_fault_storage(roots[at_tier].storage, plan);
  plan->add({.skip = at, .before = [] { ::kill(::getpid(), SIGKILL); }});
  const auto saver = saver_of(roots, "r0001-a");
  const Status saved = save_and_wait(*saver, 2, arrays_of(2));
  ::_exit(saved ? 0 : 1);
}

TEST(KillWithTiers, BeforeEveryOperationOfEachTierLeavesWhatEachLists) {
  // The machine goes on, so real syncs would only cost time.
  if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  for (size_t at_tier = 0; at_tier < 3; ++at_tier) {
    for (int64_t at = 0;; ++at) {
      SCOPED_TRACE(testing::Message() << "tier " << at_tier << ", operation " << at);
      const TempDir directory;
      ASSERT_TRUE(
          save_and_wait(*saver_of(tiers_in(open_local_storage(directory.path()).value()), "r0000-a"), 1, arrays_of(1)));
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) save_and_die(directory.path(), at_tier, at);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      const bool killed = WIFSIGNALED(status);
      ASSERT_TRUE(killed || WEXITSTATUS(status) == 0) << "the child failed by itself";
      const Roots roots = tiers_in(open_local_storage(directory.path()).value());
      if (!killed) {
        for (const Location& tier : roots) EXPECT_EQ(newest_whole(tier), 2);
      }
      check_and_go_on(roots);
      if (!killed || HasFailure()) {
        EXPECT_GT(at, 8);
        break;
      }
    }
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace millrace::checkpoint
