// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/read_ahead.h"

#include <gmock/gmock.h>

#include <random>

#include "millrace/storage/fault.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/testing.h"

namespace millrace {
namespace {

TEST(ReadAheadTest, GivesWhatTheObjectHolds) {
  SCOPED_TRACE(test_seed());
  std::mt19937_64 random(test_seed());
  const auto storage = make_memory_storage("test");
  for (const size_t size : {size_t{0}, size_t{1}, size_t{99}, size_t{100}, size_t{101}, size_t{5000}}) {
    const std::string content = test_bytes(size, test_seed());
    ASSERT_TRUE(write_object(*storage, "object", content));
    const auto reader = *ReadAhead::open({storage, "object", "object"}, 100);
    EXPECT_EQ(reader->size(), std::ssize(content));
    int64_t offset = 0;
    for (int i = 0; i < 2000; ++i) {
      // Mostly on from where the last one ended, over blocks and the end.
      if (random() % 5 == 0) offset = static_cast<int64_t>(random() % (size + 20));
      std::string out(random() % 250, '?');
      const auto got = reader->read(offset, std::as_writable_bytes(std::span<char>(out)));
      ASSERT_TRUE(got);
      out.resize(static_cast<size_t>(*got));
      const size_t begin = std::min(static_cast<size_t>(offset), size);
      EXPECT_EQ(out, content.substr(begin, out.size()));
      EXPECT_TRUE(*got == 0 || !out.empty());
      offset += *got;
      if (*got == 0) offset = 0;
    }
  }
}

TEST(ReadAheadTest, AnErrorIsTheReadsAndTheNextMayWork) {
  const auto memory = make_memory_storage("test");
  const auto plan = std::make_shared<FaultPlan>();
  const auto storage = make_fault_storage(memory, plan);
  ASSERT_TRUE(write_object(*memory, "object", std::string(1000, 'x')));
  const auto reader = *ReadAhead::open({storage, "object", "object"}, 100);
  std::string out(50, '?');
  int failed = 0;
  plan->add({.call = FaultCall::kRead, .skip = 3, .count = 2, .error = Error(ErrorCode::kUnavailable, "gone")});
  for (int64_t offset = 0; offset < 1000;) {
    const auto got = reader->read(offset, std::as_writable_bytes(std::span<char>(out)));
    if (got) {
      EXPECT_EQ(out, std::string(50, 'x'));
      offset += *got;
    } else {
      EXPECT_EQ(got.error().code(), ErrorCode::kUnavailable);
      ++failed;
    }
  }
  EXPECT_GE(failed, 1);
  EXPECT_LE(failed, 2);
}

TEST(ReadAheadTest, CanBeDroppedWhileABlockIsUnderWay) {
  const auto memory = make_memory_storage("test");
  const auto plan = std::make_shared<FaultPlan>();
  ASSERT_TRUE(write_object(*memory, "object", std::string(1000, 'x')));
  auto reader = *ReadAhead::open({make_fault_storage(memory, plan), "object", "object"}, 100);
  std::string out(10, '?');
  ASSERT_TRUE(reader->read(0, std::as_writable_bytes(std::span<char>(out))));
  plan->add({.call = FaultCall::kRead, .skip = 1, .delay = std::chrono::milliseconds(50)});
  ASSERT_TRUE(reader->read(10, std::as_writable_bytes(std::span<char>(out))));
  reader.reset();
}

}  // namespace
}  // namespace millrace
