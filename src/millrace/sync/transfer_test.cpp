// SPDX-License-Identifier: Apache-2.0
// Copies between all kinds of storage: byte for byte, only what differs, from where an earlier copy stopped.
#include "millrace/sync/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "millrace/storage/local/local.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/sync/detail/resume_note.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/testing.h"
#include "millrace/sync/testing/transfer.h"

namespace millrace::sync {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

class TransferTest : public ::testing::Test {
 protected:
  TransferTest() { std::cout << "MILLRACE_TEST_SEED=" << seed_ << "\n"; }

  Result<TransferReport> copy(const Location& from, const Location& to, const TransferOptions& options = {},
                              std::stop_token stop = {}) {
    const auto info = from.storage->stat(from.key);
    if (!info) return tl::unexpected<Error>(info.error());
    return engine_->copy(from, *info, to, options, std::move(stop));
  }
  TransferReport copied(const Location& from, const Location& to, const TransferOptions& options = {}) {
    auto report = copy(from, to, options);
    EXPECT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(engine_->memory_in_use_bytes(), 0);
    return report ? *report : TransferReport();
  }

  const uint64_t seed_ = test_seed();
  std::unique_ptr<TransferEngine> engine_ = *TransferEngine::create();
  Place memory_ = memory_place(), local_ = local_place(), parts_ = parts_place();
  Place other_memory_ = memory_place(), other_local_ = local_place(), other_parts_ = parts_place();
};

TEST_F(TransferTest, CopiesEverySizeBetweenAllKinds) {
  const std::vector<int64_t> sizes{
      0, 1, kBlockBytes - 1, kBlockBytes, kBlockBytes + 1, 2 * kBlockBytes, 2 * kBlockBytes + 12'345};
  const std::vector<Place*> sources{&memory_, &local_, &parts_};
  const std::vector<Place*> targets{&memory_, &local_, &parts_, &other_memory_, &other_local_, &other_parts_};
  for (const int64_t size : sizes) {
    const std::string content = content_of(size, seed_ + static_cast<uint64_t>(size));
    for (Place* from : sources) {
      put(from->at("dir/source"), content);
      for (Place* to : targets) {
        if (leave_out_case()) continue;
        SCOPED_TRACE(std::string(from->storage->name()) + " to " + std::string(to->storage->name()) + ", " +
                     std::to_string(size) + " bytes");
        const TransferReport report = copied(from->at("dir/source"), to->at("copy/target"));
        EXPECT_TRUE(get(to->at("copy/target")) == content);
        EXPECT_EQ(report.object.size, size);
        EXPECT_EQ(report.moved_bytes + report.copied_bytes, size);
        EXPECT_EQ(report.copied_bytes, from == &parts_ && to == &parts_ ? size : 0);
        if (from != &parts_ || to != &parts_) {
          EXPECT_EQ(report.hash, xxh3_128(content));
        }
        ASSERT_TRUE(to->storage->remove(std::vector<std::string>{"copy/target"}));
        EXPECT_THAT(*to->storage->list_uploads(""), IsEmpty());
      }
    }
  }
}

TEST_F(TransferTest, PartsThatAreNoWholeBlocksAreCopiedToo) {
  const std::string content = content_of(2 * kBlockBytes + 12'345, seed_);
  put(local_.at("a"), content);
  for (const int64_t part_bytes : {5 << 20, 6'000'001, 30 << 20}) {  // the last: more than memory for two
    parts_.service->part_bytes = part_bytes;
    EXPECT_EQ(copied(local_.at("a"), parts_.at("b")).hash, xxh3_128(content));
    EXPECT_TRUE(get(parts_.at("b")) == content);
    other_parts_.service->part_bytes = part_bytes;
    EXPECT_EQ(copied(parts_.at("b"), other_parts_.at("c")).hash, xxh3_128(content));
    EXPECT_TRUE(get(other_parts_.at("c")) == content);
  }
}

TEST_F(TransferTest, BlockHashesLieBesideLargeObjectsWithoutAnyOfTheirOwn) {
  put(local_.at("small"), content_of(kBlockBytes, seed_));
  put(local_.at("large"), content_of(kBlockBytes + 1, seed_));
  for (Place* to : {&memory_, &other_local_, &parts_}) {
    copied(local_.at("small"), to->at("a/small"));
    copied(local_.at("large"), to->at("a/large"));
    EXPECT_FALSE(to->storage->stat("a/.millrace/small.blocks"));
    EXPECT_EQ(to->storage->stat("a/.millrace/large.blocks").has_value(), to == &parts_);
  }
  copied(local_.at("large"), parts_.at("off"), {.sidecar = false});
  EXPECT_FALSE(parts_.storage->stat(".millrace/off.blocks"));
  // A copy inside the server carries the hashes on.
  const std::string large = get(local_.at("large"));
  EXPECT_EQ(copied(parts_.at("a/large"), parts_.at("b/large")).hash, xxh3_128(large));
  EXPECT_TRUE(load_sidecar(*parts_.storage, *parts_.storage->stat("b/large")).has_value());
  EXPECT_EQ(copied(parts_.at("off"), parts_.at("off2")).hash, std::nullopt);
}

TEST_F(TransferTest, OneChangedByteMovesOneBlock) {
  const std::string old = content_of(4 * kBlockBytes + 77, seed_);
  std::string changed = old;
  changed[static_cast<size_t>(2 * kBlockBytes + 5)] ^= 1;
  struct Case {
    Place *from, *to;
  };
  for (const auto& [from, to] : std::vector<Case>{{&local_, &parts_},
                                                  {&parts_, &local_},
                                                  {&parts_, &other_parts_},
                                                  {&memory_, &other_local_},
                                                  {&local_, &memory_},
                                                  {&memory_, &other_parts_}}) {
    SCOPED_TRACE(std::string(from->storage->name()) + " to " + std::string(to->storage->name()));
    put_with_hashes(*engine_, *from, "x", old);
    copied(from->at("x"), to->at("y"));
    const TransferReport same = copied(from->at("x"), to->at("y"));
    EXPECT_TRUE(same.unchanged);
    EXPECT_EQ(same.moved_bytes + same.copied_bytes, 0);
    EXPECT_EQ(same.object.version, to->storage->stat("y")->version);
    EXPECT_EQ(same.hash, xxh3_128(old));

    put_with_hashes(*engine_, *from, "x", changed);
    const int64_t read_before = from->read_bytes();
    const TransferReport report = copied(from->at("x"), to->at("y"));
    EXPECT_TRUE(get(to->at("y")) == changed);
    EXPECT_EQ(report.moved_bytes, kBlockBytes);
    EXPECT_EQ(report.copied_bytes, 3 * kBlockBytes + 77);
    EXPECT_EQ(report.hash, xxh3_128(changed));
    if (from->service) {
      EXPECT_LT(from->read_bytes() - read_before, kBlockBytes + 10'000);
    }
    EXPECT_FALSE(report.unchanged);
    // Off, everything moves.
    EXPECT_EQ(copied(from->at("x"), to->at("y"), {.delta = false}).moved_bytes, 4 * kBlockBytes + 77);
  }
}

TEST_F(TransferTest, LongerAndShorterTargetsAreMadeRight) {
  const std::string longest = content_of(3 * kBlockBytes + 9, seed_);
  for (Place* to : {&memory_, &other_local_, &parts_}) {
    for (const int64_t before : {0L, 2 * kBlockBytes, 3 * kBlockBytes + 9}) {
      for (const int64_t after : {kBlockBytes + 1, 2 * kBlockBytes, 2 * kBlockBytes + 1}) {
        if (leave_out_case()) continue;
        SCOPED_TRACE(std::to_string(before) + " to " + std::to_string(after) + " in " +
                     std::string(to->storage->name()));
        put_with_hashes(*engine_, *to, "y", longest.substr(0, static_cast<size_t>(before)));
        put(local_.at("x"), longest.substr(0, static_cast<size_t>(after)));
        const TransferReport report = copied(local_.at("x"), to->at("y"));
        EXPECT_TRUE(get(to->at("y")) == longest.substr(0, static_cast<size_t>(after)));
        EXPECT_EQ(report.unchanged, before == after);
        EXPECT_LE(report.moved_bytes, after - std::min(before, after) / kBlockBytes * kBlockBytes);
      }
    }
  }
}

TEST_F(TransferTest, AttributesGoAlongEvenWhereTheContentIsThere) {
  const auto time = [](int64_t ns) {
    return std::chrono::sys_time<std::chrono::nanoseconds>(std::chrono::nanoseconds(ns));
  };
  PosixAttributes posix{.mode = 0100600, .owner = 0, .group = 0, .accessed = time(5), .modified = time(123'456'789)};
  const std::string content = content_of(2 * kBlockBytes, seed_);
  ASSERT_TRUE(write_object(*memory_.storage, "x", content, {.posix = posix}));
  EXPECT_FALSE(copied(memory_.at("x"), local_.at("y")).unchanged);
  EXPECT_NE(local_.storage->stat("y")->modified, posix.modified);
  EXPECT_FALSE(copied(memory_.at("x"), local_.at("y"), {.posix = true}).unchanged);
  EXPECT_EQ(local_.storage->stat("y")->modified, posix.modified);
  EXPECT_EQ(local_.storage->stat("y")->posix->mode, posix.mode);
  EXPECT_TRUE(get(local_.at("y")) == content);
  EXPECT_TRUE(copied(memory_.at("x"), local_.at("y"), {.posix = true}).unchanged);
}

TEST_F(TransferTest, AStopIsResumedAndLosesOnlyWhatWasUnderWay) {
  const std::string content = content_of(12 * kBlockBytes + 1000, seed_);
  put(memory_.at("x"), content);
  for (Place* to : {&other_memory_, &local_, &parts_}) {
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
  for (Place* to : {&memory_, &other_local_, &parts_}) {
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
  for (Place* to : {&local_, &parts_}) {
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

// A dry run says what the copy does then, and leaves all as it is.
TEST_F(TransferTest, ADryRunForetellsTheCopy) {
  const std::string old = content_of(6 * kBlockBytes + 5, seed_);
  std::string fresh = old;
  fresh[static_cast<size_t>(2 * kBlockBytes)] ^= 1;
  for (Place* to : {&memory_, &local_, &parts_}) {
    for (Place* from : {&other_memory_, &other_local_, &other_parts_}) {
      for (const std::string& there : {std::string(), old, fresh, fresh.substr(0, static_cast<size_t>(kBlockBytes))}) {
        if (leave_out_case()) continue;
        SCOPED_TRACE(std::string(from->storage->name()) + " to " + std::string(to->storage->name()) + ", " +
                     std::to_string(there.size()) + " bytes there");
        put_with_hashes(*engine_, *from, "x", fresh);
        ASSERT_TRUE(to->storage->remove(std::vector<std::string>{"y"}));
        if (!there.empty()) put_with_hashes(*engine_, *to, "y", there);
        const std::string version = there.empty() ? "" : to->storage->stat("y")->version;
        Progress progress;
        const int64_t read = from->read_bytes();
        const auto told =
            engine_->copy(from->at("x"), *from->storage->stat("x"), to->at("y"), {.dry_run = true}, {}, &progress);
        EXPECT_LT(from->read_bytes() - read, kBlockBytes) << "whose hashes are known";
        ASSERT_TRUE(told) << told.error().to_string();
        EXPECT_EQ(engine_->memory_in_use_bytes(), 0);
        EXPECT_EQ(to->storage->stat("y").has_value(), !there.empty());
        if (!there.empty()) {
          EXPECT_EQ(to->storage->stat("y")->version, version);
        }
        EXPECT_THAT(*to->storage->list_uploads(""), IsEmpty());
        const TransferReport did = copied(from->at("x"), to->at("y"));
        EXPECT_EQ(told->moved_bytes, did.moved_bytes);
        EXPECT_EQ(told->copied_bytes, did.copied_bytes);
        EXPECT_EQ(told->unchanged, did.unchanged);
        EXPECT_TRUE(get(to->at("y")) == fresh);
      }
    }
  }
}

TEST_F(TransferTest, AnotherSourceOrVersionIsNotGoneOnWith) {
  const std::string first = content_of(4 * kBlockBytes, seed_), second = content_of(4 * kBlockBytes, seed_ + 1);
  for (Place* to : {&local_, &parts_}) {
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
  for (Place* from : {&memory_, &parts_}) {
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

TEST_F(TransferTest, AChangedSourceIsCorruption) {
  const std::string content = content_of(6 * kBlockBytes, seed_);
  for (const int64_t size : {1000L, 6 * kBlockBytes}) {
    put(local_.at("x"), content.substr(0, static_cast<size_t>(size)));
    put(memory_.at("y"), "old");
    const ObjectInfo listed = *local_.storage->stat("x");
    put(local_.at("x"), content.substr(1, static_cast<size_t>(size)));
    const auto stale = engine_->copy(local_.at("x"), listed, memory_.at("y"));
    ASSERT_FALSE(stale);
    EXPECT_EQ(stale.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(stale.error().to_string(), AllOf(HasSubstr("/x to "), HasSubstr("mem")));
    EXPECT_EQ(get(memory_.at("y")), "old");
    ObjectInfo shorter = *local_.storage->stat("x");
    shorter.version.clear();
    shorter.size -= 1;
    EXPECT_EQ(engine_->copy(local_.at("x"), shorter, memory_.at("y")).error().code(), ErrorCode::kCorruption);
  }
  // While it is being read.
  for (Place* to : {&memory_, &other_local_, &parts_}) {
    for (const bool same_storage : {false, true}) {
      put(local_.at("x"), content);
      const Location target = same_storage ? local_.at("y") : to->at("y");
      put(target, "old");
      Progress progress;
      const std::string path = local_.dir->path() + "/x";
      std::thread changer([&] {
        while (progress.snapshot().bytes < kBlockBytes) std::this_thread::yield();
        overwrite_in_place(path);
      });
      const auto report = engine_->copy(local_.at("x"), *local_.storage->stat("x"), target, {}, {}, &progress);
      changer.join();
      if (report) continue;  // the change came too late
      EXPECT_EQ(report.error().code(), ErrorCode::kCorruption);
      EXPECT_EQ(get(target), "old");
      EXPECT_THAT(*target.storage->list_uploads(""), IsEmpty());
    }
  }
}

TEST_F(TransferTest, AFlippedBitIsFoundAndReadAgain) {
  const std::string content = content_of(3 * kBlockBytes + 3, seed_);
  put_with_hashes(*engine_, parts_, "x", content);
  const auto plan = std::make_shared<FaultPlan>();
  const Location from{make_fault_storage(parts_.storage, plan), "x", "from://x"};
  const ObjectInfo info = *from.storage->stat("x");
  plan->add({.call = FaultCall::kRead, .key_part = "x", .skip = 2, .flip_bit = true});
  const auto report = engine_->copy(from, info, local_.at("y"));
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(plan->hits(), 1);
  EXPECT_TRUE(get(local_.at("y")) == content);
  plan->clear();
  put(local_.at("y"), "old");
  for (const int64_t part_bytes : {0, 5 << 20}) {
    other_parts_.service->part_bytes = part_bytes;
    for (const Location& to : {local_.at("y"), other_parts_.at("y")}) {
      put(to, "old");
      plan->clear();
      plan->add({.call = FaultCall::kRead, .key_part = "x", .skip = 2, .count = FaultRule::kForever, .flip_bit = true});
      const auto damaged = engine_->copy(from, info, to);
      ASSERT_FALSE(damaged);
      EXPECT_EQ(damaged.error().code(), ErrorCode::kCorruption);
      EXPECT_THAT(damaged.error().to_string(), HasSubstr(".millrace/x.blocks"));
      EXPECT_EQ(get(to), "old");
      EXPECT_THAT(*to.storage->list_uploads(""), IsEmpty());
    }
    plan->clear();
  }
}

// As AWS keeps of what other tools uploaded.
TEST_F(TransferTest, WithoutBlockHashesTheServersChecksumFindsAFlippedBit) {
  parts_.service->keeps_checksums = true;
  const std::string content = content_of(3 * kBlockBytes + 3, seed_);
  put(parts_.at("x"), content);
  const auto plan = std::make_shared<FaultPlan>();
  const Location from{make_fault_storage(parts_.storage, plan), "x", "from://x"};
  const ObjectInfo info = *from.storage->stat("x");
  for (const Location& to : {local_.at("y"), other_parts_.at("y")}) {
    put(to, "old");
    plan->add({.call = FaultCall::kRead, .key_part = "x", .skip = 2, .flip_bit = true});
    const auto damaged = engine_->copy(from, info, to);
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(damaged.error().to_string(), HasSubstr("CRC-64/NVME"));
    EXPECT_EQ(get(to), "old");
    EXPECT_THAT(*to.storage->list_uploads(""), IsEmpty());
    plan->clear();
    const auto report = engine_->copy(from, info, to);
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(report->resumed_bytes, 0);
    EXPECT_TRUE(get(to) == content);
  }
}

TEST_F(TransferTest, AnEmptyObjectBesideBlockHashesIsCorruption) {
  put_with_hashes(*engine_, parts_, "x", content_of(3 * kBlockBytes, seed_));
  put(parts_.at("x"), "");
  put(local_.at("y"), "old");
  const ObjectInfo empty = *parts_.storage->stat("x");
  const auto refused = engine_->copy(parts_.at("x"), empty, local_.at("y"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(refused.error().to_string(), HasSubstr(".millrace/x.blocks"));
  EXPECT_EQ(get(local_.at("y")), "old");
  ASSERT_TRUE(parts_.storage->remove(std::vector<std::string>{".millrace/x.blocks"}));
  EXPECT_TRUE(engine_->copy(parts_.at("x"), empty, local_.at("y")));
  EXPECT_EQ(get(local_.at("y")), "");
}

TEST_F(TransferTest, ASidecarThatDoesNotFitIsNotTrusted) {
  const std::string old = content_of(3 * kBlockBytes, seed_), fresh = content_of(3 * kBlockBytes, seed_ + 1);
  put_with_hashes(*engine_, parts_, "x", old);
  const std::string sidecar = get(parts_.at(".millrace/x.blocks"));
  std::string damaged = sidecar;
  damaged[60] = static_cast<char>(damaged[60] ^ 1);
  for (const std::string& wrong : {sidecar, damaged, std::string("x"), std::string()}) {
    put(parts_.at("x"), fresh);  // by somebody who keeps no hashes
    put(parts_.at(".millrace/x.blocks"), wrong);
    EXPECT_TRUE(get(parts_.at("x")) == fresh);
    copied(parts_.at("x"), local_.at("down"));
    EXPECT_TRUE(get(local_.at("down")) == fresh);
    put(local_.at("up"), old);
    EXPECT_EQ(copied(local_.at("up"), parts_.at("x")).moved_bytes, 3 * kBlockBytes);
    EXPECT_TRUE(get(parts_.at("x")) == old);
  }
}

TEST_F(TransferTest, AnOldTargetThatCannotBeCopiedFromIsReplacedWhole) {
  std::string content = content_of(4 * kBlockBytes, seed_);
  put_with_hashes(*engine_, parts_, "y", content);
  content[0] ^= 1;
  put(local_.at("x"), content);
  const auto plan = std::make_shared<FaultPlan>();
  const Location to{make_fault_storage(parts_.storage, plan), "y", "to://y"};
  plan->add({.call = FaultCall::kCopyRange, .key_part = "y", .error = Error(ErrorCode::kCorruption, "gone")});
  const auto report = engine_->copy(local_.at("x"), *local_.storage->stat("x"), to);
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(plan->hits(), 1);
  EXPECT_EQ(report->moved_bytes, 4 * kBlockBytes);
  EXPECT_TRUE(get(parts_.at("y")) == content);
  EXPECT_THAT(*parts_.storage->list_uploads(""), IsEmpty());
}

TEST_F(TransferTest, MemoryStaysUnderItsCap) {
  const auto engine = *TransferEngine::create({.memory_bytes = 2 * kBlockBytes + 100'000, .objects_at_once = 3});
  const std::string content = content_of(5 * kBlockBytes + 1, seed_);
  put(memory_.at("x"), content);
  put(memory_.at("small"), "small");
  std::atomic<bool> done{false};
  std::atomic<int64_t> most{0};
  std::thread watcher([&] {
    while (!done) {
      most = std::max(most.load(), engine->memory_in_use_bytes());
      std::this_thread::yield();
    }
  });
  std::vector<Thread> copies;
  for (int i = 0; i < 8; ++i) {
    copies.emplace_back("test", [&, i] {
      Place& to = i % 2 == 0 ? local_ : parts_;
      const char* key = i < 6 ? "x" : "small";
      const auto report = engine->copy(memory_.at(key), *memory_.storage->stat(key), to.at("y" + std::to_string(i)));
      EXPECT_TRUE(report) << report.error().to_string();
    });
  }
  copies.clear();
  done = true;
  watcher.join();
  EXPECT_THAT(most.load(), AllOf(Gt(0), Le(2 * kBlockBytes + 100'000)));
  EXPECT_EQ(engine->memory_in_use_bytes(), 0);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(get((i % 2 == 0 ? local_ : parts_).at("y" + std::to_string(i))) == content);
  EXPECT_FALSE(TransferEngine::create({.memory_bytes = kBlockBytes}));
}

TEST_F(TransferTest, MoreMemoryIsMorePartsAtOnce) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location from{make_fault_storage(memory_.storage, plan), "x", "from://x"};
  put(memory_.at("x"), content_of(9 * kBlockBytes, seed_));
  plan->add({.call = FaultCall::kRead, .count = FaultRule::kForever, .delay = std::chrono::milliseconds(20)});
  for (const int64_t blocks : {2, 4, 8}) {
    const auto engine = *TransferEngine::create({.memory_bytes = blocks * kBlockBytes});
    std::atomic<bool> done{false};
    int64_t most = 0;
    std::thread watcher([&] {
      while (!done) most = std::max(most, engine->memory_in_use_bytes());
    });
    const auto report = engine->copy(from, *memory_.storage->stat("x"), local_.at("y"), {.delta = false});
    done = true;
    watcher.join();
    EXPECT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(most, blocks * kBlockBytes);
  }
}

TEST_F(TransferTest, AFileThatChangesAfterItWasHashedIsCorruption) {
  put(local_.at("x"), content_of(3 * kBlockBytes, seed_));
  put(parts_.at("y"), "old");
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kWrite, .count = FaultRule::kForever, .delay = std::chrono::milliseconds(500)});
  const Location slow{make_fault_storage(parts_.storage, plan), "y", "y"};
  const Thread changer("test", [path = local_.dir->path() + "/x"] {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    overwrite_in_place(path);
  });
  const auto report = copy(local_.at("x"), slow, {.delta = false});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCorruption) << report.error().to_string();
  EXPECT_EQ(get(parts_.at("y")), "old");
}

// Of a file that the page cache holds the parts are large, and none of them is in memory here.
TEST_F(TransferTest, ALargeFileIsSentFromWhereItIs) {
  const auto engine = *TransferEngine::create({.memory_bytes = 2 * kBlockBytes});
  const int64_t size = 33 * kBlockBytes + 5, part = 2 * kBlockBytes;
  const std::string path = local_.dir->path() + "/x";
  put(local_.at("x"), content_of(20 * kBlockBytes, seed_));
  std::filesystem::resize_file(path, static_cast<uintmax_t>(size));
  const std::string content = get(local_.at("x"));
  if (!as_local_file(**local_.storage->open_read("x"))->is_cached())
    GTEST_SKIP() << "this kernel does not tell what is cached";
  const ObjectInfo source = *local_.storage->stat("x");
  const auto parts_before = parts_.service->parts_left.load();
  leave_unfinished(*engine, local_.at("x"), parts_.at("y"), 3);
  EXPECT_EQ(parts_before - parts_.service->parts_left, 3);
  // It is gone on with though the file is no longer in the page cache, as this storage says of all of them.
  const Location uncached{*open_local_storage(local_.dir->path(), {.direct = LocalDirect::kAlways}), "x", "x"};
  Progress progress;
  const auto report = engine->copy(uncached, source, parts_.at("y"), {}, {}, &progress);
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->resumed_bytes, 3 * part);
  EXPECT_EQ(report->moved_bytes, size - 3 * part);
  EXPECT_EQ(parts_before - parts_.service->parts_left, (size + part - 1) / part + 1) << "and the block hashes";
  EXPECT_EQ(progress.snapshot().bytes, size);
  EXPECT_EQ(engine->memory_in_use_bytes(), 0);
  EXPECT_TRUE(get(parts_.at("y")) == content);
  EXPECT_EQ(report->hash, xxh3_128(content));
  // What changes afterwards moves in single blocks.
  overwrite_in_place(path);
  const TransferReport again = copied(local_.at("x"), parts_.at("y"));
  EXPECT_EQ(again.moved_bytes, kBlockBytes);
  EXPECT_EQ(again.copied_bytes, size - kBlockBytes);
  EXPECT_TRUE(get(parts_.at("y")) == get(local_.at("x")));
}

// They take no memory, and are as many as keep a link busy, whatever else is copied; more where more memory is allowed.
TEST_F(TransferTest, PartsOfFilesAreManyAtOnce) {
  const std::string content = content_of(20 * kBlockBytes, seed_);
  std::ofstream(local_.dir->path() + "/x") << content;
  if (!as_local_file(**local_.storage->open_read("x"))->is_cached())
    GTEST_SKIP() << "this kernel does not tell what is cached";
  const ObjectInfo source = *local_.storage->stat("x");
  const auto bent = std::make_shared<BentStorage>(parts_.storage);
  Mutex mutex;
  std::vector<std::pair<Operation, CompletionQueue*>> held;
  bent->on_submit = [&](std::span<const Operation> operations, CompletionQueue& queue) {
    MutexLock lock(mutex);
    for (const Operation& operation : operations) held.emplace_back(operation, &queue);
  };
  // How many parts are under way at most; none ends while more begin.
  const auto most_of = [&](int copies, int64_t memory_blocks) {
    const auto engine = *TransferEngine::create({.memory_bytes = memory_blocks * kBlockBytes});
    const auto name = [&](int i) { return std::to_string(copies * memory_blocks) + "/" + std::to_string(i); };
    std::atomic<int> left{copies};
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < copies; ++i) {
      threads.push_back(std::make_unique<Thread>("test", [&, i] {
        const auto report = engine->copy(local_.at("x"), source, located(bent, name(i)));
        EXPECT_TRUE(report) << report.error().to_string();
        --left;
      }));
    }
    size_t most = 0, seen = 0;
    while (left > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      MutexLock lock(mutex);
      if (held.size() != std::exchange(seen, held.size())) continue;
      most = std::max(most, held.size());
      for (const auto& [operation, queue] : std::exchange(held, {})) {
        parts_.storage->submit(std::span(&operation, 1), *queue);
      }
    }
    threads.clear();
    for (int i = 0; i < copies; ++i) EXPECT_TRUE(get(parts_.at(name(i))) == content);
    return most;
  };
  EXPECT_EQ(most_of(1, 2), 16U);
  EXPECT_EQ(most_of(1, 36), 18U);
  EXPECT_THAT(most_of(3, 2), AllOf(Gt(15U), Le(24U))) << "16, and 4 of each that came later";
}

TEST_F(TransferTest, PartsThatAreTooLargeForMemoryGoFromTheFile) {
  const auto engine = *TransferEngine::create({.memory_bytes = 2 * kBlockBytes});
  parts_.service->part_bytes = 2 * kBlockBytes;
  const std::string content = content_of(9 * kBlockBytes + 5, seed_);
  put(local_.at("x"), content);
  const Location uncached{*open_local_storage(local_.dir->path(), {.direct = LocalDirect::kAlways}), "x", "x"};
  leave_unfinished(*engine, uncached, parts_.at("y"), 2);
  const auto report = engine->copy(uncached, *local_.storage->stat("x"), parts_.at("y"));
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->resumed_bytes, 4 * kBlockBytes);
  EXPECT_EQ(report->moved_bytes, 5 * kBlockBytes + 5);
  EXPECT_TRUE(get(parts_.at("y")) == content);
  EXPECT_EQ(report->hash, xxh3_128(content));
  EXPECT_EQ(engine->memory_in_use_bytes(), 0);
}

// From one service to another, a part is gathered in a file.
TEST_F(TransferTest, PartsThatAreTooLargeForMemoryGoFromATemporaryFile) {
  const auto engine = *TransferEngine::create({.memory_bytes = 2 * kBlockBytes});
  const std::string content = content_of(9 * kBlockBytes + 5, seed_);
  const TempDir temporary;
  const std::string usual = std::filesystem::temp_directory_path();
  ::setenv("TMPDIR", temporary.path().c_str(), 1);
  for (const bool with_hashes : {false, true}) {
    SCOPED_TRACE(with_hashes);
    parts_.service->part_bytes = 0;
    if (with_hashes) {
      put_with_hashes(*engine_, parts_, "x", content);
    } else {
      put(parts_.at("x"), content);
    }
    ASSERT_TRUE(other_parts_.storage->remove(std::vector<std::string>{"y"}));
    other_parts_.service->part_bytes = 2 * kBlockBytes;
    const auto faults = std::make_shared<FaultPlan>();
    const Location from{make_fault_storage(parts_.storage, faults), "x", "from://x"};
    leave_unfinished(*engine, from, other_parts_.at("y"), 2);
    if (with_hashes) faults->add({.call = FaultCall::kRead, .key_part = "x", .skip = 5, .flip_bit = true});
    const auto report = engine->copy(from, *from.storage->stat("x"), other_parts_.at("y"));
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(faults->hits(), with_hashes ? 1 : 0);
    EXPECT_EQ(report->resumed_bytes, 4 * kBlockBytes);
    EXPECT_EQ(report->moved_bytes, 5 * kBlockBytes + 5);
    EXPECT_TRUE(get(other_parts_.at("y")) == content);
    EXPECT_EQ(report->hash, xxh3_128(content));
    EXPECT_EQ(engine->memory_in_use_bytes(), 0);
    EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
  }
  // An error of reading ends it, and so does a folder for temporary files that is not there.
  ASSERT_TRUE(other_parts_.storage->remove(std::vector<std::string>{"y"}));
  const auto faults = std::make_shared<FaultPlan>();
  faults->add(
      {.call = FaultCall::kRead, .key_part = "x", .skip = 3, .error = Error(ErrorCode::kUnavailable, "the end")});
  const Location from{make_fault_storage(parts_.storage, faults), "x", "from://x"};
  const auto failed = engine->copy(from, *from.storage->stat("x"), other_parts_.at("y"));
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().to_string(), HasSubstr("the end"));
  ::setenv("TMPDIR", (temporary.path() + "/nowhere").c_str(), 1);
  const auto homeless = engine->copy(parts_.at("x"), *parts_.storage->stat("x"), other_parts_.at("y"));
  ::setenv("TMPDIR", usual.c_str(), 1);
  ASSERT_FALSE(homeless);
  EXPECT_THAT(homeless.error().to_string(), HasSubstr("temporary files"));
  EXPECT_EQ(engine->memory_in_use_bytes(), 0);
}

TEST_F(TransferTest, SmallObjectsCostNoQuestions) {
  for (int i = 0; i < 3; ++i) put(local_.at("x"), "small");
  const int64_t opens = parts_.service->opens, lists = parts_.service->lists;
  copied(local_.at("x"), parts_.at("y"));
  copied(parts_.at("y"), local_.at("z"));
  EXPECT_EQ(parts_.service->opens, opens + 1);
  EXPECT_EQ(parts_.service->lists, lists);
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
