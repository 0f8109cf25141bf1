// SPDX-License-Identifier: Apache-2.0
// Checkpoints in tiers. Whatever happens to one tier, the others have the step, and a load over all of them gives what
// was saved or an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "millrace/checkpoint/tier_testing.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::checkpoint {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

TEST(Tiers, EachCommitsByItself) {
  const Tiers tiers;
  const auto saver = tiers.saver();
  const auto save = start(*saver, 1);
  EXPECT_OK(save->wait());
  ASSERT_EQ(save->tiers(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(save->state(i), TierState::kDurable);
    EXPECT_THAT(whole_steps(tiers.plain[i]), ElementsAre(1));
  }
  EXPECT_OK(load_over(tiers.plain, 1));
  EXPECT_EQ(saver->metrics().value(Metric::kSaves), 1);
}

// The far tier takes its time; the near one is durable meanwhile, and training goes on.
TEST(Tiers, ASlowTierHoldsNobodyUp) {
  const Tiers tiers(2);
  const auto saver = tiers.saver({.keep = {.last = 1}});
  tiers.plans[1]->add({.call = FaultCall::kOpenWrite, .key_part = "rank-", .delay = milliseconds(150)});
  const auto first = start(*saver, 1);
  EXPECT_OK(first->wait({}, 0));
  EXPECT_EQ(first->state(1), TierState::kPending);
  const auto second = start(*saver, 2);
  EXPECT_OK(second->wait({}, 0));
  EXPECT_EQ(first->state(1), TierState::kPending) << "step 2 did not wait for it";
  EXPECT_THAT(committed_steps(tiers.plain[0]), ElementsAre(1, 2)) << "the far tier still reads step 1";
  EXPECT_OK(wait_for_all(*first));
  EXPECT_OK(wait_for_all(*second));
  EXPECT_OK(wait_for_all(*start(*saver, 3)));
  EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(3));
  EXPECT_THAT(whole_steps(tiers.plain[1]), ElementsAre(3));
}

TEST(Tiers, HaveTheirOwnRetentionAndIntervals) {
  const Tiers tiers;
  const auto saver = tiers.saver({.keep = {.last = 2},
                                  .tiers = {{.root = tiers.faulty[0], .keep = {.last = 1}},
                                            {.root = tiers.faulty[1], .keep = {.last = 1, .every = 4}}},
                                  .save_every = 2});
  for (int64_t step = 1; step <= 9; ++step) {
    const auto save = start(*saver, step);
    EXPECT_OK(wait_for_all(*save));
    EXPECT_EQ(save->state(2), step % 2 == 0 ? TierState::kDurable : TierState::kNotAsked);
  }
  EXPECT_THAT(whole_steps(tiers.plain[0]), ElementsAre(9));
  EXPECT_THAT(whole_steps(tiers.plain[1]), ElementsAre(4, 8, 9));
  EXPECT_THAT(whole_steps(tiers.plain[2]), ElementsAre(6, 8));
}

TEST(Tiers, AreRefusedWhereTheyCannotWork) {
  const Tiers tiers;
  const auto refused = [&](SaverOptions options) {
    options.attempt = "r0000-a";
    return Saver::create(tiers.plain[2], options);
  };
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[0], .save_every = 2}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[0], .keep = {.last = -1}}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.save_every = 2}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[0], .node_local = true}}, .save_every = 2}),
              ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(refused({.tiers = {{.root = tiers.plain[2]}}}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(tiers.saver()->save_part(1, {}, "null"), ErrorCode::kUnsupported);
}

// A copy in parts, as to a service, of a file with many chunks and tensors that cross the borders of the parts.
TEST(Tiers, CopiesAreExactInParts) {
  Arrays arrays;
  for (int i = 0; i < 5; ++i)
    arrays["t" + std::to_string(i)] = make_array(formats::Dtype::kU8, {(3 << 20) + 77 * i}, static_cast<uint64_t>(i));
  const Location near = root_of(make_memory_storage("near"), "near");
  const auto service = std::make_shared<PartsService>();
  service->part_bytes = 1 << 20;
  const Location far = root_of(make_parts_storage(service));
  const auto saver = make_saver(far, {.tiers = {{.root = near}}});
  EXPECT_OK(save_and_wait(*saver, 1, arrays));
  EXPECT_OK(load_and_compare(far, 1, arrays));
  EXPECT_OK((*Checkpoint::open(far, 1))->verify(2));
}

// Two nodes of one rank each. Each node's tier has its own part and the manifest of all.
TEST(Nodes, ALostNodesPartComesFromTheSharedTier) {
  const Location nodes[] = {root_of(make_memory_storage("zero"), "node"), root_of(make_memory_storage("one"), "node")};
  const Location shared = memory_root();
  const auto save = [&](int64_t rank, int64_t step, Saver& saver) {
    const Arrays arrays = arrays_of(step);
    RankTensors mine;
    for (const auto& [name, array] : arrays) {
      if ((name < "m") == (rank == 0)) mine.add(name, array, box_of_all(array.shape));
    }
    return saver.save(step, mine.tensors(), "{}", "null").value();
  };
  std::vector<std::unique_ptr<Saver>> savers;
  for (int64_t rank = 0; rank < 2; ++rank)
    savers.push_back(make_saver(shared, {.rank = rank,
                                         .world_size = 2,
                                         .commit_timeout = std::chrono::minutes(2),
                                         .tiers = {{.root = nodes[rank], .keep = {.last = 2}, .node_local = true}}}));
  for (int64_t step = 1; step <= 3; ++step) {
    const auto zero = save(0, step, *savers[0]), one = save(1, step, *savers[1]);
    EXPECT_OK(wait_for_all(*zero));
    EXPECT_OK(wait_for_all(*one));
  }
  const Location lost = memory_root();
  for (const Location& node : nodes) {
    EXPECT_THAT(committed_steps(node), ElementsAre(2, 3)) << "each node keeps its last two";
    EXPECT_EQ(keys_below(node).size(), 2U * 3 + 1) << "a part record, its file and the manifest; latest";
    EXPECT_OK(load_over(std::vector{node, shared}, 3));
  }
  EXPECT_OK(load_over(std::vector{lost, shared}, 3));
  EXPECT_OK(load_over(std::vector{lost, shared}, 1));
  EXPECT_FALSE(load_over(std::vector{nodes[0], lost}, 3)) << "half of it is on the other node";
}

// Saves into three tiers until it is killed; writes down each step that each tier has reported durable.
[[noreturn]] void save_until_killed(const std::vector<Location>& tiers, std::atomic<int64_t>* committed) {
  SaverOptions options{.attempt = make_attempt(tiers[0]).value(), .threads = 1, .keep = {.last = 3}};
  for (size_t i = 0; i + 1 < tiers.size(); ++i) options.tiers.push_back({.root = tiers[i], .keep = {.last = 2}});
  const auto saver = Saver::create(tiers.back(), options);
  for (int64_t step = committed[0] + 1;; ++step) {
    const auto save = (*saver)->save(step, whole_tensors(arrays_of(step)).tensors(), "{}", "null");
    if (!save) ::_exit(1);
    for (size_t i = 0; i < tiers.size(); ++i) {
      if (i > 0 && step % 3 != 0) continue;  // two of three saves begin while the far tiers are written
      if (!(*save)->wait({}, i)) ::_exit(2);
      committed[i] = step;
    }
  }
}

TEST(TierKill, AtAnyMomentLeavesEveryTierWhole) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const TempDir directory;
  std::vector<Location> tiers;
  for (const char* name : {"near", "middle", "far"})
    tiers.push_back(root_of(open_local_storage(directory.path()).value(), name));
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* committed = new (shared) std::atomic<int64_t>[3]();
  for (int round = 0; round < rounds(15); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(tiers, committed);
    ::usleep(static_cast<useconds_t>(5'000 + random() % 80'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
    int64_t newest = 0;
    for (size_t i = 0; i < 3; ++i) {
      const auto steps = whole_steps(tiers[i]);
      if (committed[i] > 0) {
        ASSERT_GE(steps.empty() ? 0 : steps.back(), committed[i]) << "tier " << i;
      }
      if (!steps.empty()) newest = std::max(newest, steps.back());
    }
    if (newest > 0) {
      EXPECT_OK(load_over(tiers, newest));
    }
    committed[0] = newest;
  }
  EXPECT_GT(committed[0], 0);
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace millrace::checkpoint
