// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/fault.h"

#include <gmock/gmock.h>

#include "millrace/storage/memory.h"
#include "millrace/storage/testing/conformance.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

INSTANTIATE_TEST_SUITE_P(
    Fault, StorageConformance,
    ::testing::Values(StorageCase{
        .name = "faultless",
        .make = [] { return make_fault_storage(make_memory_storage("test"), std::make_shared<FaultPlan>()); }}),
    conformance_name);

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
