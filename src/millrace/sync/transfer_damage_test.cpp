// SPDX-License-Identifier: Apache-2.0
// A source that changes or comes with other bytes than it has is an error, never a wrong copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "millrace/storage/testing/fault.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/testing/transfer.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  for (Side* to : {&memory_, &other_local_, &parts_}) {
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

}  // namespace
}  // namespace millrace::sync
