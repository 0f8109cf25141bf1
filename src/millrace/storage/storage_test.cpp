// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "millrace/base/hash/md5_lanes.h"
#include "millrace/base/testing.h"
#include "millrace/base/thread/executor.h"
#include "millrace/storage/md5.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/submit.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Md5, IsThatOfTheStandard) {  // RFC 1321, A.5
  EXPECT_EQ(md5_hex({}), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5_hex(as_bytes("message digest")), "f96b697d7cb7938d525a2f31aaf161d0");
}

std::string as_text(const Md5Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += static_cast<char>(byte);
  return text;
}

// Any number of buffers of any lengths, so that lanes end at different times, stay idle and take the next buffer.
TEST(Md5, OfSeveralBuffersIsThatOfEach) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  std::string text(300'000, ' ');
  for (char& c : text) c = static_cast<char>(random());
  for (int round = 0; round < rounds(2000); ++round) {
    const size_t longest = round % 10 == 0 ? 20'000 : 200;  // the ends of 55, 56, 63 and 64 bytes differ
    std::vector<std::span<const std::byte>> buffers(random() % 40);
    for (auto& buffer : buffers) buffer = as_bytes(text).subspan(random() % 1000, random() % longest);
    std::vector<std::string> expected;
    for (const auto& buffer : buffers) {
      Md5 md5;
      md5.update(buffer);
      expected.push_back(md5.finish());
    }
    ASSERT_EQ(md5_of_each(buffers), expected);
    for (const detail::Md5Blocks form : detail::md5_forms()) {
      std::vector<Md5Digest> digests(buffers.size());
      detail::md5_in_lanes(form, buffers, digests);
      for (size_t i = 0; i < buffers.size(); ++i) ASSERT_EQ(as_text(digests[i]), expected[i]) << i;
    }
  }
}

TEST(CheckKey, SaysWhatIsWrong) {
  for (const char* good : {"a", "a/b", "a/.b", "...", "a b", ".millrace/x"}) EXPECT_TRUE(check_key(good)) << good;
  EXPECT_THAT(check_key("").error().to_string(), HasSubstr("empty"));
  EXPECT_THAT(check_key("a//b").error().to_string(), HasSubstr("\"a//b\": has an empty component"));
  EXPECT_THAT(check_key("a/../b").error().to_string(), HasSubstr("\"..\""));
}

TEST(WholeObjects, RefuseToBeTooLarge) {
  const auto storage = make_memory_storage("t");
  ASSERT_TRUE(write_object(*storage, "k", "0123456789"));
  EXPECT_EQ(*read_object(*storage, "k", 10), "0123456789");
  EXPECT_EQ(read_object(*storage, "k", 9).error().code(), ErrorCode::kResourceExhausted);
}

TEST(ForEachObject, StopsAtAnError) {
  const auto storage = make_memory_storage("t");
  for (const char* key : {"a", "b/c", "d"}) ASSERT_TRUE(write_object(*storage, key, ""));
  std::vector<std::string> seen;
  const Status status = for_each_object(*storage, "", [&](const ObjectInfo& object) -> Status {
    seen.push_back(object.key);
    if (object.key == "b/c") return fail(ErrorCode::kCancelled, "enough");
    return {};
  });
  EXPECT_EQ(status.error().message(), "enough");
  EXPECT_THAT(seen, ElementsAre("a", "b/c"));
}

// A reader whose reads wait until the test lets them go.
class GatedReader final : public RandomReader {
 public:
  std::string_view name() const override { return "gate"; }
  int64_t size() const override { return 0; }
  std::string_view version() const override { return {}; }
  [[nodiscard]] Status read_at(int64_t, std::span<std::byte>) const override {
    MutexLock lock(mutex_);
    started_ = true;
    changed_.notify_all();
    while (!open_) changed_.wait(mutex_);
    return {};
  }
  void wait_until_started() const {
    MutexLock lock(mutex_);
    while (!started_) changed_.wait(mutex_);
  }
  void open() const {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable bool started_ GUARDED_BY(mutex_) = false;
  mutable bool open_ GUARDED_BY(mutex_) = false;
};

TEST(CompletionQueue, ManyAreWaitedForAtOnce) {
  CompletionQueue queue;
  const auto soon = Clock::now() + std::chrono::milliseconds(20);
  queue.push({.tag = 1});
  queue.wait_for(2, soon);  // only one comes
  EXPECT_GE(Clock::now(), soon);
  const Thread pusher("pusher", [&] {
    for (uint64_t tag = 2; tag <= 4; ++tag) queue.push({.tag = tag});
  });
  queue.wait_for(4, Clock::now() + std::chrono::minutes(1));
  for (uint64_t tag = 1; tag <= 4; ++tag) EXPECT_EQ(queue.try_pop().value_or(Completion{}).tag, tag);
  EXPECT_FALSE(queue.try_pop());
}

TEST(Submit, AHigherPriorityRunsEarlier) {
  Executor executor(1, "test");
  CompletionQueue queue;
  GatedReader gate;
  const MemoryReader reader({}, "empty");
  submit_operations(executor, std::vector<Operation>{{.tag = 0, .what = Operation::Read{&gate}}}, queue);
  gate.wait_until_started();
  std::vector<Operation> waiting;
  for (const int priority : {1, 3, 2, 3}) {
    waiting.push_back({.tag = waiting.size() + 1, .what = Operation::Read{&reader}, .priority = priority});
  }
  submit_operations(executor, waiting, queue);
  gate.open();
  std::vector<uint64_t> order;
  for (int i = 0; i < 5; ++i) order.push_back(queue.wait().tag);
  EXPECT_THAT(order, ElementsAre(0, 2, 4, 3, 1));
}

TEST(Submit, WhatIsDroppedUnstartedEndsAsCancelled) {
  CompletionQueue queue;
  GatedReader gate;
  const MemoryReader reader({}, "empty");
  auto executor = std::make_unique<Executor>(1, "test");
  submit_operations(
      *executor,
      std::vector<Operation>{{.tag = 0, .what = Operation::Read{&gate}}, {.tag = 1, .what = Operation::Read{&reader}}},
      queue);
  gate.wait_until_started();
  Thread closing("test", [&] { executor.reset(); });
  const Completion dropped = queue.wait();
  EXPECT_EQ(dropped.tag, 1u);
  EXPECT_EQ(dropped.status.error().code(), ErrorCode::kCancelled);
  gate.open();
  EXPECT_TRUE(queue.wait().status);
}

}  // namespace
}  // namespace millrace
