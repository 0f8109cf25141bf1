// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "millrace/monitor/sinks.h"

namespace millrace::monitor {
namespace {

PublishedProcess process(int rank, std::map<std::string, int64_t, std::less<>> values) {
  const pid_t pid = 100 + rank;
  return {.path = "/run/" + std::to_string(pid),
          .pid = pid,
          .begun_ns = 1,
          .rank = rank,
          .world_size = 2,
          .values = std::move(values)};
}

double value(const Sample& sample, const std::string& key) {
  for (const Value& each : sample.values) {
    if (series_key(each) == key) return each.value;
  }
  return NAN;
}

TEST(Programs, SumsGoOnWhenAProcessEnds) {
  Programs programs({});
  Sample first{.time_ns = 10'000'000'000, .host = "a", .values = {}, .missing = {}};
  programs.add(std::vector{process(0, {{"batches", 10}, {"wait_ns", 1'000'000'000}, {"queue_batches", 3}}),
                           process(1, {{"batches", 20}, {"wait_ns", 0}, {"queue_batches", 1}})},
               first);
  EXPECT_EQ(value(first, "millrace_training_processes"), 2);
  EXPECT_EQ(value(first, "millrace_training_batches_total"), 30);
  EXPECT_EQ(value(first, "millrace_training_waiting_ratio"), 0) << "nothing to compare with";
  EXPECT_EQ(value(first, "millrace_training_queue_batches"), 1) << "of the worse";
  EXPECT_EQ(value(first, "millrace_process_batches_total{rank=\"1\",pid=\"101\"}"), 20);

  Sample second{.time_ns = 12'000'000'000, .host = "a", .values = {}, .missing = {}};
  programs.add(
      std::vector{
          process(0, {{"batches", 12}, {"wait_ns", 2'000'000'000}, {"saves_under_way", 1}, {"unwritten_bytes", 500}}),
          process(1, {{"batches", 22}, {"wait_ns", 0}})},
      second);
  EXPECT_DOUBLE_EQ(value(second, "millrace_training_waiting_ratio"), 0.25) << "one of two processes, half of 2 s";
  EXPECT_EQ(value(second, "millrace_training_saves_under_way"), 1);
  EXPECT_EQ(value(second, "millrace_training_unwritten_bytes"), 500);

  Sample third{.time_ns = 14'000'000'000, .host = "a", .values = {}, .missing = {}};
  programs.add(std::vector{process(1, {{"batches", 25}, {"wait_ns", 0}})}, third);
  EXPECT_EQ(value(third, "millrace_training_batches_total"), 37) << "12 of one that is gone, and 25";
  EXPECT_EQ(value(third, "millrace_training_wait_seconds_total"), 2);
  EXPECT_EQ(value(third, "millrace_training_processes"), 1);
}

TEST(Programs, TellHowFarLinksAreBehind) {
  Programs programs({});
  Sample sample{.time_ns = 100'000'000'000, .host = "a", .values = {}, .missing = {}};
  programs.add(std::vector{process(0, {{"batches", 1}}), process(1, {{"links", 2}, {"link_since_ns", 90'000'000'000}}),
                           process(2, {{"links", 1}, {"link_since_ns", 0}}),
                           process(3, {{"links", 1}, {"link_since_ns", 97'000'000'000}})},
               sample);
  EXPECT_EQ(value(sample, "millrace_links"), 4);
  EXPECT_EQ(value(sample, "millrace_link_behind_seconds"), 10) << "the oldest change of all";
  EXPECT_EQ(value(sample, "millrace_training_processes"), 1);
  EXPECT_TRUE(std::isnan(value(sample, "millrace_process_batches_total{rank=\"1\",pid=\"101\"}")));
}

// A file of samples is continued by another monitor, whatever processes there are.
TEST(Programs, TheColumnsOfCsvDoNotDependOnProcesses) {
  const auto header = [](const std::vector<PublishedProcess>& processes) {
    std::string text;
    Programs programs({});
    Sample sample{.time_ns = 10, .host = "a", .values = {}, .missing = {}};
    programs.add(processes, sample);
    EXPECT_TRUE(csv_sink([&](std::string_view lines) -> Status {
                  text += lines;
                  return {};
                })->write(sample));
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(header({}), header({process(0, {{"batches", 1}})}));
  EXPECT_THAT(header({}), testing::HasSubstr("millrace_training_waiting_ratio"));
}

}  // namespace
}  // namespace millrace::monitor
