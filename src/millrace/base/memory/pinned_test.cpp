// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/memory/pinned.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "millrace/base/thread/sync.h"

namespace millrace {
namespace {

class PinnedTest : public ::testing::Test {
 protected:
  // SAFETY: the fake's own functions.
  int pinned() { return reinterpret_cast<int (*)()>(dlsym(fake_, "fakePinned"))(); }
  // The calling thread uses a device from now on.
  void use_device() { reinterpret_cast<void (*)()>(dlsym(fake_, "fakeUse"))(); }
  void refuse(int code) { reinterpret_cast<void (*)(int)>(dlsym(fake_, "fakeRefuse"))(code); }

  void* const fake_ = dlopen(MILLRACE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  std::array<std::byte, 4096> memory_{};
};

TEST_F(PinnedTest, IsPinnedWhileTheRangeExists) {
  const auto early = PinnedRange::pin(memory_, MILLRACE_FAKE_CUDA);
  ASSERT_FALSE(early);  // and no context is made on a device that may be another process's
  EXPECT_EQ(early.error().code(), ErrorCode::kUnavailable);
  Thread("uses a device", [&] {
    use_device();
    PinnedRange::see_context(MILLRACE_FAKE_CUDA);
  }).join();
  {
    auto range = PinnedRange::pin(memory_, MILLRACE_FAKE_CUDA);
    ASSERT_TRUE(range) << range.error().to_string();
    EXPECT_TRUE(*range);
    EXPECT_EQ(pinned(), 1);
    // Another thread has no context of its own, and may be the one that drops it.
    Thread("drops", [dropped = &*range] { *dropped = PinnedRange(); }).join();
    EXPECT_EQ(pinned(), 0);
  }
  EXPECT_EQ(pinned(), 0);
}

TEST_F(PinnedTest, WhatTheDriverRefusesIsNotPinned) {
  use_device();
  refuse(2);
  const auto range = PinnedRange::pin(memory_, MILLRACE_FAKE_CUDA);
  refuse(0);
  ASSERT_FALSE(range);
  EXPECT_EQ(range.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(range.error().to_string(), ::testing::HasSubstr("error 2"));
  EXPECT_EQ(pinned(), 0);
}

TEST_F(PinnedTest, WithoutADriverItIsUnsupported) {
  const auto range = PinnedRange::pin(memory_, "libnothing-of-this-name.so");
  ASSERT_FALSE(range);
  EXPECT_EQ(range.error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace millrace
