// SPDX-License-Identifier: Apache-2.0
// Tasks that share the keys of one tree: how ranges are split, and a simulation of many tasks with deaths, in a virtual
// time, over keys that are computed and not stored.
#include "millrace/sync/share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <queue>
#include <vector>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::sync {
namespace {

TEST(PathBetween, LiesBetween) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"", ""},
                                                                  {"a", ""},
                                                                  {"", "a"},
                                                                  {"a", "b"},
                                                                  {"a", "a0"},
                                                                  {"part-0001", "part-0002"},
                                                                  {"a", ""},
                                                                  {"~~~~", ""},
                                                                  {"a/b", "a/c"},
                                                                  {"x", "x/y/z"},
                                                                  {"data/9", "data:"},

                                                                  {" ", ""},
                                                                  {"shard-00", "shard-01"}};
  for (const auto& [after, until] : cases) {
    const std::string between = path_between(after, until);
    ASSERT_FALSE(between.empty()) << after << " " << until;
    EXPECT_GT(between, after);
    EXPECT_TRUE(until.empty() || between < until) << between;
    EXPECT_TRUE(std::ranges::all_of(between, [](char c) { return c >= ' ' && c <= '~'; })) << between;
  }
  EXPECT_EQ(path_between("a", "a"), "");
  EXPECT_EQ(path_between("b", "a"), "");
  EXPECT_EQ(path_between("a", "a "), "");
  EXPECT_EQ(path_between("data/\xc3\xa9", "data/\xc3\xaa"), "") << "no ASCII lies there";
}

TEST(PathBetween, HalvesUntilNothingIsLeft) {
  std::string after = "part-0", until = "part-1";
  int halves = 0;
  for (; halves < 1000; ++halves) {
    const std::string between = path_between(after, until);
    if (between.size() > 20) break;
    (halves % 2 == 0 ? after : until) = between;
  }
  EXPECT_GT(halves, 60);
}

// N paths of trees whose sizes differ by the thousand, computed from their number.
class ManyPaths {
 public:
  explicit ManyPaths(int64_t count) : count_(count) {
    constexpr int kTrees = 1000;
    double sum = 0;
    for (int i = 1; i <= kTrees; ++i) sum += 1.0 / i;
    int64_t begin = 0;
    for (int i = 0; i < kTrees; ++i) {
      begins_.push_back(begin);
      // The large trees lie among the small ones.
      const int rank = (i * 389) % kTrees + 1;
      begin += static_cast<int64_t>(static_cast<double>(count) / sum / rank);
    }
    begins_.push_back(count);
  }
  int64_t count() const { return count_; }
  std::string path(int64_t number) const {
    const auto tree = std::upper_bound(begins_.begin(), begins_.end(), number) - begins_.begin() - 1;
    return fmt::format("runs/{:04}/shard-{:09}.tar", tree, number - begins_[static_cast<size_t>(tree)]);
  }
  // How many paths are not behind `path`.
  int64_t rank(const std::string& path) const {
    int64_t low = 0, high = count_;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      this->path(middle) <= path ? low = middle + 1 : high = middle;
    }
    return low;
  }

 private:
  const int64_t count_;
  std::vector<int64_t> begins_;
};

struct Simulated {
  int64_t tasks = 0, paths = 0;
  double paths_per_s = 0;  // of a task
  double deaths = 0;       // share of the tasks that die once and come back as another
  double dead_after_s = 60, beat_s = 5;
  // As a sweep of a link: rows travel with the ranges, so that a dead task's range is begun again.
  bool is_sweep = false;
};

struct Outcome {
  double seconds = 0, ideal_s = 0;
  int64_t worked = 0;  // paths, those done twice counted twice
  int64_t looks = 0, probes = 0, reads = 0, writes = 0;
  int64_t ranges = 0, deaths = 0;
  int64_t row_objects = 0;  // that were written, and read in the next sweep
};

class Simulation {
 public:
  explicit Simulation(const Simulated& what)
      : what_(what), paths_(what.paths), board_(*open_url(fmt::format("mem://board{}/tasks", ++boards_))) {}

  Outcome run() {
    for (int64_t i = 0; i < what_.tasks; ++i) start_task(0.01 * static_cast<double>(i));
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_s_ = event.at_s;
      step(event.task);
    }
    check_all_done();
    outcome_.ideal_s = static_cast<double>(what_.paths) / what_.paths_per_s / static_cast<double>(what_.tasks);
    return outcome_;
  }

 private:
  struct Event {
    double at_s = 0;
    size_t task = 0;
    bool operator<(const Event& other) const { return at_s > other.at_s; }
  };
  static constexpr double kFirstBeat_s = 0.1;  // of work_and_beat()
  struct Task {
    std::unique_ptr<Share> share;
    std::shared_ptr<KeyRange> range;
    int64_t begin = 0, at = 0;  // the first and the next path's number
    double wait_s = 0.2, beat_s = kFirstBeat_s, dies_at_s = 0;
  };

  void start_task(double at_s) {
    const size_t number = tasks_.size();
    auto task = std::make_unique<Task>();
    ShareOptions options{.owner = fmt::format("task{}", number),
                         .dead_after = std::chrono::duration<double>(what_.dead_after_s),
                         .again = what_.is_sweep,
                         .next_path = [this](const std::string& after) -> Result<std::optional<std::string>> {
                           ++outcome_.probes;
                           const int64_t rank = paths_.rank(after);
                           if (rank == paths_.count()) return std::nullopt;
                           return paths_.path(rank);
                         },
                         .now =
                             [this] {
                               return Clock::time_point(std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(1e6 + now_s_)));
                             },
                         .seed = number + 1};
    task->share = std::make_unique<Share>(board_, std::move(options));
    const double ideal = static_cast<double>(what_.paths) / what_.paths_per_s / static_cast<double>(what_.tasks);
    if (static_cast<double>(number) < what_.deaths * static_cast<double>(what_.tasks)) {
      task->dies_at_s = at_s + ideal * (0.1 + 0.7 * static_cast<double>(number % 7) / 7);
    }
    tasks_.push_back(std::move(task));
    events_.push({at_s, number});
  }

  void step(size_t number) {
    Task& task = *tasks_[number];
    if (task.dies_at_s > 0 && now_s_ >= task.dies_at_s) {
      ++outcome_.deaths;
      task.share.reset();
      start_task(now_s_ + 30);
      return;
    }
    if (!task.range) return look(number, task);
    // A beat's worth of work, or what is left.
    const int64_t most = task.at + std::max<int64_t>(1, static_cast<int64_t>(task.beat_s * what_.paths_per_s));
    task.beat_s = std::min(2 * task.beat_s, what_.beat_s);
    const int64_t end = task.range->until().empty() ? paths_.count() : paths_.rank(task.range->until());
    const int64_t until = std::min(most, end);
    outcome_.worked += std::max<int64_t>(0, until - task.at);
    const double took = static_cast<double>(std::max<int64_t>(0, until - task.at)) / what_.paths_per_s;
    if (until > task.at) {
      done_.emplace_back(task.at, until);
      task.at = until;
      task.range->begin(paths_.path(until - 1));
      task.range->finish(paths_.path(until - 1));
    }
    if (task.at >= end) {
      outcome_.reads += 2;
      outcome_.writes += 2;
      constexpr int64_t kRowsOfAnObject = 50'000;  // link/shared_state.cpp
      outcome_.row_objects += (task.at - task.begin) / kRowsOfAnObject + 1;
      ASSERT_TRUE(task.share->finish());
      task.range.reset();
    } else {
      ++outcome_.writes;
      const auto mine = task.share->beat();
      ASSERT_TRUE(mine) << mine.error().to_string();
      if (!*mine) task.range.reset();
    }
    outcome_.seconds = std::max(outcome_.seconds, now_s_ + took);
    events_.push({now_s_ + std::max(took, 0.01), number});
  }

  void look(size_t number, Task& task) {
    ++outcome_.looks;
    const auto turn = task.share->look();
    ASSERT_TRUE(turn) << turn.error().to_string();
    if (turn->finished) return;
    if (turn->range) {
      ++outcome_.ranges;
      outcome_.reads += 2;
      outcome_.writes += 2;
      task.range = turn->range;
      task.begin = task.at = paths_.rank(task.range->after());
      task.wait_s = 0.2;
      task.beat_s = kFirstBeat_s;
      events_.push({now_s_ + 0.1, number});
      return;
    }
    events_.push({now_s_ + task.wait_s, number});
    task.wait_s = std::min(2 * task.wait_s, 10.0);
  }

  void check_all_done() {
    std::sort(done_.begin(), done_.end());
    int64_t covered = 0;
    for (const auto& [begin, end] : done_) {
      ASSERT_LE(begin, covered) << "paths were left out";
      covered = std::max(covered, end);
    }
    EXPECT_EQ(covered, paths_.count());
  }

  static inline int boards_ = 0;
  const Simulated what_;
  const ManyPaths paths_;
  const Location board_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::priority_queue<Event> events_;
  std::vector<std::pair<int64_t, int64_t>> done_;
  double now_s_ = 0;
  Outcome outcome_;
};

std::string text_of(const Simulated& what, const Outcome& outcome) {
  return fmt::format(
      "{} tasks, {} paths, {} deaths: {:.0f} s of an ideal {:.0f} s; {:.2f} % done twice; {} ranges; board: {} looks, "
      "{} "
      "reads, {} writes; source: {} probes",
      what.tasks, what.paths, outcome.deaths, outcome.seconds, outcome.ideal_s,
      100.0 * static_cast<double>(outcome.worked - what.paths) / static_cast<double>(what.paths), outcome.ranges,
      outcome.looks, outcome.reads, outcome.writes, outcome.probes);
}

TEST(Share, AFewTasksShareUnevenTrees) {
  const Simulated what{.tasks = 7, .paths = 200'000, .paths_per_s = 500};
  const Outcome outcome = Simulation(what).run();
  EXPECT_LT(outcome.seconds, 1.5 * outcome.ideal_s) << text_of(what, outcome);
  EXPECT_LT(outcome.worked, what.paths + what.paths / 10) << text_of(what, outcome);
}

TEST(Share, TasksThatDieAreTakenOver) {
  const Simulated what{.tasks = 12, .paths = 1'000'000, .paths_per_s = 500, .deaths = 0.5};
  const Outcome outcome = Simulation(what).run();
  EXPECT_EQ(outcome.deaths, 6);
  EXPECT_LT(outcome.seconds, 2.5 * outcome.ideal_s) << text_of(what, outcome);
}

TEST(Share, OnePathAndOneTaskAreEnough) {
  EXPECT_EQ(Simulation({.tasks = 1, .paths = 1, .paths_per_s = 1}).run().worked, 1);
  EXPECT_GE(Simulation({.tasks = 9, .paths = 3, .paths_per_s = 1}).run().worked, 3);
}

// benchmarks/README.md has its figures.
TEST(Share, TwoThatSeeTheEndAtOnceAreBothFinished) {
  for (const FaultCall call : {FaultCall::kList, FaultCall::kOpenRead}) {
    const auto storage = make_memory_storage("board");
    const auto plan = std::make_shared<FaultPlan>();
    const Location board{.storage = storage, .key = "tasks", .url = "mem://board/tasks"};
    Location slow = board;
    slow.storage = make_fault_storage(storage, plan);
    const auto next_path = [](const std::string&) -> Result<std::optional<std::string>> { return std::nullopt; };
    Share first(board, {.owner = "first", .next_path = next_path});
    Share second(slow, {.owner = "second", .next_path = next_path});
    auto turn = first.look();
    ASSERT_TRUE(turn && turn->range);
    ASSERT_TRUE(first.finish());
    // The first one ends the job, and tidies up, while the second reads what is done.
    plan->add({.call = call, .key_part = "/done/", .before = [&] { turn = first.look(); }});
    const auto late = second.look();
    ASSERT_TRUE(late) << late.error().to_string();
    EXPECT_TRUE(late->finished);
    EXPECT_TRUE(turn && turn->finished);
  }
}

TEST(Share, ManyTasksShareAHundredMillionPaths) {
  const Simulated what{.tasks = rounds(256), .paths = rounds(100'000'000), .paths_per_s = 1000, .deaths = 0.05};
  const Outcome outcome = Simulation(what).run();
  std::printf("%s\n", text_of(what, outcome).c_str());
  // A task meets the board a few times a minute.
  const double per_task_second = static_cast<double>(outcome.looks + outcome.reads + outcome.writes + outcome.probes) /
                                 (outcome.seconds * static_cast<double>(what.tasks));
  EXPECT_LT(per_task_second, 2) << text_of(what, outcome);
  EXPECT_LT(outcome.worked, what.paths + what.paths / 5) << text_of(what, outcome);
}

TEST(Share, ManyTasksShareTheSweepOfALink) {
  const Simulated what{
      .tasks = rounds(256), .paths = rounds(100'000'000), .paths_per_s = 1000, .deaths = 0.05, .is_sweep = true};
  const Outcome outcome = Simulation(what).run();
  const int64_t pages = what.paths / 1000;  // of a listing
  std::printf("%s; %lld objects of rows beside %lld pages of listings\n", text_of(what, outcome).c_str(),
              static_cast<long long>(outcome.row_objects), static_cast<long long>(pages));
  EXPECT_LT(outcome.worked, what.paths + what.paths / 3) << text_of(what, outcome);
  EXPECT_LT(outcome.row_objects, pages / 10 + 4 * what.tasks) << "the state costs little beside the listings";
}

}  // namespace
}  // namespace millrace::sync
