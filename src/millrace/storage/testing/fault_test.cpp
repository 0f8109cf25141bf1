// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/fault.h"

#include <gmock/gmock.h>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/testing/conformance.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

std::shared_ptr<Storage> faultless(std::shared_ptr<Storage> inner) {
  return make_fault_storage(std::move(inner), std::make_shared<FaultPlan>());
}

INSTANTIATE_TEST_SUITE_P(
    Fault, StorageConformance,
    ::testing::Values(StorageCase{.name = "faultless", .make = [] { return faultless(make_memory_storage("test")); }},
                      StorageCase{
                          .name = "faultlessParts",
                          .make = [] { return faultless(make_parts_storage(std::make_shared<PartsService>())); },
                          .rewrites_head = false}),
    conformance_name);

TEST(FaultStorage, WhatItWrapsIsCopiedByTheServer) {
  constexpr int64_t kPart = 1000, kSize = 3 * kPart;
  const auto service = std::make_shared<PartsService>();
  service->part_bytes = kPart;
  const auto inner = make_parts_storage(service);
  const auto once = faultless(inner), twice = faultless(once);
  const std::string content = test_bytes(kSize, 1);
  ASSERT_TRUE(write_object(*inner, "from", content));
  const int64_t sent = service->written_bytes;
  for (const auto& from : {inner, once, twice}) {
    for (const auto& to : {inner, once, twice}) {
      EXPECT_TRUE(to->copies_from(*from));
      service->copied_bytes = 0;
      const auto reader = *from->open_read("from");
      const auto writer = *to->open_write("to", {.size_hint_bytes = kSize});
      for (int64_t at = 0; at < kSize; at += kPart) ASSERT_TRUE(writer->copy_range(*reader, at, kPart, at));
      ASSERT_TRUE(writer->commit());
      EXPECT_EQ(service->copied_bytes, kSize);
      EXPECT_EQ(service->read_bytes, 0);
      EXPECT_EQ(service->written_bytes, sent);
      EXPECT_TRUE(*read_object(*inner, "to") == content);
      service->read_bytes = 0;
    }
  }
  EXPECT_FALSE(twice->copies_from(*faultless(make_memory_storage("other"))));
}

class FaultStorageTest : public ::testing::Test {
 protected:
  std::shared_ptr<Storage> inner_ = make_memory_storage("test");
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::shared_ptr<Storage> storage_ = make_fault_storage(inner_, plan_);
  const Error broken_{ErrorCode::kUnavailable, "broken"};
};

TEST_F(FaultStorageTest, HitsTheChosenOperationsOnly) {
  plan_->add({.call = FaultCall::kCommit, .key_part = "bad", .skip = 1, .count = 2, .error = broken_});
  std::vector<bool> done;
  for (int i = 0; i < 5; ++i) done.push_back(write_object(*storage_, "bad", std::to_string(i)).has_value());
  EXPECT_THAT(done, ElementsAre(true, false, false, true, true));
  EXPECT_EQ(plan_->hits(), 2);
  EXPECT_TRUE(write_object(*storage_, "good", "x"));
  EXPECT_EQ(*read_object(*inner_, "bad"), "4");
}

TEST_F(FaultStorageTest, EveryCallCanFail) {
  ASSERT_TRUE(write_object(*storage_, "key", "x"));
  const auto reader = storage_->open_read("key");
  auto writer = storage_->open_write("key");
  plan_->add({.count = FaultRule::kForever, .error = broken_});
  std::byte out[1];
  const std::vector<std::string> keys{"key"};
  EXPECT_FALSE((*reader)->read_at(0, out));
  EXPECT_FALSE((*writer)->write_at(0, out));
  EXPECT_FALSE((*writer)->copy_range(**reader, 0, 1, 0));
  EXPECT_FALSE((*writer)->commit());
  EXPECT_FALSE(storage_->open_read("key"));
  EXPECT_FALSE(storage_->open_write("key"));
  EXPECT_FALSE(storage_->stat("key"));
  EXPECT_FALSE(storage_->list(""));
  EXPECT_FALSE(storage_->remove(keys));
  EXPECT_FALSE(storage_->make_durable(keys));
  plan_->clear();
  EXPECT_EQ(*read_object(*storage_, "key"), "x");
}

TEST_F(FaultStorageTest, OneBadKeyFailsABatchAndTheOthersAreDone) {
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(write_object(*storage_, key, ""));
  plan_->add({.call = FaultCall::kRemove, .key_part = "b", .error = broken_});
  EXPECT_EQ(storage_->remove(std::vector<std::string>{"a", "b", "c"}).error().message(), "broken");
  EXPECT_EQ(storage_->list("")->objects.size(), 1u);
}

TEST_F(FaultStorageTest, FlipsABitAndWaits) {
  ASSERT_TRUE(write_object(*storage_, "key", "aaaa"));
  plan_->add({.call = FaultCall::kRead, .delay = std::chrono::milliseconds(20), .flip_bit = true});
  const auto begin = Clock::now();
  EXPECT_EQ(*read_object(*storage_, "key"), "aa`a");
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(20));
  EXPECT_EQ(*read_object(*storage_, "key"), "aaaa");
}

}  // namespace
}  // namespace millrace
