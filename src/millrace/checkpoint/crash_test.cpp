// SPDX-License-Identifier: Apache-2.0
// A save that is stopped at every point: by an error of storage, by a power cut, by kill -9. The rule is always the
// same: what is listed loads completely, what was reported committed is there, and the next attempt goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "millrace/checkpoint/crash_testing.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;

SaverOptions keep_one(const std::string& attempt) {
  return {.attempt = attempt, .threads = 1, .commit_timeout = milliseconds(100), .keep = {.last = 1}};
}

// The newest listed step, after loading and verifying every one; 0 when there is none.
int64_t newest_good_step(const Location& root) {
  int64_t newest = 0;
  const auto steps = list_steps(root);
  EXPECT_TRUE(steps) << explain(steps);
  if (!steps) return -1;
  for (const StepInfo& info : *steps) {
    EXPECT_FALSE(info.damage) << info.damage->to_string();
    EXPECT_OK(load_and_compare(root, info.step, arrays_of(info.step)));
    const auto checkpoint = Checkpoint::open(root, info.step);
    EXPECT_TRUE(checkpoint && (*checkpoint)->verify(1));
    newest = info.step;
  }
  return newest;
}

// A new attempt saves and leaves nothing of the others.
void go_on(const Location& root, int64_t step) {
  const auto attempt = make_attempt(root);
  ASSERT_TRUE(attempt) << explain(attempt);
  const auto saver = make_saver(root, keep_one(*attempt));
  EXPECT_OK(save_and_wait(*saver, step, arrays_of(step)));
  EXPECT_EQ(newest_good_step(root), step);
  std::set<std::string> left;
  for (const std::string& key : keys_below(root)) left.insert(key.substr(0, key.find('/')));
  EXPECT_EQ(left.size(), 2U) << "`latest` and one step";
  const auto level = list_level(root);
  EXPECT_TRUE(level && level->directories.size() == 1) << "no empty folder of a step";
}

TEST(Faults, AtEveryOperationLeaveTheOldOrTheNewStep) {
  for (int64_t at = 0;; ++at) {
    SCOPED_TRACE(testing::Message() << "operation " << at);
    const auto plan = std::make_shared<FaultPlan>();
    const auto storage = make_memory_storage("test");
    const Location root = root_of(storage), faulty = root_of(make_fault_storage(storage, plan));
    const auto saver = make_saver(faulty, keep_one("r0000-a"));
    ASSERT_TRUE(save_and_wait(*saver, 1, arrays_of(1)));
    plan->add({.skip = at, .error = Error(ErrorCode::kUnavailable, "a fault")});
    const Status saved = save_and_wait(*saver, 2, arrays_of(2));
    const int64_t newest = newest_good_step(root);
    EXPECT_EQ(newest, saved ? 2 : 1);
    const bool hit = plan->hits() > 0;
    plan->clear();
    EXPECT_OK(save_and_wait(*saver, 3, arrays_of(3)));
    go_on(root, 4);
    if (!hit || HasFailure()) {
      EXPECT_GT(at, 10);
      break;
    }
  }
}

TEST(PowerCut, AtEverySystemCallLeavesTheOldOrTheNewStep) {
  bool saved = false;
  cut_power_at_every_call(
      50,
      [](const std::shared_ptr<Storage>& storage) {
        auto saver = make_saver(root_of(storage), keep_one("r0000-a"));
        EXPECT_OK(save_and_wait(*saver, 1, arrays_of(1)));
        return saver;
      },
      [&](Saver& saver) { saved = save_and_wait(saver, 2, arrays_of(2)).has_value(); },
      [&](const std::shared_ptr<Storage>& storage) {
        const int64_t newest = newest_good_step(root_of(storage));
        EXPECT_TRUE(newest == 2 || (newest == 1 && !saved)) << newest;
        go_on(root_of(storage), 3);
      });
}

// Saves until it is killed; writes down each step whose wait() has returned.
void save_until_killed(const std::string& directory, std::atomic<int64_t>& committed) {
  const Location root = local_root(directory);
  const auto saver = Saver::create(root, {.attempt = make_attempt(root).value(), .threads = 2, .keep = {.last = 2}});
  for (int64_t step = committed + 1;; ++step) {
    if (!save_and_wait(**saver, step, arrays_of(step))) return;
    committed = step;
  }
}

TEST(Kill, AtAnyMomentLeavesTheNewestStepWhole) {
  const TempDir directory;
  const int64_t last = kill_at_random_moments(
      25, [&](std::atomic<int64_t>& committed) { save_until_killed(directory.path(), committed); },
      [&] { return newest_good_step(local_root(directory.path())); });
  go_on(local_root(directory.path()), last + 1);
}

// Random saves, half saves, restarts, zombies and set-backs, held against a map.
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) { restart(); }

  void turn() {
    const uint64_t dice = random_() % 10;
    if (dice == 0) restart();
    const size_t attempt = dice == 1 && attempts_.size() > 1 ? random_() % attempts_.size() : attempts_.size() - 1;
    const bool complete = dice != 2 || attempts_[attempt].savers.size() == 1;
    save(attempts_[attempt], complete);
  }

  void check() {
    std::vector<int64_t> expected;
    for (const auto& [step, stored] : steps_) expected.push_back(step);
    ASSERT_EQ(committed_steps(root_), expected);
    for (const auto& [step, stored] : steps_) {
      if (random_() % 3 != 0) continue;
      EXPECT_OK(load_and_compare(root_, step, small_arrays(stored.seed))) << step;
    }
  }

 private:
  struct Attempt {
    int64_t restart = 0;
    int64_t last_step = 0;
    std::vector<std::unique_ptr<Saver>> savers;  // one a rank
  };
  struct Stored {
    int64_t restart = 0;
    uint64_t seed = 0;
  };

  // The next run starts at the newest step or, set back, somewhere before it.
  void restart() {
    Attempt attempt{.restart = static_cast<int64_t>(attempts_.size())};
    if (!steps_.empty()) attempt.last_step = random_() % 3 == 0 ? steps_.begin()->first : steps_.rbegin()->first;
    const auto world = static_cast<int64_t>(1 + random_() % 3);
    for (int64_t rank = 0; rank < world; ++rank)
      attempt.savers.push_back(make_saver(root_, {.attempt = "r" + std::to_string(attempt.restart) + "-m",
                                                  .rank = rank,
                                                  .world_size = world,
                                                  .threads = 1,
                                                  .commit_timeout = std::chrono::minutes(2),
                                                  .keep = kKeep}));
    attempts_.push_back(std::move(attempt));
  }

  void save(Attempt& attempt, bool complete) {
    const int64_t step = attempt.last_step += 1 + static_cast<int64_t>(random_() % 3);
    const uint64_t seed = random_();
    const auto ranks = sharded_tensors(small_arrays(seed), static_cast<int64_t>(attempt.savers.size()), random_);
    const auto there = steps_.find(step);
    const bool open = there == steps_.end() || there->second.restart < attempt.restart;
    if (!complete) {  // the last rank is killed before it saves: its attempt is over, whatever the others wrote stays
      if (open) abandon(attempt, step, ranks);
      return;
    }
    std::vector<std::shared_ptr<PendingSave>> saves;
    for (size_t rank = attempt.savers.size(); rank-- > 0;) {
      auto save = attempt.savers[rank]->save(step, ranks[rank].tensors(), "{}", "null");
      ASSERT_EQ(save.has_value(), open) << explain(save);
      if (save) saves.push_back(std::move(*save));
    }
    for (const auto& each : saves) EXPECT_OK(wait_for_all(*each));
    if (open) commit(step, {attempt.restart, seed});
  }

  void abandon(Attempt& attempt, int64_t step, const std::vector<RankTensors>& ranks) {
    const auto world = static_cast<int64_t>(attempt.savers.size());
    const auto dying = make_saver(root_, {.attempt = "r" + std::to_string(attempt.restart) + "-m",
                                          .rank = 0,
                                          .world_size = world,
                                          .threads = 1,
                                          .commit_timeout = milliseconds(10)});
    EXPECT_CODE(dying->save(step, ranks[0].tensors(), "{}", "null").value()->wait(), ErrorCode::kTimeout);
    restart();
  }

  void commit(int64_t step, Stored stored) {
    steps_[step] = stored;
    std::vector<StepInfo> line;
    for (const auto& [each, ignored] : steps_) {
      if (each <= step) line.push_back({.step = each});
    }
    const auto verdicts = judge_steps(line, kKeep, {});
    for (size_t i = 0; i < line.size(); ++i) {
      const int64_t old = line[i].step;
      if (!verdicts[i].stays && steps_.at(old).restart <= stored.restart) steps_.erase(old);
    }
  }

  inline static const KeepRules kKeep{.last = 3, .every = 5};
  std::mt19937_64 random_;
  const Location root_ = memory_root();
  std::vector<Attempt> attempts_;
  std::map<int64_t, Stored> steps_;
};

TEST(RandomOperations, AlwaysAgreeWithTheModel) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  Model model(seed);
  for (int turn = 0; turn < 150 && !testing::Test::HasFailure(); ++turn) {
    model.turn();
    model.check();
  }
}

}  // namespace
}  // namespace millrace::checkpoint
