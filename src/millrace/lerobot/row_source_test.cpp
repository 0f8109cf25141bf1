// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/row_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace millrace::lerobot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RowsToOrder some_rows() {
  return {.name = "arm", .facts = "action", .episodes = {2, 5, 9}, .lengths = {4, 0, 3}};
}

TEST(RowSource, AWindowGivesTheNumbersOfItsRows) {
  const auto source = *make_row_source(some_rows());
  EXPECT_THAT(source->shard_samples(), ElementsAre(4, 3)) << "an episode without rows is no shard";
  EXPECT_EQ(source->shard_name(1), "arm episode 9");
  EXPECT_EQ(source->lengths(), nullptr);
  EXPECT_EQ(source->total_bytes(), 7 * 4);
  const std::vector<order::Window> windows = {{.shard = 1, .first = 1, .samples = 2},
                                              {.shard = 0, .first = 0, .samples = 1}};
  const auto plan = *source->plan(windows, {});
  EXPECT_THAT(plan.tokens, IsEmpty());
  EXPECT_THAT(plan.bytes, ElementsAre(4, 4, 4));
  std::vector<uint32_t> rows;
  for (const auto& run : plan.runs) {
    Status started = fail(ErrorCode::kInternal, "not called");
    run->start({}, {}, [&](Status status) { started = std::move(status); });
    ASSERT_TRUE(started);
    ASSERT_TRUE(run->visit([&](int64_t, const Result<order::Sample>& sample) -> Status {
      uint32_t row = 0;
      EXPECT_EQ(sample->fields[0].name, kRowField);
      std::memcpy(&row, sample->fields[0].data.data(), sizeof(row));
      rows.push_back(row);
      return {};
    }));
  }
  EXPECT_THAT(rows, ElementsAre(5, 6, 0));
}

TEST(RowSource, ItsIdentityIsThatOfItsEpisodes) {
  const auto identity = [](const RowsToOrder& rows) { return std::string((*make_row_source(rows))->identity()); };
  EXPECT_EQ(identity(some_rows()), identity(some_rows()));
  RowsToOrder other = some_rows();
  other.lengths[2] = 4;
  EXPECT_NE(identity(other), identity(some_rows()));
  other = some_rows();
  other.facts = "state";
  EXPECT_NE(identity(other), identity(some_rows()));
  other = some_rows();
  other.name = "elsewhere";
  EXPECT_EQ(identity(other), identity(some_rows())) << "a copy of the dataset";
}

// States say which windows they were made with, and a state with others reads the dataset's order anew.
TEST(RowSource, ItsBytesChooseTheOrderThatOneTokenARowChose) {
  for (const bool shuffle : {true, false}) {
    for (int64_t rows = 1; rows < int64_t{1} << 31; rows += 1 + rows / 3) {
      const auto source = *make_row_source({.name = "arm", .facts = "", .episodes = {0}, .lengths = {rows}});
      const order::OrderOptions options{.seed = 1, .shuffle = shuffle};
      EXPECT_EQ(order::resolve_options_by_bytes(options, rows, source->total_bytes(), source->window_hint()),
                order::resolve_options(options, rows, rows))
          << rows;
    }
  }
}

TEST(RowSource, WhatCannotBeOrderedIsRefused) {
  RowsToOrder rows = some_rows();
  rows.lengths = {0, 0, 0};
  EXPECT_THAT(make_row_source(rows).error().message(), HasSubstr("arm: it has no rows"));
  rows.lengths = {1};
  EXPECT_EQ(make_row_source(rows).error().code(), ErrorCode::kInvalidArgument);
  rows.lengths = {int64_t{1} << 31, int64_t{1} << 31, 0};
  EXPECT_EQ(make_row_source(rows).error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace millrace::lerobot
