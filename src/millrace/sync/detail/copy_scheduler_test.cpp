// SPDX-License-Identifier: Apache-2.0
// Many copies on few threads: every one ends once, as a copy by itself would.
#include "millrace/sync/detail/copy_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "millrace/storage/testing/fault.h"
#include "millrace/sync/testing.h"
#include "millrace/sync/testing/transfer.h"

namespace millrace::sync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SmallCopiesTest : public ::testing::Test {
 protected:
  // Starts a copy of each object below "from/", does what is to be done meanwhile, and waits until all have ended.
  void copy_all(
      const Side& from, const Side& to, std::stop_token stop = {}, const std::function<void()>& meanwhile = [] {},
      const EngineOptions& options = {}) {
    ended_.clear();
    calls_ = 0;
    const ListPage page = *from.storage->list("from/");
    const auto engine = *TransferEngine::create(options);
    for (const ObjectInfo& object : page.objects) {
      const std::string name = object.key.substr(5);
      engine->start({.from = from.at(object.key),
                     .source = object,
                     .to = to.at("to/" + name),
                     .stop = stop,
                     .done = [this, name](Result<TransferReport> report) {
                       MutexLock lock(mutex_);
                       ++calls_;
                       ended_.insert_or_assign(name, std::move(report));
                       changed_.notify_all();
                     }});
    }
    meanwhile();
    wait_for(page.objects.size());
    EXPECT_EQ(ended_.size(), page.objects.size());
  }

  void wait_for(size_t copies) {
    MutexLock lock(mutex_);
    while (calls_ < copies) changed_.wait(mutex_);
  }

  const uint64_t seed_ = test_seed();
  Mutex mutex_;
  CondVar changed_;
  size_t calls_ = 0;
  std::map<std::string, Result<TransferReport>> ended_;
};

TEST_F(SmallCopiesTest, CopyBetweenAllKinds) {
  const std::vector<Side> places{memory_side(), local_side(), parts_side()};
  std::map<std::string, std::string> contents{{"empty", ""}, {"large", content_of(1 << 20, seed_)}};
  for (int i = 0; i < 300; ++i)
    contents[fmt::format("{:03}", i)] = content_of(i * 50, seed_ + static_cast<uint64_t>(i));
  for (const Side& from : places) {
    for (const auto& [name, content] : contents) put(from.at("from/" + name), content);
    for (const Side& to : places) {
      SCOPED_TRACE(std::string(from.storage->name()) + " to " + std::string(to.storage->name()));
      copy_all(from, to);
      for (const auto& [name, content] : contents) {
        const auto& report = ended_.at(name);
        ASSERT_TRUE(report) << report.error().to_string();
        EXPECT_TRUE(get(to.at("to/" + name)) == content) << name;
        EXPECT_EQ(report->moved_bytes + report->copied_bytes, std::ssize(content));
        if (!to.storage->copies_from(*from.storage)) {
          EXPECT_EQ(report->hash, xxh3_128(content));
        }
        EXPECT_EQ(report->object.version, to.storage->stat("to/" + name)->version);
      }
    }
  }
}

TEST_F(SmallCopiesTest, OneThatFailsSaysSoAndTheOthersGoOn) {
  const Side from = memory_side(), to = local_side();
  for (int i = 0; i < 100; ++i) put(from.at(fmt::format("from/{:03}", i)), "content");
  const auto faults = std::make_shared<FaultPlan>();
  const Error ill(ErrorCode::kPermissionDenied, "the disk is ill");
  const std::map<std::string, FaultCall> failing{{"007", FaultCall::kOpenRead},
                                                 {"008", FaultCall::kRead},
                                                 {"009", FaultCall::kOpenWrite},
                                                 {"010", FaultCall::kWrite},
                                                 {"011", FaultCall::kCommit}};
  for (const auto& [name, call] : failing) faults->add({.call = call, .key_part = name, .error = ill});
  const Side bad_from{.storage = make_fault_storage(from.storage, faults)};
  const Side bad_to{.storage = make_fault_storage(to.storage, faults)};
  copy_all(bad_from, bad_to);
  EXPECT_EQ(faults->hits(), 5);
  for (const auto& [name, report] : ended_) {
    EXPECT_EQ(report.has_value(), !failing.contains(name)) << name;
    EXPECT_EQ(to.storage->stat("to/" + name).has_value(), report.has_value()) << name;
    if (report) continue;
    EXPECT_EQ(report.error().code(), ErrorCode::kPermissionDenied);
    EXPECT_THAT(report.error().to_string(), AllOf(HasSubstr("/from/" + name + " to "), HasSubstr("the disk is ill")));
  }
  EXPECT_TRUE(to.storage->list_uploads("")->empty());
}

TEST_F(SmallCopiesTest, AStopEndsThem) {
  const Side from = memory_side(), to = memory_side();
  for (int i = 0; i < 100; ++i) put(from.at(fmt::format("from/{:03}", i)), "content");
  std::stop_source stop;
  stop.request_stop();
  copy_all(from, to, stop.get_token());
  for (const auto& [name, report] : ended_) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  }
  EXPECT_TRUE(to.storage->list("")->objects.empty());
}

// More than there is memory for, and more than threads.
TEST_F(SmallCopiesTest, TakeTurnsWithMemory) {
  const Side from = memory_side(), to = memory_side();
  const std::string content = content_of(256 << 10, seed_);
  for (int i = 0; i < 400; ++i) put(from.at(fmt::format("from/{:03}", i)), content);
  copy_all(from, to);
  for (const auto& [name, report] : ended_) EXPECT_TRUE(report && report->moved_bytes == std::ssize(content));
  EXPECT_EQ(to.storage->list("to/")->objects.size(), 400U);
}

// Large ones hold what there is and go on with it, small ones come in between, and nobody waits for ever. More begin
// than there are threads, and most of them find no memory.
TEST_F(SmallCopiesTest, LargeAndSmallOnesShareLittleMemory) {
  const Side from = parts_side(), to = local_side();
  const std::string large = content_of(2 * kBlockBytes + 1, seed_), small = content_of(200 << 10, seed_);
  for (int i = 0; i < 120; ++i) put(from.at(fmt::format("from/{:03}", i)), i % 15 == 0 ? large : small);
  copy_all(from, to, {}, [] {}, {.memory_bytes = kLeastTransferMemoryBytes, .objects_at_once = 8});
  for (const auto& [name, report] : ended_) {
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(report->hash, xxh3_128(std::stoi(name) % 15 == 0 ? large : small)) << name;
  }
}

// The question comes before anything of the copy; a no ends it without an answer.
TEST_F(SmallCopiesTest, OnesThatAreNotWantedAreNotBegun) {
  const Side from = memory_side(), to = memory_side();
  put(from.at("x"), "content");
  std::atomic<int> asked{0}, answered{0};
  {
    const auto engine = *TransferEngine::create();
    for (int i = 0; i < 50; ++i) {
      engine->start({.from = from.at("x"),
                     .source = *from.storage->stat("x"),
                     .to = to.at(std::to_string(i)),
                     .is_wanted = [&asked, i] { return ++asked, i % 5 == 0; },
                     .done = [&answered](const Result<TransferReport>& report) { answered += report.has_value(); }});
    }
  }
  EXPECT_EQ(asked, 50);
  EXPECT_EQ(answered, 10);
  EXPECT_EQ(to.storage->list("")->objects.size(), 10U);
}

// Each of them waits, but not for the others: more threads come.
TEST_F(SmallCopiesTest, ASlowTargetIsWrittenByManyThreads) {
  const Side from = memory_side(), to = memory_side();
  for (int i = 0; i < 64; ++i) put(from.at(fmt::format("from/{:03}", i)), "content");
  const auto faults = std::make_shared<FaultPlan>();
  faults->add({.call = FaultCall::kCommit, .count = FaultRule::kForever, .delay = std::chrono::milliseconds(50)});
  const auto start = Clock::now();
  copy_all(from, {.storage = make_fault_storage(to.storage, faults)});
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(64 * 50 / 2)) << "one after the other";
  EXPECT_EQ(to.storage->list("")->objects.size(), 64U);
}

// Nothing has happened for a while, then the server answers two requests, and no other before these are written.
TEST_F(SmallCopiesTest, WhatWasReadIsWrittenWhileOthersWaitForTheServer) {
  constexpr size_t kAtOnce = CopyScheduler::kMostLight;
  const Side inner = parts_side(), to = local_side();
  for (int i = 0; i < 200; ++i) put(inner.at(fmt::format("from/{:03}", i)), "content");
  const auto storage = std::make_shared<BentStorage>(inner.storage);
  Mutex mutex;
  CondVar asked;
  std::vector<std::function<void()>> held;
  storage->on_submit = [&](std::span<const Operation> operations, CompletionQueue& queue) {
    MutexLock lock(mutex);
    if (held.size() == kAtOnce) return inner.storage->submit(operations, queue);
    held.push_back([&, operation = operations.front()] { inner.storage->submit(std::span(&operation, 1), queue); });
    asked.notify_one();
  };
  copy_all({.storage = storage}, to, {}, [&] {
    {
      MutexLock lock(mutex);
      while (held.size() < kAtOnce) asked.wait(mutex);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the threads that copy fall asleep
    for (size_t i = 0; i < kAtOnce; ++i) {
      if (i == 2) wait_for(2);
      held[i]();
    }
  });
  for (const auto& [name, report] : ended_) EXPECT_TRUE(report) << name;
}

}  // namespace
}  // namespace millrace::sync
