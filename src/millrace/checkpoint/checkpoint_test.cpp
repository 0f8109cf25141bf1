// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/text/units.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/storage/testing/parts_storage.h"

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

constexpr std::chrono::sys_time<std::chrono::nanoseconds> kNow{std::chrono::hours(1000)};

// Steps 100, 150 ... 300 of 10 bytes, an hour apart, the last one just now.
std::vector<StepInfo> five_steps(std::initializer_list<double> losses = {}) {
  std::vector<StepInfo> steps;
  for (int64_t i = 0; i < 5; ++i) {
    StepInfo& info = steps.emplace_back();
    info = {.step = 100 + 50 * i, .bytes = 10, .committed = kNow - std::chrono::hours(4 - i)};
    if (i < std::ssize(losses)) info.metrics["loss"] = *(losses.begin() + i);
  }
  return steps;
}

std::vector<int64_t> removed(const std::vector<StepInfo>& steps, const KeepRules& rules) {
  const auto verdicts = judge_steps(steps, rules, kNow);
  std::vector<int64_t> gone;
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_FALSE(rules != KeepRules{} && !verdicts[i].stays && verdicts[i].why.empty());
    if (!verdicts[i].stays) gone.push_back(steps[i].step);
  }
  return gone;
}

TEST(Rules, TheLastAndEveryNth) {
  const auto steps = five_steps();
  EXPECT_THAT(removed(steps, {}), ElementsAre());
  EXPECT_THAT(removed(steps, {.every = 100}), ElementsAre()) << "nothing goes without a rule that lets it go";
  EXPECT_THAT(removed(steps, {.last = 1}), ElementsAre(100, 150, 200, 250));
  EXPECT_THAT(removed(steps, {.last = 2, .every = 100}), ElementsAre(150));
  EXPECT_THAT(removed(steps, {.last = 9}), ElementsAre());
  EXPECT_THAT(removed({}, {.last = 1}), ElementsAre());
}

TEST(Rules, TheBestByAMetricAndTheNewest) {
  const auto steps = five_steps({3, 1, 2, 1, 4});
  EXPECT_THAT(removed(steps, {.best = 1, .monitor = "loss"}), ElementsAre(100, 150, 200)) << "the newer of two equals";
  EXPECT_THAT(removed(steps, {.best = 2, .monitor = "loss"}), ElementsAre(100, 200));
  EXPECT_THAT(removed(steps, {.best = 2, .monitor = "loss", .higher_is_better = true}), ElementsAre(150, 200, 250));
  EXPECT_THAT(removed(steps, {.best = 2, .monitor = "other"}), ElementsAre(100, 150, 200, 250));
  EXPECT_THAT(removed(steps, {.last = 2, .best = 1, .monitor = "loss"}), ElementsAre(100, 150, 200));
  EXPECT_THAT(judge_steps(steps, {.best = 1, .monitor = "loss"}, kNow)[3].why, "best 1 by loss: 1");
}

TEST(Rules, TheYoung) {
  using std::chrono::minutes;
  EXPECT_THAT(removed(five_steps(), {.young = minutes(90)}), ElementsAre(100, 150, 200));
  EXPECT_THAT(removed(five_steps(), {.last = 3, .young = minutes(90)}), ElementsAre(100, 150));
  auto old = five_steps();
  for (StepInfo& info : old) info.committed -= std::chrono::hours(99);
  EXPECT_THAT(removed(old, {.young = minutes(90)}), ElementsAre(100, 150, 200, 250)) << "the newest stays";
}

TEST(Rules, WithinAQuota) {
  const auto steps = five_steps({3, 1, 2, 5, 4});
  EXPECT_THAT(removed(steps, {.quota_bytes = 50}), ElementsAre());
  EXPECT_THAT(removed(steps, {.quota_bytes = 49}), ElementsAre(100));
  EXPECT_THAT(removed(steps, {.quota_bytes = 1}), ElementsAre(100, 150, 200, 250)) << "never the newest";
  EXPECT_THAT(removed(steps, {.every = 100, .quota_bytes = 25}), ElementsAre(100, 150, 250));
  EXPECT_THAT(removed(steps, {.last = 4, .best = 2, .monitor = "loss", .quota_bytes = 30}), ElementsAre(100, 250));
  EXPECT_THAT(removed(steps, {.last = 4, .best = 2, .monitor = "loss", .quota_bytes = 20}), ElementsAre(100, 200, 250))
      << "of the best the worst goes first";
}

TEST(Rules, ADamagedStepStaysAndCountsForNone) {
  auto steps = five_steps({1, 2, 3, 4, 5});
  steps[4].damage = Error(ErrorCode::kCorruption, "damage");
  EXPECT_THAT(removed(steps, {.last = 1}), ElementsAre(100, 150, 200));
  EXPECT_THAT(removed(steps, {.quota_bytes = 1}), ElementsAre(100, 150, 200));
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

// AdamW keeps a `step` of 4 bytes for each parameter, which puts the tensors behind it at odd places.
Arrays adam_arrays() {
  Arrays arrays;
  for (int i = 0; i < 9; ++i) {
    const std::string name = "optim.state." + std::to_string(i);
    arrays[name + ".step"] = make_array(Dtype::kF32, {}, static_cast<uint64_t>(i));
    arrays[name + ".exp_avg"] = make_array(Dtype::kF64, {350'001}, static_cast<uint64_t>(i) + 100);
  }
  return arrays;
}

TEST(Saver, WritesWholePagesWhateverTheTensorsBorders) {
  const auto watched = std::make_shared<WatchedStorage>(make_memory_storage("test"));
  const Location root = root_of(watched);
  const Arrays arrays = adam_arrays();
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  const auto writes = watched->writes();
  ASSERT_GT(writes.size(), 2U);
  int64_t end = 0;
  for (const auto& write : writes) {
    EXPECT_EQ(write.offset, end);
    EXPECT_TRUE(write.in_pages);
    EXPECT_EQ(write.offset % 4096, 0);
    end += write.size;
    EXPECT_TRUE(write.size % 4096 == 0 || &write == &writes.back());
  }
  const auto info = list_steps(root).value().front();
  EXPECT_EQ(end, info.bytes) << "the file was submitted once, and all of it";
  EXPECT_OK(load_and_compare(root, 1, arrays));
}

TEST(Saver, SendsWholePartsToAService) {
  const auto service = std::make_shared<PartsService>();
  const auto watched = std::make_shared<WatchedStorage>(make_parts_storage(service));
  const Location root = root_of(watched);
  const Arrays arrays = adam_arrays();
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  const auto writes = watched->writes();
  ASSERT_GT(writes.size(), 2U);
  for (const auto& write : writes) {
    EXPECT_TRUE(write.size == writes.front().size || &write == &writes.back());
    EXPECT_EQ(write.offset % writes.front().size, 0);
  }
  EXPECT_OK(load_and_compare(root, 1, arrays));
}

TEST(Saver, AWriteThatFailsEndsTheSave) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  const auto saver = make_saver(root);
  const Arrays arrays = adam_arrays();
  for (const int64_t at : {0, 1, 3}) {
    plan->clear();
    plan->add({.call = FaultCall::kWrite, .key_part = "rank-", .skip = at, .error = errno_error(EIO, "write it")});
    const Status failed = save_and_wait(*saver, at + 1, arrays);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().sys_errno(), EIO);
  }
  EXPECT_OK(save_and_wait(*saver, 9, arrays));
  EXPECT_THAT(committed_steps(root), ElementsAre(9));
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

TEST(Saver, AReservedImageIsTouchedBeforeTheFirstSave) {
  const Location root = memory_root();
  const RankTensors tensors = whole_tensors({{"w", {Dtype::kF64, {4 << 20}, std::string(32 << 20, 'w')}}});
  const int64_t before = MemoryBudget::process()->reserved_bytes();
  const auto saver = make_saver(root, {.reserve_bytes = (32 << 20) + 8192});
  EXPECT_EQ(MemoryBudget::process()->reserved_bytes(), before + (32 << 20) + 8192);
  const auto resident = [] {
    std::ifstream file("/proc/self/statm");
    int64_t size = 0, pages = 0;
    file >> size >> pages;
    return pages;
  };
  const int64_t pages = resident();
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (resident() < pages + 7'000 && Clock::now() < deadline) std::this_thread::yield();
  const auto save = saver->save(1, tensors.tensors(), "{}", "null");
  ASSERT_TRUE(save) << explain(save);
  EXPECT_OK((*save)->wait());
  EXPECT_EQ(MemoryBudget::process()->reserved_bytes(), before + (32 << 20) + 8192) << "the save took no other memory";
  EXPECT_CODE(Saver::create(root, {.attempt = "r0-a", .reserve_bytes = INT64_MAX / 4}), ErrorCode::kResourceExhausted);
}

// Through memory that is smaller than the file: the same bytes, and the tensors may change once save() has returned.
TEST(Saver, ASaveLargerThanItsMemoryGoesThroughIt) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < rounds(30); ++i) {
    Arrays arrays = small_arrays(random());
    for (int more = 0; more < 4; ++more) {
      const auto bytes = static_cast<int64_t>(random() % (more == 0 ? 12 << 20 : 100'000));
      arrays["more " + std::to_string(more)] = make_array(Dtype::kU8, {bytes}, random());
    }
    const std::string name = RankPlaces::of_new(1).file(0);
    const auto file_of = [&](int64_t memory_bytes) {
      const Location root = memory_root();
      const auto saver = make_saver(root, {.memory_bytes = memory_bytes});
      RankTensors tensors = whole_tensors(arrays);
      const auto save = saver->save(1, tensors.tensors(), "{}", "null");
      EXPECT_TRUE(save) << explain(save);
      tensors.scribble();
      EXPECT_OK((*save)->wait());
      EXPECT_OK(load_and_compare(root, 1, arrays));
      EXPECT_OK((*Checkpoint::open(root, 1))->verify(1));
      const Location file = step_location(root, 1).child("r0000-test").child(name);
      return *read_object(*file.storage, file.key, 64 << 20);
    };
    const int64_t memory = 4096 << random() % 12;
    EXPECT_TRUE(file_of(0) == file_of(memory)) << "through " << memory;
  }
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
  EXPECT_OK(save_and_wait(*saver, 3, arrays));
  EXPECT_OK(load_and_compare(root, 3, arrays));
}

TEST(Saver, WrongArgumentsAreRefused) {
  const Location root = memory_root();
  EXPECT_CODE(Saver::create(root, {.attempt = "one"}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Saver::create(root, {.attempt = "r0-a", .rank = 2, .world_size = 2}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Saver::create(root, {.attempt = "r0-a", .keep = {.last = -1}}), ErrorCode::kInvalidArgument);
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
class SmallDisk final : public WrappedStorage {
 public:
  SmallDisk(std::shared_ptr<Storage> inner, int64_t free) : WrappedStorage(std::move(inner)), free_(free) {}
  Capabilities capabilities() const override {
    Capabilities can = WrappedStorage::capabilities();
    can.free_space = true;
    return can;
  }
  Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    ++writes;
    return WrappedStorage::open_write(key, options);
  }
  Result<FreeSpace> free_space(std::string_view) override { return FreeSpace{free_}; }

  int writes = 0;

 private:
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
    const auto ended = (*save)->wait_until(Clock::now() + std::chrono::seconds(60));
    const bool told = !refused && refused.error().code() == ErrorCode::kUnsupported && !ended &&
                      ended.error().code() == ErrorCode::kUnsupported &&
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

double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

TEST(Saver, ManySmallTensorsStopTrainingShortly) {
  Arrays arrays;
  for (int i = 0; i < 20'000; ++i)
    arrays["model.layers." + std::to_string(i) + ".weight"] = {Dtype::kF32, {4, 8}, std::string(128, 'x')};
  const Location root = memory_root();
  const auto saver = make_saver(root);
  const RankTensors tensors = whole_tensors(arrays);
  for (int64_t step = 1; step <= 3; ++step) {
    // Processor time of this thread: what others do on the machine does not count.
    const double start = thread_cpu_s();
    const auto save = saver->save(step, tensors.tensors(), "{}", "null");
    const double stall = thread_cpu_s() - start;
    ASSERT_TRUE(save) << explain(save);
    EXPECT_OK((*save)->wait());
    RecordProperty("stall_ms_" + std::to_string(step), std::to_string(stall * 1e3));
    EXPECT_LT(stall, 2.0) << "generous: the build may be instrumented";
  }
  EXPECT_OK(load_and_compare(root, 3, arrays));
}

}  // namespace
}  // namespace millrace::checkpoint
