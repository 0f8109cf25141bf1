// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/lineage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/storage.h"

namespace millrace::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kA = "r0000-a", kB = "r0001-b", kC = "r0002-c";

// What a manifest says: its attempt and line. nullopt: it is damaged.
using Manifests = std::map<int64_t, std::optional<std::pair<std::string, std::optional<Lineage>>>>;

std::vector<int64_t> walked(const std::vector<StepNames>& names, const Manifests& manifests) {
  std::vector<int64_t> steps;
  LineWalk walk(names);
  for (int looks = 0; const auto step = walk.next(); ++looks) {
    if (looks > 100) return {-1};
    const auto found = manifests.find(*step);
    if (found == manifests.end()) {
      walk.gone();
    } else if (!found->second) {
      walk.damaged();
    } else if (walk.read(found->second->first, found->second->second)) {
      steps.push_back(*step);
    }
  }
  return steps;
}

TEST(Lineage, CoversTheStepsOfEachAttemptUpToWhereItWasLeft) {
  const Lineage line{{kA, 500}, {kB, 600}};
  EXPECT_TRUE(covers(line, kA, 500));
  EXPECT_TRUE(covers(line, kA, 10));
  EXPECT_TRUE(covers(line, kB, 550));
  EXPECT_FALSE(covers(line, kA, 600));
  EXPECT_FALSE(covers(line, kB, 500)) << "A's was restored";
  EXPECT_FALSE(covers(line, kB, 650));
  EXPECT_FALSE(covers(line, kC, 100));
  EXPECT_FALSE(covers({}, kA, 0));
}

TEST(Lineage, GrowsByTheCommitThatIsContinued) {
  EXPECT_THAT(continue_line({}, kA, 500), ElementsAre(Ancestor{kA, 500}));
  EXPECT_THAT(continue_line({{kA, 500}}, kA, 600), ElementsAre(Ancestor{kA, 600}));
  EXPECT_THAT(continue_line({{kA, 500}}, kB, 550), ElementsAre(Ancestor{kA, 500}, Ancestor{kB, 550}));
  // A step that is saved again: only what lies below it stays.
  EXPECT_THAT(lineage_below({{kA, 500}}, 500), ElementsAre(Ancestor{kA, 499}));
  EXPECT_THAT(lineage_below({{kA, 500}, {kB, 600}}, 501), ElementsAre(Ancestor{kA, 500}));
  EXPECT_THAT(lineage_below({{kA, 500}, {kB, 600}}, 0), IsEmpty());
}

// Steps 500, 600 and 700 of A; back to 500; then 550, 600 and 650 of B.
const std::vector<StepNames> kSetBack{
    {500, true, {kA}}, {550, true, {kB}}, {600, true, {kA, kB}}, {650, true, {kB}}, {700, true, {kA}}};

TEST(LineWalk, TheNewestAttemptAndWhatItContinues) {
  const Lineage at_550{{kA, 500}}, at_600{{kA, 500}, {kB, 550}}, at_650{{kA, 500}, {kB, 600}};
  Manifests manifests{{500, {{kA, Lineage{}}}},
                      {550, {{kB, at_550}}},
                      {600, {{kB, at_600}}},
                      {650, {{kB, at_650}}},
                      {700, {{kA, Lineage{{kA, 600}}}}}};
  EXPECT_THAT(walked(kSetBack, manifests), ElementsAre(650, 600, 550, 500));
  manifests[600] = std::nullopt;
  EXPECT_THAT(walked(kSetBack, manifests), ElementsAre(650, 550, 500));
  manifests[650] = std::nullopt;
  EXPECT_THAT(walked(kSetBack, manifests), ElementsAre(550, 500)) << "never 700, which the line left";
  manifests[550] = std::nullopt;
  EXPECT_THAT(walked(kSetBack, manifests), ElementsAre(500));
  manifests.erase(650);  // removed by another process
  EXPECT_THAT(walked(kSetBack, manifests), ElementsAre(500));
  EXPECT_THAT(walked({}, {}), IsEmpty());
}

// B has begun to write 600 and 650 and has committed nothing: 700 of A is the newest.
TEST(LineWalk, FilesWithoutAManifestAreNoCommit) {
  const std::vector<StepNames> names{{500, true, {kA}}, {600, true, {kA, kB}}, {650, false, {kB}}, {700, true, {kA}}};
  EXPECT_THAT(
      walked(names, {{500, {{kA, Lineage{}}}}, {600, {{kA, Lineage{{kA, 500}}}}}, {700, {{kA, Lineage{{kA, 600}}}}}}),
      ElementsAre(700, 600, 500));
}

// Earlier builds wrote no line: the attempt counts, then the step.
TEST(LineWalk, WithoutALineTheAttemptCountsThenTheStep) {
  Manifests manifests;
  for (const int64_t step : {500, 700}) manifests[step] = {kA, std::nullopt};
  for (const int64_t step : {550, 600, 650}) manifests[step] = {kB, std::nullopt};
  EXPECT_THAT(walked(kSetBack, manifests), ElementsAre(650, 600, 550, 500));
  EXPECT_THAT(infer_lineage(kSetBack, kB, 650), ElementsAre(Ancestor{kA, 500}, Ancestor{kB, 650}));
  EXPECT_THAT(infer_lineage(kSetBack, kA, 700), ElementsAre(Ancestor{kA, 700}));
  EXPECT_THAT(infer_lineage({}, kA, 0), ElementsAre(Ancestor{kA, 0}));
}

// What a tier adds: the names of all tiers come one after the other.
TEST(LineWalk, TiersCountTogether) {
  const std::vector<StepNames> names{{500, true, {kA}}, {700, true, {kA}}, {500, true, {kA}}, {550, true, {kB}}};
  EXPECT_THAT(
      walked(names, {{500, {{kA, Lineage{}}}}, {550, {{kB, Lineage{{kA, 500}}}}}, {700, {{kA, Lineage{{kA, 500}}}}}}),
      ElementsAre(550, 500));
}

struct Folder {
  Location root = memory_root();
  // A process that has restored `line` and saves `steps`.
  void saves(const std::string& attempt, std::optional<Lineage> line, const std::vector<int64_t>& steps,
             const KeepRules& keep = {}) const {
    const auto saver = make_saver(root, {.attempt = attempt, .keep = keep});
    saver->continue_from(std::move(line));
    for (const int64_t step : steps) EXPECT_OK(save_and_wait(*saver, step, small_arrays(1)));
  }
  std::vector<int64_t> left() const {
    std::vector<int64_t> steps;
    const auto listed = list_steps(root).value();
    for (const StepInfo& info : listed) {
      if (info.is_left) steps.push_back(info.step);
    }
    return steps;
  }
};

TEST(Lineage, ManifestsNameWhatTheyContinue) {
  const Folder run;
  run.saves(kA, Lineage{}, {500, 600, 700});
  run.saves(kB, Lineage{{kA, 500}}, {550, 600, 650});
  std::map<int64_t, Lineage> lines;
  const auto listed = list_steps(run.root).value();
  for (const StepInfo& info : listed) lines[info.step] = info.line.value();
  EXPECT_THAT(lines[500], IsEmpty());
  EXPECT_THAT(lines[700], ElementsAre(Ancestor{kA, 600}));
  EXPECT_THAT(lines[550], ElementsAre(Ancestor{kA, 500}));
  EXPECT_THAT(lines[650], ElementsAre(Ancestor{kA, 500}, Ancestor{kB, 600}));
  EXPECT_THAT(run.left(), ElementsAre(700));
  const auto steps = list_steps(run.root).value();
  EXPECT_EQ(newest_step(steps)->step, 650);
}

TEST(Lineage, ASaverThatIsToldNothingSaysNothing) {
  const Folder run;
  run.saves(kA, std::nullopt, {1, 2});
  EXPECT_EQ(list_steps(run.root).value()[1].line, std::nullopt);
  EXPECT_THAT(run.left(), IsEmpty());
}

TEST(Lineage, RetentionCountsStepsThatWereLeftApart) {
  const Folder run;
  run.saves(kA, Lineage{}, {500, 600, 700}, {.last = 3});
  run.saves(kB, Lineage{{kA, 500}}, {550, 600}, {.last = 3});
  EXPECT_THAT(committed_steps(run.root), ElementsAre(500, 550, 600, 700));
  run.saves(kC, Lineage{{kA, 500}, {kB, 600}}, {650}, {.last = 3});
  EXPECT_THAT(committed_steps(run.root), ElementsAre(550, 600, 650, 700)) << "700 stays until the line is past it";
  run.saves("r0003-d", Lineage{{kA, 500}, {kB, 600}, {kC, 650}}, {720}, {.last = 3});
  EXPECT_THAT(committed_steps(run.root), ElementsAre(600, 650, 720));
}

// Left steps are no newest, no best and no every; they go first above the quota.
TEST(Lineage, TheRulesOfStepsThatWereLeft) {
  constexpr std::chrono::sys_time<std::chrono::nanoseconds> kToday{std::chrono::hours(1000)};
  std::vector<StepInfo> steps;
  for (const int64_t step : {500, 550, 600, 650, 700}) {
    StepInfo& info = steps.emplace_back();
    info = {.step = step, .bytes = 10, .metrics = {{"loss", static_cast<double>(1000 - step)}}, .committed = kToday};
    info.is_left = step == 600 || step == 700;
  }
  const auto stay = [&](const KeepRules& rules) {
    std::vector<int64_t> kept;
    const auto verdicts = judge_steps(steps, rules, kToday);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (verdicts[i].stays) kept.push_back(steps[i].step);
    }
    return kept;
  };
  EXPECT_THAT(stay({}), ElementsAre(500, 550, 600, 650, 700));
  EXPECT_THAT(stay({.last = 2}), ElementsAre(550, 650, 700));
  EXPECT_THAT(stay({.last = 1, .every = 600}), ElementsAre(650, 700));
  EXPECT_THAT(stay({.best = 1, .monitor = "loss"}), ElementsAre(650, 700));
  EXPECT_THAT(stay({.last = 1, .young = std::chrono::hours(1)}), ElementsAre(500, 550, 600, 650, 700));
  EXPECT_THAT(stay({.quota_bytes = 30}), ElementsAre(500, 550, 650));
  EXPECT_THAT(stay({.quota_bytes = 20}), ElementsAre(550, 650));
  EXPECT_THAT(stay({.drop_left = true}), ElementsAre(500, 550, 650));
}

// A program that only adds steps: among its steps the greatest counts, in whatever order they come.
TEST(Lineage, ImportsCountByTheirSteps) {
  const Folder run;
  run.saves(make_equal_attempt(run.root).value(), std::nullopt, {1000});
  run.saves(make_equal_attempt(run.root).value(), std::nullopt, {500});
  const auto steps = list_steps(run.root).value();
  EXPECT_EQ(newest_step(steps)->step, 1000);
  EXPECT_THAT(run.left(), IsEmpty());
}

// A random history of runs that restore any step of the line and go on: the walk is the line that the test kept itself.
TEST(LineWalk, FollowsARandomHistory) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 20; ++round) {
    const Folder run;
    std::vector<std::pair<int64_t, Lineage>> line;  // steps, and what a save after them continues
    for (int attempt = 0; attempt < 6; ++attempt) {
      const std::string name = "r000" + std::to_string(attempt) + "-x";
      line.resize(line.empty() ? 0 : 1 + random() % line.size());
      Lineage continues = line.empty() ? Lineage{} : line.back().second;
      int64_t step = line.empty() ? 0 : line.back().first;
      const auto saver = make_saver(run.root, {.attempt = name});
      saver->continue_from(continues);
      for (auto saves = 1 + random() % 3; saves > 0; --saves) {
        step += 1 + static_cast<int64_t>(random() % 30);
        EXPECT_OK(save_and_wait(*saver, step, small_arrays(1)));
        continues = continue_line(continues, name, step);
        line.emplace_back(step, continues);
      }
    }
    std::vector<int64_t> expected, found;
    for (const auto& [step, lineage] : line) expected.push_back(step);
    const auto listed = list_steps(run.root).value();
    for (const StepInfo& info : listed) {
      if (!info.is_left) found.push_back(info.step);
    }
    EXPECT_EQ(found, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace millrace::checkpoint
