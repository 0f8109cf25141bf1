// SPDX-License-Identifier: Apache-2.0
// Steps that refer to files of earlier ones, and a save that is stopped at every point: what is listed loads
// completely, so what it refers to was never removed before it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/storage/testing/fault_syscalls.h"

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
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  // The cut is played, so real syncs would only cost time.
  if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE(testing::Message() << "system call " << at);
    const TempDir directory;
    FaultSyscalls syscalls(seed + static_cast<uint64_t>(at), directory.path());
    bool cut = false, saved = false;
    {
      const Location root =
          root_of(open_local_storage(directory.path(), {.io_threads = 1, .syscalls = &syscalls}).value());
      const auto saver = make_saver(root, keep_one_referring("r0000-a"));
      save_the_first(*saver);
      const int64_t before = syscalls.calls();
      syscalls.cut_power_after(at);
      saved = save_and_wait(*saver, 3, arrays_at(3)).has_value();
      cut = syscalls.calls() - before > at;
    }
    syscalls.crash();
    const Location root = local_root(directory.path());
    const int64_t newest = newest_whole_step(root);
    if (saved) {
      EXPECT_EQ(newest, 3);
    } else {
      EXPECT_TRUE(newest == 2 || newest == 3) << newest;
    }
    go_on_from(root, newest, 5);
    if (!cut || HasFailure()) {
      EXPECT_GT(at, 50);
      break;
    }
  }
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

// Steps 1 and 2 are in both tiers; a child saves 3 to 5 and is killed before operation `at` of one tier.
[[noreturn]] void save_in_tiers_and_die(const std::string& directory, size_t at_tier, int64_t at) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto storage = open_local_storage(directory).value();
  std::vector<Location> roots{root_of(storage, "near"), root_of(storage, "far")};
  roots[at_tier].storage = make_fault_storage(roots[at_tier].storage, plan);
  SaverOptions options = keep_one_referring("r0001-b");
  options.commit_timeout = std::chrono::minutes(1);
  options.tiers.push_back({.root = roots[0], .keep = {.last = 1}});
  const auto saver = make_saver(roots[1], options);
  saver->continue_from(Lineage{{"r0000-a", 2}});
  plan->add({.skip = at, .before = [] { ::kill(::getpid(), SIGKILL); }});
  for (int64_t step = 3; step <= 5; ++step) {
    if (!save_and_wait(*saver, step, arrays_at(step))) ::_exit(1);
  }
  ::_exit(0);
}

TEST(ReferenceKill, BeforeOperationsOfEachTierLeavesWhatEachListsWhole) {
  for (size_t at_tier = 0; at_tier < 2; ++at_tier) {
    for (int64_t at = 0;; at += 3) {  // every third: the test has a few seconds
      SCOPED_TRACE(testing::Message() << "tier " << at_tier << ", operation " << at);
      const TempDir directory;
      const auto storage = open_local_storage(directory.path()).value();
      const std::vector<Location> roots{root_of(storage, "near"), root_of(storage, "far")};
      {
        SaverOptions options = keep_one_referring("r0000-a");
        options.tiers.push_back({.root = roots[0], .keep = {.last = 1}});
        save_the_first(*make_saver(roots[1], options));
      }
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) save_in_tiers_and_die(directory.path(), at_tier, at);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      const bool killed = WIFSIGNALED(status);
      ASSERT_TRUE(killed || WEXITSTATUS(status) == 0) << "the child failed by itself";
      for (const Location& root : roots) EXPECT_GE(newest_whole_step(root), killed ? 2 : 5) << root.url;
      if (!killed || HasFailure()) {
        EXPECT_GT(at, 20);
        break;
      }
    }
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace millrace::checkpoint
