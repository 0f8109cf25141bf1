// SPDX-License-Identifier: Apache-2.0
// The part of the conformance suite about submitted operations, copies, and writes of parts or in pieces.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/testing/conformance.h"
#include "millrace/storage/testing/conformance_helpers.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST_P(StorageConformance, ManyThreadsWriteOneObject) {
  if (!can_.is_local()) GTEST_SKIP() << "no writes in any order";
  const std::string content = test_bytes(4'000'000, 7);
  constexpr size_t kPart = 50'000;
  std::vector<size_t> offsets;
  for (size_t at = 0; at < content.size(); at += kPart) offsets.push_back(at);
  std::shuffle(offsets.begin(), offsets.end(), std::mt19937_64(1));
  const auto writer = storage_->open_write("large", {.size_hint_bytes = 4'000'000});
  ASSERT_TRUE(writer);
  std::atomic<size_t> next{0};
  std::vector<Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("test", [&] {
      for (size_t n; (n = next++) < offsets.size();) {
        const std::string_view part = std::string_view(content).substr(offsets[n], kPart);
        ASSERT_TRUE((*writer)->write_at(static_cast<int64_t>(offsets[n]), as_bytes(part)));
      }
    });
  }
  threads.clear();
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_TRUE(get("large") == content);
}

TEST_P(StorageConformance, SubmittedOperationsEachEndOnce) {
  if (!can_.is_local()) GTEST_SKIP() << "no writes in any order";
  const std::string content = test_bytes(300'000, 3);
  put("source", content);
  const auto reader = storage_->open_read("source");
  const auto writer = storage_->open_write("copy");
  ASSERT_TRUE(reader && writer);
  std::stop_source stop;
  stop.request_stop();
  std::string out(content.size(), '\0');
  std::vector<Operation> operations;
  for (size_t at = 0; at < content.size(); at += 10'000) {
    const uint64_t tag = operations.size();
    const auto offset = static_cast<int64_t>(at);
    operations.push_back(
        {.tag = tag, .what = Operation::Read{reader->get(), offset, bytes_of(out).subspan(at, 10'000)}});
    operations.push_back({.tag = tag + 1,
                          .what = Operation::Write{writer->get(), offset, as_bytes(content).subspan(at, 10'000)},
                          .priority = 1});
  }
  std::string unused(10, '\0');
  const uint64_t stopped = operations.size();
  const Operation::Read some{reader->get(), 0, bytes_of(unused)};
  operations.push_back({.tag = stopped, .what = some, .stop = stop.get_token()});
  operations.push_back({.tag = stopped + 1, .what = some, .deadline = Clock::now()});
  operations.push_back({.tag = stopped + 2, .what = Operation::Read{reader->get(), 299'999, bytes_of(unused)}});
  CompletionQueue queue;
  storage_->submit(operations, queue);
  std::map<uint64_t, ErrorCode> ended;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Completion completion = queue.wait();
    EXPECT_TRUE(ended.emplace(completion.tag, code_of(completion.status)).second) << completion.tag << " ended twice";
    EXPECT_TRUE(completion.tag >= stopped || completion.status);
  }
  EXPECT_EQ(queue.try_pop(), std::nullopt);
  EXPECT_EQ(ended[stopped], ErrorCode::kCancelled);
  EXPECT_EQ(ended[stopped + 1], ErrorCode::kTimeout);
  EXPECT_EQ(ended[stopped + 2], ErrorCode::kOutOfRange);
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_TRUE(out == content);
  EXPECT_TRUE(get("copy") == content);
}

TEST_P(StorageConformance, CopiesRanges) {
  const std::string content = test_bytes(2'500'000, 5);
  put("source", content);
  const auto reader = storage_->open_read("source");
  const auto writer = storage_->open_write("copy");
  ASSERT_TRUE(reader && writer);
  EXPECT_EQ(storage_->copies_from(*storage_), can_.copy_range);
  ASSERT_TRUE((*writer)->copy_range(**reader, 1000, 2'400'000, 0));
  ASSERT_TRUE((*writer)->copy_range(**reader, 0, 1000, 2'400'000));
  ASSERT_TRUE((*writer)->copy_range(**reader, 2'500'000, 0, 0));
  EXPECT_EQ(code_of((*writer)->copy_range(**reader, 2'499'999, 2, 0)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of((*writer)->copy_range(**reader, INT64_MAX, INT64_MAX, 0)), ErrorCode::kOutOfRange);
  const MemoryReader foreign(as_bytes("from elsewhere"));
  ASSERT_TRUE((*writer)->copy_range(foreign, 5, 9, 2'401'000));
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_TRUE(get("copy") == content.substr(1000, 2'400'000) + content.substr(0, 1000) + "elsewhere");
}

TEST_P(StorageConformance, AChangeWhileReadingIsCorruption) {
  const auto& overwrite = GetParam().overwrite_in_place;
  if (!overwrite) GTEST_SKIP() << "nobody can change an object here";
  for (const std::string changed : {"CONTENT", "con", "content and more"}) {
    put("object", "content");
    const auto reader = storage_->open_read("object");
    ASSERT_TRUE(reader);
    std::string out(4, '\0');
    ASSERT_TRUE((*reader)->read_at(0, bytes_of(out)));
    overwrite(*storage_, "object", changed);
    const Status status = (*reader)->read_at(0, bytes_of(out));
    ASSERT_EQ(code_of(status), ErrorCode::kCorruption) << changed;
    EXPECT_THAT(status.error().to_string(), HasSubstr("changed while reading"));
    const auto writer = storage_->open_write("copy");
    ASSERT_TRUE(writer);
    EXPECT_EQ(code_of((*writer)->copy_range(**reader, 0, 4, 0)), ErrorCode::kCorruption) << changed;
  }
}

TEST_P(StorageConformance, WritesPartsInAnyOrder) {
  const std::string content = test_bytes(17'000'000, 11);
  const auto size = static_cast<int64_t>(content.size());
  const auto writer = storage_->open_write("parts", {.size_hint_bytes = size, .part_bytes = 5 << 20});
  ASSERT_TRUE(writer) << writer.error().to_string();
  const int64_t part = can_.is_local() ? 5 << 20 : (*writer)->part_bytes();
  ASSERT_GT(part, 0);
  std::vector<Operation> operations;
  for (int64_t at = 0; at < size; at += part) {
    const auto data =
        as_bytes(content).subspan(static_cast<size_t>(at), static_cast<size_t>(std::min(part, size - at)));
    operations.push_back({.tag = static_cast<uint64_t>(at), .what = Operation::Write{writer->get(), at, data}});
  }
  std::reverse(operations.begin(), operations.end());
  CompletionQueue queue;
  storage_->submit(operations, queue);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Completion completion = queue.wait();
    EXPECT_TRUE(completion.status) << completion.status.error().to_string();
  }
  const auto done = (*writer)->commit();
  ASSERT_TRUE(done) << done.error().to_string();
  EXPECT_EQ(done->size, size);
  EXPECT_TRUE(get("parts") == content);
  EXPECT_EQ(storage_->stat("parts")->version, done->version);
}

TEST_P(StorageConformance, WritesPartsFromAFile) {
  const std::string content = test_bytes(17'000'000, 12);
  const auto size = static_cast<int64_t>(content.size());
  const TempDir dir;
  const auto files = *open_local_storage(dir.path());
  ASSERT_TRUE(write_object(*files, "file", content));
  const auto file = *files->open_read("file");
  const auto writer = *storage_->open_write("from-file", {.size_hint_bytes = size, .part_bytes = 5 << 20});
  const int64_t part = can_.is_local() ? 5 << 20 : writer->part_bytes();
  Progress progress;
  std::vector<std::unique_ptr<FileRange>> ranges;
  std::vector<Operation> operations;
  for (int64_t at = 0; at < size; at += part) {
    ranges.push_back(file->local_file()->file_range(at, std::min(part, size - at)));
    const auto bytes = as_bytes(content).subspan(static_cast<size_t>(at), static_cast<size_t>(ranges.back()->size()));
    operations.push_back({.tag = static_cast<uint64_t>(at),
                          .what = Operation::Send{writer.get(), at, ranges.back().get(), crc32c(bytes), &progress}});
  }
  CompletionQueue queue;
  storage_->submit(operations, queue);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Completion completion = queue.wait();
    EXPECT_TRUE(completion.status) << completion.status.error().to_string();
  }
  EXPECT_EQ(progress.snapshot().bytes, size);
  ASSERT_TRUE(writer->commit());
  EXPECT_TRUE(get("from-file") == content);
}

TEST_P(StorageConformance, AppendsOfAnySizeAndAHeadWrittenLast) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const size_t size : {100u, 8u << 20, (8u << 20) + 1, 20'000'000u}) {
    std::string content = test_bytes(size, seed);
    const auto writer = storage_->open_write("appended");
    ASSERT_TRUE(writer);
    for (size_t at = 0; at < size;) {
      const size_t piece = std::min<size_t>(size - at, random() % 3'000'000 + 1);
      ASSERT_TRUE((*writer)->write_at(static_cast<int64_t>(at), as_bytes(content).subspan(at, piece)));
      at += piece;
    }
    if (GetParam().rewrites_head) {
      ASSERT_TRUE((*writer)->write_at(0, as_bytes("head")));
      content.replace(0, 4, "head");
    }
    const auto done = (*writer)->commit();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(get("appended") == content) << size;
  }
}

}  // namespace
}  // namespace millrace
