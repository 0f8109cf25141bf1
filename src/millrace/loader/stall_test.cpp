// SPDX-License-Identifier: Apache-2.0
// The watchdog of the loader: requests that do not end until the test lets them, so that no timing decides.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <future>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/loader/testing/remote_set.h"

namespace millrace::loader {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Requests of the rule wait until the gate is opened, which its end does at the latest. Made after the loader, whose
// end waits for its requests.
class Gate {
 public:
  Gate(FaultPlan& plan, FaultRule rule) {
    rule.count = FaultRule::kForever;
    rule.before = [opened = opened_] { opened.wait(); };
    plan.add(std::move(rule));
  }
  ~Gate() { open(); }
  void open() {
    if (!is_open_) promise_.set_value();
    is_open_ = true;
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
  bool is_open_ = false;
};

LoaderOptions stall_options(OnStall on_stall, milliseconds stall = milliseconds(5)) {
  LoaderOptions options = remote_options(Collate::kPad);
  options.on_stall = on_stall;
  options.stall = stall;
  return options;
}

struct StallCase {
  const char* stage;
  const char* request;
  bool with_manifest;
  FaultRule rule;
};

TEST(Stall, AnErrorNamesTheStageTheShardAndTheRequestAndTheSameBatchFollows) {
  const std::vector<StallCase> cases = {
      {"stage open", "read the index of far:set/000.bin", false, {.call = FaultCall::kOpenRead, .key_part = ".index"}},
      {"stage plan", "read the index of far:set/000.bin", true, {.call = FaultCall::kOpenRead, .key_part = ".index"}},
      // The first is the index's.
      {"stage plan", "open far:set/000.bin", true, {.call = FaultCall::kOpenRead, .key_part = "000.bin", .skip = 1}},
      {"stage read",
       "set/000.bin, 240 B at byte 0",
       true,
       {.call = FaultCall::kRead, .key_part = "000.bin", .skip = 1}},
  };
  for (const StallCase& c : cases) {
    SCOPED_TRACE(c.request);
    const RemoteSet set(1, 40, c.with_manifest);
    const int by_name = c.with_manifest ? 0 : 1;
    const auto expected = make(set, remote_options(Collate::kPad), by_name)->next();
    ASSERT_TRUE(expected && *expected);
    const auto loader = make(set, stall_options(OnStall::kRaise), by_name);
    Gate gate(*set.plan, c.rule);
    bool is_named = false;
    for (int call = 0; call < 1000 && !is_named; ++call) {  // the stages before take their time, too
      const auto answer = loader->next();
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable);
      EXPECT_EQ(answer.error().sys_errno(), ETIMEDOUT);
      const std::string text = answer.error().to_string();
      is_named = text.find("no batch for") != text.npos && text.find(c.stage) != text.npos &&
                 text.find(c.request) != text.npos;
    }
    EXPECT_TRUE(is_named);
    gate.open();
    auto answer = loader->next();
    while (!answer && answer.error().sys_errno() == ETIMEDOUT) answer = loader->next();
    ASSERT_TRUE(answer && *answer);
    EXPECT_EQ((*answer)->position, (*expected)->position);
    EXPECT_EQ((*answer)->tokens, (*expected)->tokens);
  }
}

// Quick batches are announced several at once. Those that are ready when reading comes to a halt are given all the
// same.
TEST(Stall, WhatIsReadyIsGivenWhenNothingFollows) {
  for (int shard = 6; shard < 9; ++shard) {
    const std::string name = fmt::format("{:03d}.bin", shard);
    SCOPED_TRACE(name);
    const RemoteSet set(16, 2000);
    LoaderOptions options = stall_options(OnStall::kWarn, milliseconds(0));
    options.order.shuffle = false;
    options.seq_len = 1024;  // so that a batch takes longer than a call of next(), which then sleeps
    options.threads = 1;
    const auto loader = make(set, options);
    const Gate gate(*set.plan, {.call = FaultCall::kRead, .key_part = name, .skip = 1});  // the first is the index's
    int64_t given = 0;
    const auto next = [&] { return loader->next(Clock::now() + std::chrono::seconds(1)); };
    Result<std::optional<Batch>> answer = next();
    for (; answer && *answer; answer = next()) ++given;
    EXPECT_GT(given, 100);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::kTimeout);
    EXPECT_FALSE(loader->next(Clock::now())) << "it was ready before";
  }
}

TEST(Stall, AWaitGoesOnOverCallsThatTimeOut) {
  const RemoteSet set(1, 40);
  const auto loader = make(set, stall_options(OnStall::kRaise, milliseconds(40)));
  const Gate gate(*set.plan, {.call = FaultCall::kOpenRead, .key_part = ".index"});
  for (int call = 0; call < 10'000; ++call) {
    const auto answer = loader->next(Clock::now() + milliseconds(2));
    ASSERT_FALSE(answer);
    if (answer.error().code() == ErrorCode::kTimeout) continue;
    EXPECT_EQ(answer.error().sys_errno(), ETIMEDOUT);
    return;
  }
  ADD_FAILURE() << "each call began a new wait";
}

TEST(Stall, AWarningIsRepeatedAndTheWaitGoesOn) {
  const RemoteSet set(1, 40);
  const auto loader = make(set, stall_options(OnStall::kWarn));
  Gate gate(*set.plan, {.call = FaultCall::kOpenRead, .key_part = ".index"});
  constexpr size_t kEnough = 12;   // after 5 ms, 10 ms, ... 10 s
  std::vector<std::string> lines;  // of the thread that waits alone
  set_log_sink(
      [&](LogLevel, std::string_view line) {
        if (line.find("no batch for") == line.npos) return;
        lines.emplace_back(line);
        const bool is_named =
            line.find("stage plan") != line.npos && line.find("read the index of far:set/000.bin (for ") != line.npos;
        if ((lines.size() >= 3 && is_named) || lines.size() == kEnough) gate.open();
      },
      LogLevel::kWarning);
  const auto batch = loader->next();
  set_log_sink({}, LogLevel::kWarning);
  EXPECT_TRUE(batch && *batch);
  EXPECT_GE(lines.size(), 3u);
  EXPECT_LT(lines.size(), kEnough) << "none names what is waited for: " << lines.back();
}

TEST(Stall, WithoutALimitNoWaitIsTooLong) {
  const RemoteSet set(1, 40);
  const auto loader = make(set, stall_options(OnStall::kRaise, milliseconds(0)));
  const Gate gate(*set.plan, {.call = FaultCall::kOpenRead, .key_part = ".index"});
  for (int call = 0; call < 5; ++call) {
    EXPECT_EQ(loader->next(Clock::now() + milliseconds(10)).error().code(), ErrorCode::kTimeout);
  }
}

TEST(Stall, LimitsThatNoClockCanHoldAreRefused) {
  const RemoteSet set(1, 40);
  for (const milliseconds stall : {milliseconds(-1), milliseconds(INT64_MAX)}) {
    const auto loader = Loader::create(stall_options(OnStall::kWarn, stall), std::vector<OpenSource>(1));
    ASSERT_FALSE(loader);
    EXPECT_THAT(loader.error().to_string(), HasSubstr("stall_seconds"));
  }
}

TEST(Activities, TheOldestAreNamedFirst) {
  Activities list;
  EXPECT_EQ(list.describe(2), "no request");
  const Activities::Scope first(&list, "a");
  {
    const Activities::Scope second(&list, "b"), third(&list, "c");
    EXPECT_THAT(list.describe(2), ::testing::MatchesRegex("a \\(for .+\\), b \\(for .+\\) and 1 more"));
  }
  EXPECT_THAT(list.describe(2), ::testing::MatchesRegex("a \\(for .+\\)"));
  const Activities::Scope nowhere(nullptr, "d");
}

}  // namespace
}  // namespace millrace::loader
