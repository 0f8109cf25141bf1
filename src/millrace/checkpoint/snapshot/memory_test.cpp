// SPDX-License-Identifier: Apache-2.0
// What saves take of the host's memory: never more than memory_bytes, and the same bytes come out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Some tensors are on a device: the save gets no address of theirs, and asks for their bytes.
class FakeDevice {
 public:
  explicit FakeDevice(
      const Arrays& arrays, std::function<bool(const std::string&)> is_there = [](const auto&) { return true; })
      : tensors_(whole_tensors(arrays)), given_(tensors_.tensors()) {
    for (TensorToSave& tensor : given_) {
      if (is_there(tensor.name)) tensor.data = nullptr;
    }
  }
  const std::vector<TensorToSave>& given() const { return given_; }
  FillImage fill() {
    return [this](std::span<std::byte> memory, std::span<const ImagePlace> places, FillMode mode) -> Status {
      ++(mode == FillMode::kComplete ? runs_ : images_);
      for (const ImagePlace& place : places) {
        const TensorToSave& tensor = tensors_.tensors()[place.tensor];
        EXPECT_GE(place.data, memory.data());
        EXPECT_LE(place.data + place.bytes, memory.data() + memory.size());
        std::memcpy(place.data, tensor.data + place.begin, static_cast<size_t>(place.bytes));
        if (fails_at_ > 0 && ++places_ == fails_at_) return fail(ErrorCode::kInternal, "the device is lost");
      }
      return {};
    };
  }
  void scribble() { tensors_.scribble(); }
  void fail_at(int place) { fails_at_ = place; }
  int runs() const { return runs_; }
  int images() const { return images_; }

 private:
  RankTensors tensors_;
  std::vector<TensorToSave> given_;
  std::atomic<int> runs_{0}, images_{0}, places_{0};
  int fails_at_ = 0;
};

std::string file_below(const Location& root, int64_t step) {
  const Location file = step_location(root, step).child("r0000-test").child(RankPlaces::of_new(1).file(0));
  return *read_object(*file.storage, file.key, 64 << 20);
}

Arrays random_arrays(std::mt19937_64& random, int64_t largest) {
  Arrays arrays = small_arrays(random());
  for (int more = 0; more < 4; ++more) {
    const auto bytes = static_cast<int64_t>(random() % static_cast<uint64_t>(more == 0 ? largest : 100'000));
    arrays["more " + std::to_string(more)] = make_array(formats::Dtype::kU8, {bytes}, random());
  }
  return arrays;
}

TEST(SaverMemory, TensorsOfADeviceGoThroughLessMemoryThanTheyTake) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < rounds(20); ++i) {
    const Arrays arrays = random_arrays(random, 6 << 20);  // more than a chunk
    const int64_t memory = 4096 << random() % 12;
    SCOPED_TRACE(memory);
    const uint64_t salt = random();
    FakeDevice device(arrays, [&](const std::string& name) { return (std::hash<std::string>()(name) ^ salt) % 3 > 0; });
    const Location plain = memory_root(), root = memory_root();
    EXPECT_OK(save_and_wait(*make_saver(plain), 1, arrays));
    const auto saver = make_saver(root, {.memory_bytes = memory});
    const auto save = saver->save(1, device.given(), "{}", "null", {}, {}, device.fill());
    ASSERT_TRUE(save) << explain(save);
    const bool fits = device.images() > 0;
    if (!fits) device.scribble();
    (*save)->filled({});
    EXPECT_OK((*save)->wait());
    EXPECT_TRUE(file_below(plain, 1) == file_below(root, 1));
    EXPECT_OK(load_and_compare(root, 1, arrays));
    EXPECT_OK((*Checkpoint::open(root, 1))->verify(1));
    EXPECT_LE(saver->peak_memory_bytes(), memory);
    EXPECT_EQ(fits, std::ssize(file_below(root, 1)) <= memory);
  }
}

// Counts what the process holds at every operation of its storage.
class CountingStorage final : public WrappedStorage {
 public:
  using WrappedStorage::WrappedStorage;
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    count();
    WrappedStorage::submit(operations, queue);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    count();
    return WrappedStorage::open_write(key, options);
  }
  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override {
    count();
    return WrappedStorage::stat(key);
  }
  int64_t most() const { return most_; }

 private:
  void count() {
    const int64_t now = MemoryBudget::process()->reserved_bytes();
    int64_t before = most_;
    while (now > before && !most_.compare_exchange_weak(before, now)) {
    }
  }
  std::atomic<int64_t> most_{0};
};

// States that shrink and grow, to any number of tiers, from the host and from a device.
TEST(SaverMemory, StaysBelowItsCap) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed());
  const int64_t before = MemoryBudget::process()->reserved_bytes();
  for (int i = 0; i < rounds(8); ++i) {
    const int64_t memory = (64 << 10) << random() % 6;
    std::vector<Location> roots;
    for (uint64_t tiers = 1 + random() % 3; roots.size() < tiers;) roots.push_back(memory_root());
    for (size_t tier = 0; tier < roots.size(); ++tier) roots[tier].url += std::to_string(tier);
    SaverOptions options{.memory_bytes = memory, .reserve_bytes = static_cast<int64_t>(random() % (2 << 20))};
    options.refer_unchanged = random() % 2 == 0;
    for (size_t tier = 0; tier + 1 < roots.size(); ++tier) options.tiers.push_back({.root = roots[tier]});
    const auto saver = make_saver(roots.back(), options);
    std::vector<std::shared_ptr<PendingSave>> saves;
    std::vector<Arrays> saved;
    for (int64_t step = 1; step <= 6; ++step) {
      saved.push_back(random_arrays(random, 3 << 20));
      FakeDevice device(saved.back(), [&](const std::string&) { return random() % 2 == 0; });
      const bool from_device = random() % 2 == 0;
      RankTensors tensors = whole_tensors(saved.back());
      const auto save = from_device ? saver->save(step, device.given(), "{}", "null", {}, {}, device.fill())
                                    : saver->save(step, tensors.tensors(), "{}", "null");
      ASSERT_TRUE(save) << explain(save);
      (*save)->filled({});
      saves.push_back(*save);
    }
    for (const auto& save : saves) EXPECT_OK(save->wait());
    for (int64_t step = 1; step <= 6; ++step) {
      for (const Location& root : roots) EXPECT_OK(load_and_compare(root, step, saved[static_cast<size_t>(step - 1)]));
    }
    EXPECT_LE(saver->peak_memory_bytes(), memory);
    EXPECT_GT(saver->peak_memory_bytes(), 0);
  }
  EXPECT_EQ(MemoryBudget::process()->reserved_bytes(), before);
}

TEST(SaverMemory, TheProcessHoldsNoMoreThanTheCapEither) {
  for (const int64_t memory : {64 << 10, 256 << 10, 1 << 20}) {
    std::vector<std::shared_ptr<CountingStorage>> storages;
    std::vector<Location> roots;
    for (const char* const name : {"near", "mid", "far"}) {
      storages.push_back(std::make_shared<CountingStorage>(make_memory_storage(name)));
      roots.push_back(root_of(storages.back(), name));
    }
    const int64_t before = MemoryBudget::process()->reserved_bytes();
    const auto saver =
        make_saver(roots[2], {.memory_bytes = memory, .tiers = {{.root = roots[0]}, {.root = roots[1]}}});
    Arrays arrays = arrays_of(1);
    for (int64_t step = 1; step <= 8; ++step) {
      arrays["large"] = make_array(formats::Dtype::kU8, {step * 150'000}, 1);
      EXPECT_OK(save_and_wait(*saver, step, arrays));
    }
    for (const auto& storage : storages) {
      EXPECT_GT(storage->most() - before, 0);
      EXPECT_LE(storage->most() - before, saver->peak_memory_bytes()) << "memory that is not counted";
    }
    EXPECT_LE(saver->peak_memory_bytes(), memory);
  }
}

TEST(SaverMemory, IsSharedOutAmongTheRanksOfANode) {
  const char* const name = "LOCAL_WORLD_SIZE";
  ASSERT_EQ(::setenv(name, "4", 1), 0);
  Arrays arrays = arrays_of(1);
  arrays["large"] = make_array(formats::Dtype::kU8, {300'000}, 1);
  const Location root = memory_root();
  {
    const auto saver = make_saver(root, {.memory_bytes = 1 << 20});
    EXPECT_OK(save_and_wait(*saver, 1, arrays));
    EXPECT_EQ(saver->peak_memory_bytes(), 256 << 10);
  }
  ::unsetenv(name);
  const auto saver = make_saver(root, {.attempt = "r0001-test", .memory_bytes = 1 << 20});
  EXPECT_OK(save_and_wait(*saver, 2, arrays));
  EXPECT_GT(saver->peak_memory_bytes(), 256 << 10);
  for (int64_t step : {1, 2}) EXPECT_OK(load_and_compare(root, step, arrays));
}

TEST(SaverMemory, WhatChangedNotIsReferredToFromADeviceToo) {
  const Location root = memory_root();
  const auto saver = make_saver(root, {.memory_bytes = 16 << 10, .refer_unchanged = true});
  for (int64_t step = 1; step <= 3; ++step) {
    FakeDevice device(adapter_arrays(step));
    const auto save = saver->save(step, device.given(), "{}", "null", {}, {}, device.fill());
    ASSERT_TRUE(save) << explain(save);
    device.scribble();
    EXPECT_OK((*save)->wait());
  }
  EXPECT_EQ(saver->referred_bytes(), 2 * kAdapterBaseBytes);
  EXPECT_LE(saver->peak_memory_bytes(), 16 << 10);
  for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(load_and_compare(root, step, adapter_arrays(step)));
}

TEST(SaverMemory, ADeviceThatFailsFailsTheSaveOnly) {
  for (int at = 1; at < 12; ++at) {
    const Location root = memory_root();
    const auto saver = make_saver(root, {.memory_bytes = 8 << 10});
    FakeDevice device(adapter_arrays(1));
    device.fail_at(at);
    const auto save = saver->save(1, device.given(), "{}", "null", {}, {}, device.fill());
    ASSERT_TRUE(save) << explain(save);
    const Status status = (*save)->wait();
    EXPECT_CODE(status, ErrorCode::kInternal);
    EXPECT_THAT(status.error().to_string(), HasSubstr("the device is lost"));
    EXPECT_OK(save_and_wait(*saver, 2, adapter_arrays(2)));
    EXPECT_THAT(committed_steps(root), ElementsAre(2));
  }
}

// A root, and a nearer tier whose writes hang.
struct HangingTier {
  static constexpr int64_t kCap = 256 << 10;

  HangingTier() { plan->add({.call = FaultCall::kWrite, .count = FaultRule::kForever, .before = hang.hook()}); }
  // The threads that were left let go of the tier soon after the hang; the process must not end before.
  ~HangingTier() {
    release();
    const std::weak_ptr<Storage> left = std::exchange(near, {}).storage;
    for (int i = 0; i < 1000 && !left.expired(); ++i) std::this_thread::sleep_for(milliseconds(5));
  }
  std::unique_ptr<Saver> saver() const {
    return make_saver(root, {.memory_bytes = kCap, .tiers = {{.root = near}}, .tier_timeout = milliseconds(300)});
  }
  void release() {
    hang.release();
    plan->clear();
  }
  const std::shared_ptr<FaultPlan> plan = std::make_shared<FaultPlan>();
  Hang hang;
  const Location root = memory_root();
  Location near = root_of(make_fault_storage(make_memory_storage("near"), plan), "near");
};

// The kernel may still read what a save holds that hangs: it counts, and the next ones have the rest.
TEST(SaverMemory, OfASaveThatHangsCounts) {
  for (const bool is_larger : {false, true}) {
    HangingTier tier;
    auto saver = tier.saver();
    Arrays arrays = arrays_of(1);
    // As an image it takes most of the memory; else it goes through its share.
    arrays["large"] = make_array(formats::Dtype::kU8, {is_larger ? 300'000 : 150'000}, 1);
    for (int64_t step = 1; step <= 3; ++step) {
      const auto save = saver->save(step, whole_tensors(arrays).tensors(), "{}", "null");
      ASSERT_TRUE(save) << explain(save);
      EXPECT_FALSE((*save)->wait({}, 0));
      EXPECT_OK((*save)->wait({}, 1));
    }
    EXPECT_LE(saver->peak_memory_bytes(), HangingTier::kCap);
    for (int64_t step = 1; step <= 3; ++step) EXPECT_OK(load_and_compare(tier.root, step, arrays));
  }
}

TEST(SaverMemory, NothingLeftIsSaid) {
  HangingTier tier;
  Arrays arrays = arrays_of(1);
  arrays["large"] = make_array(formats::Dtype::kU8, {187 << 10}, 1);  // its image has all pages of 3/4 of the cap
  const auto saver = tier.saver();
  const auto first = saver->save(1, whole_tensors(arrays).tensors(), "{}", "null");
  ASSERT_TRUE(first) << explain(first);
  EXPECT_OK((*first)->wait({}, 1));
  EXPECT_EQ(saver->peak_memory_bytes(), 192 << 10);
  const auto second = saver->save(2, whole_tensors(arrays).tensors(), "{}", "null");
  EXPECT_CODE(second, ErrorCode::kResourceExhausted);
  EXPECT_THAT(second.error().to_string(),
              AllOf(HasSubstr("step 2: memory_bytes allows"), HasSubstr("hang in storage")));
  tier.release();
  std::shared_ptr<PendingSave> third;
  for (int64_t i = 0; i < 3000 && !third; ++i) {
    std::this_thread::sleep_for(milliseconds(20));
    auto save = saver->save(3 + i, whole_tensors(arrays).tensors(), "{}", "null");
    if (save) third = *save;
  }
  ASSERT_TRUE(third);
  EXPECT_OK(third->wait({}, 1));
}

TEST(SaverMemory, AServiceWhosePartsDoNotFitSaysSo) {
  const auto service = std::make_shared<PartsService>();
  service->part_bytes = 64 << 10;
  const Location root = root_of(make_parts_storage(service));
  const auto saver = make_saver(root, {.memory_bytes = 32 << 10});
  Arrays arrays = arrays_of(1);
  arrays["large"] = make_array(formats::Dtype::kU8, {300'000}, 1);
  const auto save = saver->save(1, whole_tensors(arrays).tensors(), "{}", "null");
  ASSERT_TRUE(save) << explain(save);
  const Status status = (*save)->wait();
  EXPECT_CODE(status, ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.error().to_string(), HasSubstr("a write takes"));
}

}  // namespace
}  // namespace millrace::checkpoint
