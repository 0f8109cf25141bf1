// SPDX-License-Identifier: Apache-2.0
// What the doctor makes of the numbers that loaders and checkpointers show.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/doctor/diagnose.h"

namespace millrace::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kShownSince = 1'795'581'830;

std::vector<std::string> rules_in(const Facts& facts) {
  std::vector<std::string> found;
  for (const Verdict& verdict : diagnose(facts)) found.emplace_back(verdict.rule->id);
  return found;
}

// All evidence of a rule, a line each; "" where it does not hold.
std::string told_of(const Facts& facts, std::string_view rule) {
  std::string all;
  for (const Verdict& verdict : diagnose(facts)) {
    if (verdict.rule->id != rule) continue;
    for (const std::string& line : verdict.evidence) all += line + "\n";
  }
  return all;
}

// A process of four minutes whose loader and checkpointer show `values`.
Facts showing(std::map<std::string, int64_t, std::less<>> values) {
  Facts facts;
  facts.now = kShownSince + 240;
  ProcessFacts process{.pid = 4711, .rank = 3, .states = "SSSSS"};
  process.shown.pid = 4711;
  process.shown.begun_ns = static_cast<int64_t>(kShownSince) * 1'000'000'000;
  process.shown.values = values;
  process.shown_first = process.shown;
  process.shown_s = 1;
  facts.processes = {process};
  return facts;
}

TEST(Shown, WaitsAndSavesAreJudgedByTheProcessAlone) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t now = (static_cast<int64_t>(kShownSince) + 239) * kSecond;
  Facts facts = showing({{"batches", 100}, {"wait_ns", 60 * kSecond}, {"last_batch_ns", now}});
  EXPECT_THAT(rules_in(facts), ElementsAre("DR17"));
  EXPECT_THAT(told_of(facts, "DR17"),
              HasSubstr("rank 3, process 4711: it waited 1m 00s of 4m 00s (25 %) for 100 batches"));
  facts = showing(
      {{"batches", 100}, {"wait_ns", 2 * kSecond}, {"last_batch_ns", now}, {"saves", 3}, {"stall_ns", kSecond}});
  EXPECT_THAT(rules_in(facts), IsEmpty());
  facts = showing({{"batches", 100}, {"last_batch_ns", now}, {"saves", 3}, {"stall_ns", 30 * kSecond}});
  EXPECT_THAT(rules_in(facts), ElementsAre("DR18"));
  facts = showing({});
  EXPECT_THAT(rules_in(facts), IsEmpty());
}

TEST(Shown, AProcessWithoutBatchesForLongStandsStill) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t last = (static_cast<int64_t>(kShownSince) + 50) * kSecond;
  Facts facts = showing({{"batches", 100}, {"last_batch_ns", last}});
  EXPECT_THAT(rules_in(facts), ElementsAre("DR10"));
  EXPECT_THAT(told_of(facts, "DR10"), HasSubstr("before, one every 0.50 s"));
  facts = showing({{"batches", 100}, {"last_batch_ns", last}, {"saves_under_way", 1}});
  EXPECT_THAT(rules_in(facts), IsEmpty()) << "it may be saving";
  facts = showing({{"batches", 4}, {"last_batch_ns", last}});
  EXPECT_THAT(rules_in(facts), IsEmpty()) << "a batch takes long here";
}

// Four minutes of these ranks: batches and seconds of waiting of each.
Facts ranks(const std::vector<std::pair<int64_t, int64_t>>& numbers) {
  constexpr int64_t kSecond = 1'000'000'000;
  Facts facts = showing({});
  facts.processes.clear();
  for (const auto& [batches, waited_s] : numbers) {
    const int rank = static_cast<int>(facts.processes.size());
    ProcessFacts process = showing({{"batches", batches},
                                    {"wait_ns", waited_s * kSecond},
                                    {"last_batch_ns", (static_cast<int64_t>(kShownSince) + 239) * kSecond}})
                               .processes[0];
    process.rank = rank;
    process.pid = 4711 + rank;
    process.host = fmt::format("n{}", rank / 2);
    facts.processes.push_back(process);
  }
  return facts;
}

TEST(Ranks, TheOneThatWaitsForItsDataSetsThePace) {
  const std::string text = told_of(ranks({{1000, 3}, {1000, 2}, {999, 90}, {1000, 4}}), "DR22");
  EXPECT_EQ(text,
            "rank 2, process 4713 of n1: it waited for data in 37 % of the time, and the others in 1.2 % (median of "
            "3)\n");
  EXPECT_THAT(told_of(ranks({{1000, 90}, {1000, 2}}), "DR22"), HasSubstr("rank 0, process 4711 of n0: it waited"));
  EXPECT_EQ(told_of(ranks({{1000, 90}, {1000, 80}, {1000, 100}}), "DR22"), "") << "all wait alike";
  EXPECT_EQ(told_of(ranks({{1000, 10}, {1000, 2}}), "DR22"), "") << "4 % is little";
}

TEST(Ranks, TheOneWithFewerBatchesIsNamed) {
  EXPECT_THAT(told_of(ranks({{1000, 0}, {1000, 0}, {800, 0}}), "DR22"),
              HasSubstr("rank 2, process 4713 of n1: 3.32 batches a second, and the median of the 2 others is 4.15"));
  EXPECT_EQ(told_of(ranks({{1000, 0}, {998, 0}, {1002, 0}}), "DR22"), "") << "some are in flight";
  EXPECT_EQ(told_of(ranks({{9, 0}, {3, 0}}), "DR22"), "") << "too few to tell";
  constexpr int64_t kMinute = 60'000'000'000;
  Facts one_began_earlier = ranks({{1000, 0}, {1000, 0}, {1000, 0}});
  one_began_earlier.processes[0].shown.begun_ns -= kMinute;
  EXPECT_EQ(told_of(one_began_earlier, "DR22"), "") << "it waited for the others";
  Facts one_began_later = ranks({{1000, 0}, {1000, 0}, {750, 0}});
  one_began_later.processes[2].shown.begun_ns += kMinute;
  EXPECT_EQ(told_of(one_began_later, "DR22"), "") << "it is as fast as the others";
  Facts two_trainings = ranks({{1000, 0}, {500, 0}});
  two_trainings.processes[1].rank = 0;
  EXPECT_EQ(told_of(two_trainings, "DR22"), "") << "two of a rank at once are of two trainings";
  Facts unranked = ranks({{1000, 0}, {500, 0}});
  unranked.processes[1].rank = -1;
  EXPECT_EQ(told_of(unranked, "DR22"), "");
}

TEST(Ranks, SamplesOfAllNodesAreCompared) {
  Facts facts;
  facts.now = kShownSince + 100;
  const auto node = [](const char* host, int rank, int pid, double batches, double waits) {
    NodeSamples samples{.host = host, .file = host, .series = {}};
    const std::string labels = fmt::format("{{rank=\"{}\",pid=\"{}\"}}", rank, pid);
    for (int i = 0; i < 60; ++i) {
      samples.series["millrace_process_batches_total" + labels].push_back({kShownSince + i, batches * i});
      samples.series["millrace_process_wait_seconds_total" + labels].push_back({kShownSince + i, waits * i});
    }
    return samples;
  };
  facts.nodes = {node("n1", 0, 10, 5, 0.01), node("n2", 1, 10, 5, 0.4), node("n3", 2, 10, 5, 0.02)};
  EXPECT_THAT(told_of(facts, "DR22"), HasSubstr("rank 1, process 10 of n2: it waited for data in 40 % of the time"));
  facts.nodes[1] = node("n2", 1, 10, 5, 0.01);
  EXPECT_EQ(told_of(facts, "DR22"), "");
  // A process before the last start of its rank does not count.
  NodeSamples before = node("n2", 1, 9, 1, 0.9);
  for (auto& [key, points] : before.series) {
    for (Point& point : points) point.time -= 1000;
  }
  facts.nodes.push_back(before);
  EXPECT_EQ(told_of(facts, "DR22"), "");
}

TEST(Shown, TheMonitorsSamplesTellAWaitToo) {
  Facts facts;
  facts.now = kShownSince + 20;
  NodeSamples samples{.host = "node-1", .file = "a.jsonl", .series = {}};
  for (int i = 0; i < 10; ++i) {
    samples.series["millrace_training_waiting_ratio"].push_back({kShownSince + i, 0.3});
    samples.series["millrace_training_batches_total"].push_back({kShownSince + i, 5.0 * i});
  }
  facts.nodes = {samples};
  EXPECT_THAT(told_of(facts, "DR17"), HasSubstr("node-1: training waited for 45 batches 30 % of the time"));
  for (Point& point : facts.nodes[0].series["millrace_training_waiting_ratio"]) point.value = 0.01;
  EXPECT_THAT(rules_in(facts), IsEmpty());
}

}  // namespace
}  // namespace millrace::doctor
