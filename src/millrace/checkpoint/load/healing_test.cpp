// SPDX-License-Identifier: Apache-2.0
// Loads over tiers of which one is damaged or hangs: what it lacks comes from the next, and heal() writes it anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <random>

#include "millrace/checkpoint/tier_testing.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

void flip(const Location& tier, const std::string& key, std::mt19937_64& random) {
  std::string content = read_object(*tier.storage, key).value();
  if (content.empty()) return;
  const size_t from = random() % 2 == 0 || content.size() < 256 ? 0 : content.size() - 256;  // the header, or the data
  content[from + random() % (content.size() - from)] ^= static_cast<char>(1 << random() % 8);
  ASSERT_TRUE(write_object(*tier.storage, key, content));
}

TEST(Healing, FlipsAndSwapsInOneTierAreReadFromAnother) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  std::vector<std::string> keys = keys_below(tiers.plain[0]);
  std::erase(keys, "latest");
  const int count = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 10'000 : rounds(300);
  for (int i = 0; i < count; ++i) {
    const Location& tier = tiers.plain[random() % 2];
    const std::string key = tier.child(keys[random() % keys.size()]).key;
    const std::string before = read_object(*tier.storage, key).value();
    const std::string other = tier.child(keys[random() % keys.size()]).key;
    const std::string other_before = read_object(*tier.storage, other).value();
    const bool is_swap = random() % 4 == 0 && other_before != before;
    if (is_swap) {
      ASSERT_TRUE(write_object(*tier.storage, key, other_before));
      ASSERT_TRUE(write_object(*tier.storage, other, before));
    } else {
      flip(tier, key, random);
    }
    EXPECT_FALSE(load_and_compare(tier, 1, arrays_of(1))) << key << ": the damage is seen in the tier alone";
    EXPECT_OK(load_over(tiers.plain, 1)) << key << (is_swap ? " and " + other : "");
    ASSERT_TRUE(write_object(*tier.storage, key, before));
    if (is_swap) {
      ASSERT_TRUE(write_object(*tier.storage, other, other_before));
    }
  }
}

TEST(Healing, SaysWhichCopyWasDamagedAndWhichWasRead) {
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  const std::string key = tiers.plain[0].child("step-000000000001/r0000-test/rank-00000-of-00001.safetensors").key;
  std::string content = read_object(*tiers.storages[0], key).value();
  content.back() ^= 1;
  ASSERT_TRUE(write_object(*tiers.storages[0], key, content));
  Lines lines;
  EXPECT_OK(load_over(tiers.plain, 1));
  EXPECT_THAT(lines.text(), HasSubstr("mem://tier0/" + key + ": tensor"));
  EXPECT_THAT(lines.text(), HasSubstr("do not match their hash; this block of the file read from mem://tier1/t1/"));
}

TEST(Healing, WhatIsDamagedEverywhereIsAnError) {
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  for (const Location& tier : tiers.plain) {
    const std::string key = tier.child("step-000000000001/r0000-test/rank-00000-of-00001.safetensors").key;
    std::string content = read_object(*tier.storage, key).value();
    content.back() ^= 1;
    ASSERT_TRUE(write_object(*tier.storage, key, content));
  }
  EXPECT_CODE(load_over(tiers.plain, 1), ErrorCode::kCorruption);
}

// EIO, a missing file or step, another size. A far tier that does not answer is no damage of the step.
TEST(Healing, WhatCannotBeReadComesFromTheNextTier) {
  Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  for (const char* file : {"rank-", "part-", "manifest"}) {
    tiers.plans[0]->add({.call = FaultCall::kRead, .key_part = file, .error = errno_error(EIO, "read")});
    EXPECT_OK(load_over(tiers.faulty, 1)) << file;
    tiers.plans[0]->add({.call = FaultCall::kRead, .key_part = file, .error = errno_error(EIO, "read")});
    tiers.plans[1]->add({.call = FaultCall::kAny,
                         .key_part = file,
                         .count = FaultRule::kForever,
                         .error = Error(ErrorCode::kUnavailable, "no answer")});
    EXPECT_CODE(load_over(tiers.faulty, 1), ErrorCode::kUnavailable) << file;
    tiers.heal();
  }
  for (const std::string& key : keys_below(tiers.plain[0]))
    ASSERT_TRUE(tiers.storages[0]->remove(std::vector{tiers.plain[0].child(key).key}));
  EXPECT_OK(load_over(tiers.plain, 1)) << "a new node";
  EXPECT_CODE(load_over(tiers.plain, 2), ErrorCode::kNotFound);
}

TEST(Healing, TheNewestAttemptOfAllTiersCounts) {
  const Tiers tiers(2);
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[0], {.attempt = "r0000-a"}), 1, arrays_of(7)));
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[1], {.attempt = "r0001-b"}), 1, arrays_of(1)));
  EXPECT_OK(load_over(tiers.plain, 1));
}

// The nearest tier answers `skip` of its calls and then no more. The load ends, from the next tier.
TEST(HangingLoad, GoesOnFromTheNextTier) {
  const Arrays arrays = {{"a", make_array(formats::Dtype::kF32, {3 << 20}, 1)},
                         {"b", make_array(formats::Dtype::kF32, {5 << 20}, 2)},
                         {"c", make_array(formats::Dtype::kF32, {7}, 3)}};
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays) boxes[name] = box_of_all(array.shape);
  for (const FaultCall call : {FaultCall::kRead, FaultCall::kOpenRead}) {
    for (const int64_t skip : {0, 1, 3}) {
      SCOPED_TRACE(testing::Message() << "call " << static_cast<int>(call) << " after " << skip);
      Tiers tiers(2);
      Hang hang;
      EXPECT_OK(save_and_wait(*tiers.saver(), 1, arrays));
      auto opened = Checkpoint::open(tiers.faulty, 1, kPatience);
      ASSERT_TRUE(opened) << explain(opened);
      tiers.plans[0]->add({.call = call, .skip = skip, .count = FaultRule::kForever, .before = hang.hook()});
      Lines lines;
      EXPECT_OK(load_and_compare(**opened, arrays, boxes));
      if (tiers.plans[0]->hits() == 0) {
        EXPECT_EQ(call, FaultCall::kOpenRead) << "it has so many reads";
      } else {
        EXPECT_THAT(lines.text(), HasSubstr("answer"));
      }
      EXPECT_OK(load_and_compare(**opened, arrays, boxes)) << "again, while it hangs";
      EXPECT_EQ((*opened)->heal().value(), 0) << "a tier that hangs is not damaged";
      hang.release();
      opened->reset();
    }
  }
}

TEST(HangingLoad, IsATimeoutWhereNoOtherTierHasIt) {
  for (const size_t count : {1, 2}) {
    Tiers tiers(count);
    Hang hang;
    EXPECT_OK(start(*tiers.saver(), 1)->wait());
    const auto opened = Checkpoint::open(tiers.faulty, 1, kPatience).value();
    for (const auto& plan : tiers.plans)
      plan->add({.call = FaultCall::kRead, .key_part = "rank-", .count = FaultRule::kForever, .before = hang.hook()});
    std::map<std::string, Box> boxes;
    for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
    EXPECT_CODE(load_and_compare(*opened, arrays_of(1), boxes), ErrorCode::kTimeout);
    hang.release();
  }
}

// Both tiers are folders of this node, which share the threads of local I/O; the hung ones hold all of them.
TEST(HangingLoad, LeavesTheNextTierItsThreads) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto inner = make_memory_storage("node");
  const auto storage = make_fault_storage(inner, plan, 1);
  const std::vector<Location> tiers = {root_of(storage, "near"), root_of(storage, "far")};
  Hang hang;
  const auto saver = make_saver(tiers[1], {.tiers = {{.root = tiers[0]}}});
  EXPECT_OK(start(*saver, 1)->wait());
  const auto opened = Checkpoint::open(tiers, 1, kPatience).value();
  plan->add({.call = FaultCall::kRead, .key_part = "near/", .count = FaultRule::kForever, .before = hang.hook()});
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
  EXPECT_OK(load_and_compare(*opened, arrays_of(1), boxes));
  hang.release();
}

// A storage that takes its time, but goes on, is not given up.
TEST(HangingLoad, IsNotASlowOne) {
  Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  const auto opened = Checkpoint::open(tiers.faulty, 1, 2 * kPatience).value();
  tiers.plans[0]->add({.call = FaultCall::kRead, .count = FaultRule::kForever, .delay = kPatience / 3});
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
  Lines lines;
  EXPECT_OK(load_and_compare(*opened, arrays_of(1), boxes));
  EXPECT_THAT(lines.text(), testing::Not(HasSubstr("answered")));
}

// A stop is heard while storage hangs.
TEST(HangingLoad, CanBeStopped) {
  Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  const auto opened = Checkpoint::open(tiers.faulty, 1, milliseconds(600'000)).value();
  Hang hang;
  std::stop_source stop;
  tiers.plans[0]->add({.call = FaultCall::kRead, .key_part = "rank-", .before = [&, held = hang.hook()] {
                         stop.request_stop();
                         held();
                       }});
  const Arrays arrays = arrays_of(1);
  std::map<std::string, std::string> room;
  std::vector<TensorToLoad> targets;
  for (const auto& [name, array] : arrays) {
    room[name].resize(array.bytes.size() + 1);
    targets.push_back({name, box_of_all(array.shape), reinterpret_cast<std::byte*>(room[name].data())});
  }
  EXPECT_CODE(opened->load(targets, 1, stop.get_token()), ErrorCode::kCancelled);
  hang.release();
}

TEST(Healing, WritesDamagedManifestsAnew) {
  for (const char* content : {"", "{}", "what else"}) {
    const Tiers tiers;
    EXPECT_OK(start(*tiers.saver(), 1)->wait());
    const Location manifest = tiers.plain[0].child("step-000000000001/manifest.json");
    const Location other = tiers.plain[1].child("step-000000000001/manifest.json");
    const std::string good = read_object(*other.storage, other.key).value();
    ASSERT_TRUE(write_object(*manifest.storage, manifest.key, content));
    const auto opened = Checkpoint::open(tiers.plain, 1).value();
    EXPECT_EQ(opened->heal().value(), 1);
    EXPECT_EQ(read_object(*manifest.storage, manifest.key).value(), good);
    EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(1));
    EXPECT_EQ(Checkpoint::open(tiers.plain, 1).value()->heal().value(), 0) << "once";
  }
}

// Both at once: the manifest goes first, for a part is only mended where its step is committed.
TEST(Healing, MendsAManifestAndAPart) {
  const Tiers tiers(2);
  EXPECT_OK(start(*tiers.saver(), 1)->wait());
  for (const char* name : {"manifest.json", "r0000-test/rank-00000-of-00001.safetensors"}) {
    const Location at = tiers.plain[0].child("step-000000000001").child(name);
    std::string content = read_object(*at.storage, at.key).value();
    content.back() ^= 1;
    ASSERT_TRUE(write_object(*at.storage, at.key, content));
  }
  const auto opened = Checkpoint::open(tiers.plain, 1).value();
  std::map<std::string, Box> boxes;
  for (const auto& [name, array] : arrays_of(1)) boxes[name] = box_of_all(array.shape);
  EXPECT_OK(load_and_compare(*opened, arrays_of(1), boxes));
  EXPECT_EQ(opened->heal().value(), 2);
  EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(1));
}

// The damaged manifest may be a newer attempt's, whose parts are there and are all that is left of it.
TEST(Healing, LeavesManifestsOfOtherAttempts) {
  const Tiers tiers(2);
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[0], {.attempt = "r0001-b"}), 1, arrays_of(1)));
  EXPECT_OK(save_and_wait(*make_saver(tiers.plain[1], {.attempt = "r0000-a"}), 1, arrays_of(1)));
  const Location manifest = tiers.plain[0].child("step-000000000001/manifest.json");
  ASSERT_TRUE(write_object(*manifest.storage, manifest.key, "{}"));
  const auto opened = Checkpoint::open(tiers.plain, 1).value();
  EXPECT_EQ(opened->info().attempt, "r0000-a");
  EXPECT_EQ(opened->heal().value(), 0);
  EXPECT_EQ(read_object(*manifest.storage, manifest.key).value(), "{}");
}

}  // namespace
}  // namespace millrace::checkpoint
