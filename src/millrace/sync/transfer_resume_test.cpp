// SPDX-License-Identifier: Apache-2.0
// A copy goes on where an earlier one ended, and trusts only what it has proven.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "millrace/storage/testing/fault.h"
#include "millrace/sync/detail/resume_note.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/testing.h"
#include "millrace/sync/testing/transfer.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(TransferTest, AStopIsResumedAndLosesOnlyWhatWasUnderWay) {
  const std::string content = content_of(12 * kBlockBytes + 1000, seed_);
  put(memory_.at("x"), content);
  for (Side* to : {&other_memory_, &local_, &parts_}) {
    SCOPED_TRACE(to->storage->name());
    std::unique_ptr<Progress> progress;
    Result<TransferReport> stopped;
    // A copy may be faster than its stop; then it is made again.
    for (int tries = 0; stopped; ++tries) {
      ASSERT_LT(tries, 50) << "no copy could be stopped in the middle";
      ASSERT_TRUE(to->storage->remove(std::vector<std::string>{"y"}));
      progress = std::make_unique<Progress>();
      std::stop_source stop;
      std::jthread stopper([&] {
        while (progress->snapshot().bytes < 3 * kBlockBytes) std::this_thread::yield();
        stop.request_stop();
      });
      stopped = engine_->copy(memory_.at("x"), *memory_.storage->stat("x"), to->at("y"), {}, stop.get_token(),
                              progress.get());
    }
    EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
    EXPECT_FALSE(to->storage->stat("y"));
    EXPECT_EQ(to->storage->list_uploads("")->size(), 1u);
    const TransferReport report = copied(memory_.at("x"), to->at("y"));
    EXPECT_TRUE(get(to->at("y")) == content);
    EXPECT_EQ(report.resumed_bytes, progress->snapshot().bytes);
    EXPECT_EQ(report.moved_bytes + report.resumed_bytes, std::ssize(content));
    EXPECT_EQ(report.hash, xxh3_128(content));
    EXPECT_THAT(*to->storage->list_uploads(""), IsEmpty());
  }
}

TEST_F(TransferTest, AStopWhileTheLeftoverIsCheckedKeepsIt) {
  put(memory_.at("x"), content_of(5 * kBlockBytes, seed_));
  leave_unfinished(*engine_, memory_.at("x"), local_.at("y"), 3);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(copy(memory_.at("x"), local_.at("y"), {}, stop.get_token()).error().code(), ErrorCode::kCancelled);
  EXPECT_THAT(copied(memory_.at("x"), local_.at("y")).resumed_bytes, Gt(0));
}

TEST_F(TransferTest, AnErrorAnywhereLeavesOldOrNew) {
  const std::string old = content_of(kBlockBytes + 5, seed_), fresh = content_of(2 * kBlockBytes + 7, seed_ + 1);
  put_with_hashes(*engine_, other_parts_, "x", fresh);
  for (Side* to : {&memory_, &other_local_, &parts_}) {
    for (const bool delta : {true, false}) {
      bool done = false;
      // One call in three or in eleven, other ones with another seed.
      const int64_t step = tests_are_brief() ? 11 : 3;
      for (auto skip = static_cast<int64_t>(seed_ % static_cast<uint64_t>(step)); !done && skip < 200; skip += step) {
        SCOPED_TRACE("fault " + std::to_string(skip) + " in " + std::string(to->storage->name()));
        put_with_hashes(*engine_, *to, "y", old);
        const auto plan = std::make_shared<FaultPlan>();
        const Location from{make_fault_storage(other_parts_.storage, plan), "x", "from://x"};
        const Location target{make_fault_storage(to->storage, plan), "y", "to://y"};
        const auto info = *from.storage->stat("x");
        plan->add({.skip = skip, .error = Error(ErrorCode::kUnavailable, "broken")});
        const auto report = engine_->copy(from, info, target, {.delta = delta});
        EXPECT_EQ(engine_->memory_in_use_bytes(), 0);
        const std::string now = get(to->at("y"));
        ASSERT_TRUE(now == (report ? fresh : old));
        if (!report) {
          EXPECT_THAT(report.error().to_string(),
                      AllOf(HasSubstr("from://x"), HasSubstr("to://y"), HasSubstr("broken")));
        }
        done = plan->hits() == 0;
        plan->clear();
        copied(from, target);
        ASSERT_TRUE(get(to->at("y")) == fresh);
        ASSERT_THAT(*to->storage->list_uploads("y"), IsEmpty());
      }
      EXPECT_TRUE(done);
    }
  }
}

TEST_F(TransferTest, AnErrorIsGoneOnFrom) {
  const std::string content = content_of(6 * kBlockBytes, seed_);
  put(memory_.at("x"), content);
  for (Side* to : {&local_, &parts_}) {
    leave_unfinished(*engine_, memory_.at("x"), to->at("y"), 4);
    const TransferReport report = copied(memory_.at("x"), to->at("y"));
    EXPECT_EQ(report.resumed_bytes, 4 * kBlockBytes) << to->storage->name();
    EXPECT_EQ(report.moved_bytes, 2 * kBlockBytes);
    EXPECT_TRUE(get(to->at("y")) == content);
    EXPECT_EQ(report.hash, xxh3_128(content));
  }
}

TEST_F(TransferTest, AnUploadWithoutAPartIsGoneOnWithAndNoneIsLeft) {
  const std::string content = content_of(3 * kBlockBytes, seed_);
  put(memory_.at("x"), content);
  ASSERT_TRUE((*parts_.storage->open_write("y", {.size_hint_bytes = 3 * kBlockBytes}))->suspend());
  ASSERT_EQ(parts_.storage->list_uploads("y")->size(), 1U);
  EXPECT_EQ(copied(memory_.at("x"), parts_.at("y")).moved_bytes, 3 * kBlockBytes);
  EXPECT_TRUE(get(parts_.at("y")) == content);
  EXPECT_THAT(*parts_.storage->list_uploads(""), IsEmpty());
}

// Nobody's lock says that another process goes on with the same upload.
TEST_F(TransferTest, OfTwoThatGoOnWithOneUploadBothAreRight) {
  const std::string content = content_of(6 * kBlockBytes, seed_);
  put(memory_.at("x"), content);
  leave_unfinished(*engine_, memory_.at("x"), parts_.at("y"), 4);
  const auto upload = parts_.storage->list_uploads("y")->front();
  const auto bent = std::make_shared<BentStorage>(parts_.storage);
  bool done = false;
  bent->on_submit = [&](std::span<const Operation> operations, CompletionQueue& queue) {
    if (!std::exchange(done, true)) {
      EXPECT_TRUE((*parts_.storage->resume_write(upload, {}))->commit());
    }
    parts_.storage->submit(operations, queue);
  };
  Progress progress;
  const auto report =
      engine_->copy(memory_.at("x"), *memory_.storage->stat("x"), located(bent, "y"), {}, {}, &progress);
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_TRUE(done);
  EXPECT_EQ(report->moved_bytes, 6 * kBlockBytes) << "what the other has taken is not there to go on with";
  EXPECT_EQ(progress.snapshot().bytes, 6 * kBlockBytes);
  EXPECT_TRUE(get(parts_.at("y")) == content);
  EXPECT_THAT(*parts_.storage->list_uploads(""), IsEmpty());
}

TEST_F(TransferTest, WhatCouldNotBeCompletedIsCompletedByTheNext) {
  const std::string content = content_of(3 * kBlockBytes + 1, seed_);
  put(memory_.at("x"), content);
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kCommit, .error = Error(ErrorCode::kUnavailable, "the end")});
  const Location to{make_fault_storage(parts_.storage, plan), "y", "to://y"};
  ASSERT_FALSE(engine_->copy(memory_.at("x"), *memory_.storage->stat("x"), to));
  EXPECT_EQ(parts_.storage->list_uploads("y")->size(), 1U);
  const auto report = engine_->copy(memory_.at("x"), *memory_.storage->stat("x"), to);
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->resumed_bytes, 3 * kBlockBytes + 1);
  EXPECT_EQ(report->moved_bytes, 0);
  EXPECT_TRUE(get(parts_.at("y")) == content);
  EXPECT_THAT(*parts_.storage->list_uploads(""), IsEmpty());
}

TEST_F(TransferTest, AnotherSourceOrVersionIsNotGoneOnWith) {
  const std::string first = content_of(4 * kBlockBytes, seed_), second = content_of(4 * kBlockBytes, seed_ + 1);
  for (Side* to : {&local_, &parts_}) {
    put(memory_.at("x"), first);
    put(memory_.at("z"), second);
    leave_unfinished(*engine_, memory_.at("x"), to->at("y"), 2);
    EXPECT_EQ(copied(memory_.at("z"), to->at("y")).resumed_bytes, 0);
    EXPECT_TRUE(get(to->at("y")) == second);
    // A lock says that nobody is at it: it was cleaned up. Without locks it is left to abort_uploads.
    const auto left = to->storage->list_uploads("");
    EXPECT_EQ(left->size(), to == &local_ ? 0u : 1u);
    ASSERT_TRUE(to->storage->abort_uploads(*left));

    leave_unfinished(*engine_, memory_.at("x"), to->at("y2"), 2);
    put(memory_.at("x"), second);
    EXPECT_EQ(copied(memory_.at("x"), to->at("y2")).resumed_bytes, 0);
    EXPECT_TRUE(get(to->at("y2")) == second);
    ASSERT_TRUE(to->storage->abort_uploads(*to->storage->list_uploads("")));
  }
}

TEST_F(TransferTest, OfAnotherVersionOnlyEqualPartsAreKept) {
  std::string content = content_of(4 * kBlockBytes, seed_);
  put(memory_.at("x"), content);
  leave_unfinished(*engine_, memory_.at("x"), parts_.at("y"), 3);
  content[static_cast<size_t>(kBlockBytes)] ^= 1;
  put(memory_.at("x"), content);
  const TransferReport report = copied(memory_.at("x"), parts_.at("y"));
  EXPECT_TRUE(get(parts_.at("y")) == content);
  EXPECT_EQ(report.resumed_bytes, 2 * kBlockBytes);
  EXPECT_EQ(report.moved_bytes, 2 * kBlockBytes);
}

TEST_F(TransferTest, DamageInWhatWasLeftIsFound) {
  const std::string content = content_of(5 * kBlockBytes, seed_);
  put(memory_.at("x"), content);
  put_with_hashes(*engine_, parts_, "x", content);
  for (Side* from : {&memory_, &parts_}) {
    // A byte of the file; of its note; the note of another moment.
    for (const int damage : {0, 1, 2}) {
      leave_unfinished(*engine_, from->at("x"), local_.at("y"), 3);
      damage_leftover(local_, damage);
      const TransferReport report = copied(from->at("x"), local_.at("y"));
      EXPECT_TRUE(get(local_.at("y")) == content) << damage;
      // Known hashes tell which block is wrong; else nothing can be trusted.
      EXPECT_EQ(report.resumed_bytes, from == &parts_ && damage == 0 ? kBlockBytes : 0) << damage;
      EXPECT_EQ(report.hash, xxh3_128(content));
      ASSERT_TRUE(local_.storage->remove(std::vector<std::string>{"y"}));
    }
  }
}

TEST(ResumeNote, ComesBackOrNotAtAll) {
  const ResumeNote note{.identity = xxh3_128("a"), .parts = 1'234'567, .digest = xxh3_128("b")};
  const std::string text = serialize_note(note);
  EXPECT_EQ(parse_note(text), note);
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_EQ(parse_note(damaged), std::nullopt) << at;
    EXPECT_EQ(parse_note(text.substr(0, at)), std::nullopt) << at;
  }
  EXPECT_NE(copy_identity("ab", "c", "d", 1, 2), copy_identity("a", "bc", "d", 1, 2));
  EXPECT_EQ(sidecar_key("a/b/c"), "a/b/.millrace/c.blocks");
  EXPECT_EQ(sidecar_key("c"), ".millrace/c.blocks");
}

}  // namespace
}  // namespace millrace::sync
