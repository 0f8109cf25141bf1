// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <future>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/units.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Rules, WritersAreBalancedAndTheSameForAll) {
  const std::vector<int64_t> bytes{10, 70, 30, 30, 20, 0, 20};
  const auto writers = assign_writers(bytes, 3);
  std::vector<int64_t> load(3);
  for (size_t i = 0; i < bytes.size(); ++i) load.at(static_cast<size_t>(writers[i])) += bytes[i];
  EXPECT_EQ(*std::max_element(load.begin(), load.end()), 70);
  EXPECT_EQ(writers, assign_writers(bytes, 3));
  EXPECT_THAT(assign_writers(bytes, 1), testing::Each(0));
}

TEST(Rules, StepsToRemove) {
  const std::vector<int64_t> steps{100, 150, 200, 250, 300};
  EXPECT_THAT(steps_to_remove(steps, 0, 0), ElementsAre());
  EXPECT_THAT(steps_to_remove(steps, 1, 0), ElementsAre(100, 150, 200, 250));
  EXPECT_THAT(steps_to_remove(steps, 2, 100), ElementsAre(150));
  EXPECT_THAT(steps_to_remove(steps, 9, 0), ElementsAre());
  EXPECT_THAT(steps_to_remove({}, 1, 0), ElementsAre());
}

TEST(Saver, WhatIsSavedIsLoaded) {
  const TempDir directory;
  for (const Location& root : {memory_root(), local_root(directory.path()), root_of(make_memory_storage("x"), "")}) {
    const Arrays arrays = small_arrays(1);
    const auto saver = make_saver(root);
    const std::string state = R"({"step": 7, "lr": 1e-05, "big": 340282366920938463463374607431768211455, "é": NaN})";
    const RankTensors tensors = whole_tensors(arrays);
    const auto save = saver->save(7, tensors.tensors(), state, "[1]");
    ASSERT_TRUE(save) << explain(save);
    EXPECT_EQ((*save)->step(), 7);
    EXPECT_OK((*save)->wait());
    EXPECT_TRUE((*save)->done());
    EXPECT_OK((*save)->wait()) << "again";

    EXPECT_OK(load_and_compare(root, 7, arrays));
    const auto checkpoint = Checkpoint::open(root, 7);
    ASSERT_TRUE(checkpoint) << explain(checkpoint);
    EXPECT_EQ((*checkpoint)->state(), state) << "byte for byte";
    EXPECT_EQ((*checkpoint)->rank_state(0).value(), "[1]");
    EXPECT_EQ((*checkpoint)->rank_state(1).value(), std::nullopt);
    EXPECT_EQ((*checkpoint)->tensors().size(), arrays.size());
    ASSERT_NE((*checkpoint)->find("layer.0.weight"), nullptr);
    EXPECT_EQ((*checkpoint)->find("layer.0.weight")->dtype, Dtype::kBF16);
    EXPECT_EQ((*checkpoint)->find("layer.0.weight")->bytes, 96);
    EXPECT_EQ((*checkpoint)->find("layer"), nullptr);
    EXPECT_OK((*checkpoint)->verify());

    const auto steps = list_steps(root);
    ASSERT_TRUE(steps && steps->size() == 1);
    EXPECT_EQ(steps->front().attempt, "r0000-test");
    EXPECT_EQ(steps->front().bytes, (*save)->bytes());
    EXPECT_EQ(steps->front().tensors, 5);
    EXPECT_LT(std::chrono::system_clock::now() - steps->front().committed, std::chrono::minutes(10));
    EXPECT_EQ(read_object(*root.storage, root.child("latest").key).value(), "step-000000000007\n");
    EXPECT_EQ(saver->metrics().count(Metric::kSaves), 1);
    EXPECT_EQ(saver->metrics().count(Metric::kWriteBytes), (*save)->bytes());
    EXPECT_GT(saver->metrics().seconds(Metric::kStallSeconds), 0);
  }
}

TEST(Saver, NothingToSaveIsACheckpointToo) {
  const Location root = memory_root();
  EXPECT_OK(save_and_wait(*make_saver(root), 0, {}, "state"));
  EXPECT_EQ(Checkpoint::open(root, 0).value()->state(), "state");
  EXPECT_OK(Checkpoint::open(root, 0).value()->verify());
}

TEST(Saver, TheFileIsSafetensorsWithAlignedData) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  const Arrays arrays = small_arrays(3);
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  const auto file =
      root.storage->open_read(root.child("step-000000000001/r0000-test/rank-00000-of-00001.safetensors").key);
  ASSERT_TRUE(file) << explain(file);
  const auto header = formats::parse_safetensors_header(**file);
  ASSERT_TRUE(header) << explain(header);
  EXPECT_EQ(header->data_offset % 4096, 0);
  for (const auto& [name, array] : arrays) {
    const auto* info = header->find(name);
    ASSERT_NE(info, nullptr) << name;
    std::string bytes(static_cast<size_t>(info->end - info->begin), '\0');
    EXPECT_OK((*file)->read_at(header->data_offset + info->begin, std::as_writable_bytes(std::span(bytes))));
    EXPECT_EQ(bytes, array.bytes) << name;
  }
}

TEST(Saver, TheStateMayChangeOnceSaveReturns) {
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kOpenWrite, .delay = std::chrono::milliseconds(50)});
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  Arrays arrays = small_arrays(1);
  arrays["big"] = make_array(Dtype::kF32, {1'500'000}, 9);
  const auto saver = make_saver(root);
  RankTensors tensors = whole_tensors(arrays);
  const auto save = saver->save(1, tensors.tensors(), "{}", "null");
  tensors.scribble();
  ASSERT_TRUE(save) << explain(save);
  EXPECT_FALSE((*save)->done());
  EXPECT_OK((*save)->wait());
  EXPECT_OK(load_and_compare(root, 1, arrays));
}

TEST(Saver, TheSecondSaveTouchesNoNewMemory) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  const RankTensors tensors = whole_tensors({{"w", {Dtype::kU8, {32 << 20}, std::string(32 << 20, 'w')}}});
  const auto saver = make_saver(root);
  const auto faults_of_save = [&](int64_t step) {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    const auto save = saver->save(step, tensors.tensors(), "{}", "null");
    getrusage(RUSAGE_SELF, &after);
    EXPECT_TRUE(save) << explain(save);
    EXPECT_OK((*save)->wait());
    return after.ru_minflt - before.ru_minflt;
  };
  faults_of_save(1);
  const int64_t reserved = MemoryBudget::process()->reserved_bytes();
  EXPECT_LT(faults_of_save(2), 500) << "of the 8,192 pages of the tensor";
  EXPECT_EQ(MemoryBudget::process()->reserved_bytes(), reserved);
  EXPECT_LT(saver->metrics().seconds(Metric::kStallSeconds), 60);
}

TEST(Saver, AStateThatGrowsGetsMoreMemory) {
  const Location root = memory_root();
  const auto saver = make_saver(root, {.memory_bytes = 1 << 20});
  Arrays arrays = small_arrays(1);
  EXPECT_OK(save_and_wait(*saver, 1, arrays));
  arrays["more"] = make_array(Dtype::kU8, {500'000}, 5);
  EXPECT_OK(save_and_wait(*saver, 2, arrays));
  EXPECT_OK(load_and_compare(root, 2, arrays));
  arrays["more"] = make_array(Dtype::kU8, {2'000'000}, 5);
  const auto refused = save_and_wait(*saver, 3, arrays);
  EXPECT_CODE(refused, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("memory_bytes allows 1.05 MB"));
  arrays.erase("more");
  EXPECT_OK(save_and_wait(*saver, 3, arrays));
  EXPECT_OK(load_and_compare(root, 3, arrays));
}

TEST(Saver, WrongArgumentsAreRefused) {
  const Location root = memory_root();
  EXPECT_CODE(Saver::create(root, {.attempt = "one"}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Saver::create(root, {.attempt = "r0-a", .rank = 2, .world_size = 2}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Saver::create(root, {.attempt = "r0-a", .keep_last = -1}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Saver::create({}, {.attempt = "r0-a"}), ErrorCode::kInvalidArgument);

  const auto saver = make_saver(root);
  const std::byte data[16] = {};
  const auto save = [&](int64_t step, std::vector<TensorToSave> tensors, std::string state = "{}") {
    return saver->save(step, tensors, std::move(state), "null");
  };
  const TensorToSave good{"w", Dtype::kF32, {2, 2}, {{0, 0}, {2, 2}}, data};
  EXPECT_CODE(save(-1, {good}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(save(1, {good, good}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(save(1, {{"", Dtype::kF32, {}, {}, data}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(save(1, {{"\xFF", Dtype::kF32, {}, {}, data}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(save(1, {{"w", Dtype::kF32, {2, 2}, {{0, 1}, {2, 2}}, data}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(save(1, {{"w", Dtype::kF32, {2, 2}, {{0}, {2}}, data}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(save(1, {{"w", Dtype::kF32, {2, 2}, {{0, 0}, {2, 2}}, nullptr}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(save(1, {good}, "\xFF"), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(save(5, {good}));
  EXPECT_CODE(save(5, {good}), ErrorCode::kInvalidArgument);
  EXPECT_OK(save(6, {good}));
}

TEST(Saver, AFailureBehindTheBackIsTheNextSavesWhenNobodyWaited) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  const auto saver = make_saver(root);
  const RankTensors tensors = whole_tensors(small_arrays(1));
  plan->add({.call = FaultCall::kWrite, .key_part = "rank-", .error = Error(ErrorCode::kUnavailable, "no answer")});
  ASSERT_TRUE(saver->save(1, tensors.tensors(), "{}", "null"));
  const auto told = saver->save(2, tensors.tensors(), "{}", "null");
  EXPECT_CODE(told, ErrorCode::kUnavailable);
  EXPECT_THAT(told.error().to_string(), HasSubstr("the save of step 1 failed"));
  EXPECT_OK(save_and_wait(*saver, 2, small_arrays(1)));

  plan->add({.call = FaultCall::kWrite, .key_part = "rank-", .error = Error(ErrorCode::kUnavailable, "no answer")});
  EXPECT_CODE(save_and_wait(*saver, 3, small_arrays(1)), ErrorCode::kUnavailable);
  EXPECT_OK(save_and_wait(*saver, 4, small_arrays(1))) << "who waited knows it";
  EXPECT_THAT(committed_steps(root), ElementsAre(2, 4));
}

// A storage with a chosen amount of room.
class SmallDisk final : public Storage {
 public:
  SmallDisk(std::shared_ptr<Storage> inner, int64_t free) : inner_(std::move(inner)), free_(free) {}
  std::string_view name() const override { return inner_->name(); }
  Capabilities capabilities() const override {
    Capabilities can = inner_->capabilities();
    can.free_space = true;
    return can;
  }
  Result<std::unique_ptr<RandomReader>> open_read(std::string_view key, const OpenOptions& options) override {
    return inner_->open_read(key, options);
  }
  Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    ++writes;
    return inner_->open_write(key, options);
  }
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    inner_->submit(operations, queue);
  }
  Result<ObjectInfo> stat(std::string_view key) override { return inner_->stat(key); }
  Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    return inner_->list(prefix, options);
  }
  Status remove(std::span<const std::string> keys) override { return inner_->remove(keys); }
  Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    return inner_->list_uploads(prefix);
  }
  Status abort_uploads(std::span<const ObjectInfo> uploads) override { return inner_->abort_uploads(uploads); }
  Status make_durable(std::span<const std::string> keys) override { return inner_->make_durable(keys); }
  Result<FreeSpace> free_space(std::string_view) override { return FreeSpace{free_}; }

  int writes = 0;

 private:
  const std::shared_ptr<Storage> inner_;
  const int64_t free_;
};

TEST(Saver, NoRoomIsSaidBeforeAByteIsWritten) {
  const auto disk = std::make_shared<SmallDisk>(make_memory_storage("test"), 1'000'000);
  const Location root = root_of(disk);
  const auto saver = make_saver(root);
  const RankTensors tensors = whole_tensors({{"w", make_array(Dtype::kU8, {1'000'000}, 1)}});
  const auto refused = saver->save(1, tensors.tensors(), "{}", "null");
  EXPECT_CODE(refused, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("step 1 in test://run: it needs 1.00 MB, and 1.00 MB are free"));
  EXPECT_EQ(disk->writes, 0);
  EXPECT_OK(save_and_wait(*saver, 1, small_arrays(1)));
}

TEST(Saver, WaitingCanBeStoppedAndTheSaveGoesOn) {
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kOpenWrite, .delay = std::chrono::milliseconds(100)});
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  const auto saver = make_saver(root);
  const RankTensors tensors = whole_tensors(small_arrays(1));
  const auto save = saver->save(1, tensors.tensors(), "{}", "null");
  std::stop_source stop;
  auto waiter = std::async(std::launch::async, [&] { return (*save)->wait(stop.get_token()); });
  stop.request_stop();
  EXPECT_CODE(waiter.get(), ErrorCode::kCancelled);
  EXPECT_OK((*save)->wait());
}

TEST(Saver, DroppingItWaitsForTheSave) {
  const Location root = memory_root();
  {
    const auto saver = make_saver(root);
    const RankTensors tensors = whole_tensors(small_arrays(1));
    ASSERT_TRUE(saver->save(1, tensors.tensors(), "{}", "null"));
  }
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
}

TEST(Saver, DroppingItWaitsNoLongerThanTheTimeout) {
  const Location root = memory_root();
  const auto start = Clock::now();
  {
    const auto saver = make_saver(root, {.world_size = 2, .commit_timeout = std::chrono::milliseconds(50)});
    const RankTensors tensors = whole_tensors(small_arrays(1));
    ASSERT_TRUE(saver->save(1, tensors.tensors(), "{}", "null"));
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  EXPECT_THAT(committed_steps(root), ElementsAre());
}

TEST(Saver, AChildAfterForkIsToldAndNeverHangs) {
  const TempDir directory;
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.call = FaultCall::kOpenWrite, .delay = std::chrono::milliseconds(200)});
  const Location root = root_of(make_fault_storage(open_local_storage(directory.path()).value(), plan));
  auto saver = make_saver(root);
  const RankTensors tensors = whole_tensors(small_arrays(1));
  const auto save = saver->save(1, tensors.tensors(), "{}", "null");
  ASSERT_TRUE(save) << explain(save);
  EXPECT_TRUE(succeeds_in_child([&] {
    ::alarm(10);
    const auto refused = saver->save(2, tensors.tensors(), "{}", "null");
    const bool told = !refused && refused.error().code() == ErrorCode::kUnsupported &&
                      (*save)->wait().error().code() == ErrorCode::kUnsupported && !(*save)->done();
    saver.reset();
    SaverOptions options;
    options.attempt = "r0001-child";
    const Location own = root_of(open_local_storage(directory.path()).value(), "child");
    return told && save_and_wait(*Saver::create(own, options).value(), 1, small_arrays(2)).has_value();
  }));
  EXPECT_OK((*save)->wait());
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
  EXPECT_OK(load_and_compare(root_of(root.storage, "child"), 1, small_arrays(2)));
}

TEST(Saver, ManySmallTensorsStopTrainingShortly) {
  Arrays arrays;
  for (int i = 0; i < 20'000; ++i)
    arrays["model.layers." + std::to_string(i) + ".weight"] = {Dtype::kF32, {4, 8}, std::string(128, 'x')};
  const Location root = memory_root();
  const auto saver = make_saver(root);
  const RankTensors tensors = whole_tensors(arrays);
  for (int64_t step = 1; step <= 3; ++step) {
    const auto start = Clock::now();
    const auto save = saver->save(step, tensors.tensors(), "{}", "null");
    const auto stall = std::chrono::duration<double>(Clock::now() - start).count();
    ASSERT_TRUE(save) << explain(save);
    EXPECT_OK((*save)->wait());
    RecordProperty("stall_ms_" + std::to_string(step), std::to_string(stall * 1e3));
    EXPECT_LT(stall, 2.0) << "generous: the machine may be busy and the build instrumented";
  }
  EXPECT_OK(load_and_compare(root, 3, arrays));
}

}  // namespace
}  // namespace millrace::checkpoint
