// SPDX-License-Identifier: Apache-2.0
// Parts under way: in memory under its cap, from files, from temporary files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "millrace/storage/local/local.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/sync/testing.h"
#include "millrace/sync/testing/transfer.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Le;

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
      Side& to = i % 2 == 0 ? local_ : parts_;
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
  for (const int64_t blocks : {2, 4, 8}) {
    const auto engine = *TransferEngine::create({.memory_bytes = blocks * kBlockBytes});
    // The first reads wait for the others.
    std::atomic<int64_t> most = 0;
    plan->clear();
    plan->add({.call = FaultCall::kRead, .count = FaultRule::kForever, .before = [&, blocks] {
                 const auto deadline = Clock::now() + std::chrono::seconds(30);
                 while (most < blocks * kBlockBytes && Clock::now() < deadline) {
                   most = std::max(most.load(), engine->memory_in_use_bytes());
                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                 }
               }});
    const auto report = engine->copy(from, *memory_.storage->stat("x"), local_.at("y"), {.delta = false});
    EXPECT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(most, blocks * kBlockBytes);
    EXPECT_LE(engine->memory_in_use_bytes(), blocks * kBlockBytes);
  }
}

// Parts of a file in the page cache are large, and none is read into this process's memory.
TEST_F(TransferTest, ALargeFileIsSentFromWhereItIs) {
  const auto engine = *TransferEngine::create({.memory_bytes = 2 * kBlockBytes});
  const int64_t size = 33 * kBlockBytes + 5, part = 2 * kBlockBytes;
  const std::string path = local_.dir->path() + "/x";
  put(local_.at("x"), content_of(20 * kBlockBytes, seed_));
  std::filesystem::resize_file(path, static_cast<uintmax_t>(size));
  const std::string content = get(local_.at("x"));
  if (!(*local_.storage->open_read("x"))->local_file()->is_cached())
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
  if (!(*local_.storage->open_read("x"))->local_file()->is_cached())
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

// From one service to another, a part is held in memory.
TEST_F(TransferTest, PartsThatAreTooLargeForMemoryAreRefusedWithoutAFile) {
  const std::string content = content_of(9 * kBlockBytes + 5, seed_);
  put(parts_.at("x"), content);
  other_parts_.service->part_bytes = 2 * kBlockBytes;
  const auto copy = [&](int64_t memory_bytes) {
    const auto engine = *TransferEngine::create({.memory_bytes = memory_bytes});
    const auto report = engine->copy(parts_.at("x"), *parts_.storage->stat("x"), other_parts_.at("y"));
    EXPECT_EQ(engine->memory_in_use_bytes(), 0);
    return report ? "copied" : report.error().to_string();
  };
  EXPECT_THAT(copy(4 * kBlockBytes - 1), HasSubstr("give --memory 32MiB (memory_bytes in Python)"));
  EXPECT_FALSE(other_parts_.storage->stat("y"));
  EXPECT_EQ(copy(4 * kBlockBytes), "copied");
  EXPECT_TRUE(get(other_parts_.at("y")) == content);
}

}  // namespace
}  // namespace millrace::sync
