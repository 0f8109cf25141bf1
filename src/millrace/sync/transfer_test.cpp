// SPDX-License-Identifier: Apache-2.0
// Copies between all kinds of storage: byte for byte, and only what differs.
#include "millrace/sync/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/storage/testing/fault.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/testing/transfer.h"

namespace millrace::sync {
namespace {

using ::testing::IsEmpty;

TEST_F(TransferTest, CopiesEverySizeBetweenAllKinds) {
  const std::vector<int64_t> sizes{
      0, 1, kBlockBytes - 1, kBlockBytes, kBlockBytes + 1, 2 * kBlockBytes, 2 * kBlockBytes + 12'345};
  const std::vector<Side*> sources{&memory_, &local_, &parts_};
  const std::vector<Side*> targets{&memory_, &local_, &parts_, &other_memory_, &other_local_, &other_parts_};
  for (const int64_t size : sizes) {
    const std::string content = content_of(size, seed_ + static_cast<uint64_t>(size));
    for (Side* from : sources) {
      put(from->at("dir/source"), content);
      for (Side* to : targets) {
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
  for (Side* to : {&memory_, &other_local_, &parts_}) {
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
  EXPECT_TRUE(load_sidecar(*parts_.storage, *parts_.storage->stat("b/large")).value().has_value());
  EXPECT_EQ(copied(parts_.at("off"), parts_.at("off2")).hash, std::nullopt);
}

TEST_F(TransferTest, OneChangedByteMovesOneBlock) {
  const std::string old = content_of(4 * kBlockBytes + 77, seed_);
  std::string changed = old;
  changed[static_cast<size_t>(2 * kBlockBytes + 5)] ^= 1;
  struct Case {
    Side *from, *to;
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
  for (Side* to : {&memory_, &other_local_, &parts_}) {
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

// A dry run says what the copy does then, and leaves all as it is.
TEST_F(TransferTest, ADryRunForetellsTheCopy) {
  const std::string old = content_of(6 * kBlockBytes + 5, seed_);
  std::string fresh = old;
  fresh[static_cast<size_t>(2 * kBlockBytes)] ^= 1;
  for (Side* to : {&memory_, &local_, &parts_}) {
    for (Side* from : {&other_memory_, &other_local_, &other_parts_}) {
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

TEST_F(TransferTest, SmallObjectsCostNoQuestions) {
  for (int i = 0; i < 3; ++i) put(local_.at("x"), "small");
  const int64_t opens = parts_.service->opens, lists = parts_.service->lists;
  copied(local_.at("x"), parts_.at("y"));
  copied(parts_.at("y"), local_.at("z"));
  EXPECT_EQ(parts_.service->opens, opens + 1);
  EXPECT_EQ(parts_.service->lists, lists);
}

}  // namespace
}  // namespace millrace::sync
