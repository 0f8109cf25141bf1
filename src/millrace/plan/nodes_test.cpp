// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/nodes.h"

#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> counts_of(const NodesPlan& plan) {
  std::vector<int64_t> counts;
  for (const ModelNodes& model : plan.models) counts.push_back(model.nodes);
  return counts;
}

TEST(PlanNodes, TheClustersSevenModels) {
  NodesOptions options{.nodes = 80, .models = std::vector<ModelWish>(7)};
  const auto equal = plan_nodes(options);
  ASSERT_TRUE(equal);
  EXPECT_THAT(counts_of(*equal), ElementsAre(12, 12, 12, 11, 11, 11, 11));
  EXPECT_THAT(equal->why.notes[0], HasSubstr("80 = 7 x 11 + 3"));
  EXPECT_THAT(equal->why.notes[0], HasSubstr("14:11"));
  for (size_t i = 0; i < 7; ++i) options.models[i].weight = i == 6 ? 14 : 11;
  EXPECT_THAT(counts_of(*plan_nodes(options)), ElementsAre(11, 11, 11, 11, 11, 11, 14));
  EXPECT_EQ(plan_nodes(options)->models[6].gpus, 112);
  options.spares = 2;
  EXPECT_EQ(plan_nodes(options)->spares, 2);
  const std::vector<int64_t> counts = counts_of(*plan_nodes(options));
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 78);
}

TEST(PlanNodes, BatchesAndCopiesAreHeldAgainstTheNodes) {
  const auto plan = plan_nodes({.nodes = 11, .models = {{.name = "m"}}, .model_parallel = 16, .global_batch = 128});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->models[0].model_fits, false);
  EXPECT_EQ(plan->models[0].batch_divides, false);
  const auto even = plan_nodes({.nodes = 8, .models = {{.name = "m"}}, .model_parallel = 16, .global_batch = 128});
  EXPECT_EQ(even->models[0].model_fits, true);
  EXPECT_EQ(even->models[0].batch_divides, true);
}

TEST(PlanNodes, WhatCannotBeIsSaid) {
  EXPECT_FALSE(plan_nodes({.nodes = 0, .models = {{}}}));
  EXPECT_FALSE(plan_nodes({.nodes = 4, .models = {}}));
  EXPECT_FALSE(plan_nodes({.nodes = 4, .spares = 4, .models = {{}}}));
  EXPECT_FALSE(plan_nodes({.nodes = 4, .models = {{.weight = 0}}}));
  EXPECT_FALSE(plan_nodes({.nodes = 4, .models = {{.min_nodes = 5, .max_nodes = 7, .multiple = 4}}}));
  const auto little = plan_nodes(
      {.nodes = 10,
       .spares = 1,
       .models = {{.name = "a", .min_nodes = 5}, {.name = "b", .min_nodes = 3, .multiple = 4}, {.name = "c"}}});
  EXPECT_THAT(little.error().message(), HasSubstr("the minima need 10 nodes (a 5 + b 4 + c 1)"));
}

// Every way to share the nodes, without the tricks.
double best_by_brute_force(const NodesOptions& options, int64_t& used) {
  const int64_t available = options.nodes - options.spares;
  double weights = 0;
  for (const ModelWish& wish : options.models) weights += wish.weight;
  double best = -1;
  used = -1;
  std::function<void(size_t, int64_t, double)> go = [&](size_t i, int64_t left, double cost) {
    if (i == options.models.size()) {
      if (available - left > used || (available - left == used && cost < best)) {
        used = available - left;
        best = cost;
      }
      return;
    }
    const ModelWish& wish = options.models[i];
    for (int64_t n = wish.min_nodes; n <= left && (wish.max_nodes == 0 || n <= wish.max_nodes); ++n) {
      if (n % wish.multiple != 0) continue;
      const double off = static_cast<double>(n) - static_cast<double>(available) * wish.weight / weights;
      go(i + 1, left - n, cost + off * off);
    }
  };
  go(0, available, 0);
  return best;
}

TEST(PlanNodes, EqualsBruteForceAndKeepsEveryConstraint) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  for (int round = 0; round < 1000; ++round) {
    NodesOptions options{.nodes = 1 + below(24), .gpus_per_node = 1 + below(8)};
    options.spares = below(std::min<int64_t>(3, options.nodes));
    for (int64_t i = 1 + below(4); i > 0; --i) {
      ModelWish wish{.weight = static_cast<double>(1 + below(9)), .min_nodes = below(4), .multiple = 1 + below(3)};
      if (below(3) == 0) wish.max_nodes = wish.min_nodes + below(8);
      options.models.push_back(wish);
    }
    int64_t used = 0;
    const double best = best_by_brute_force(options, used);
    const auto plan = plan_nodes(options);
    ASSERT_EQ(plan.has_value(), used >= 0) << (plan ? "" : plan.error().to_string());
    if (!plan) continue;
    double cost = 0;
    int64_t sum = plan->idle + plan->spares;
    for (size_t i = 0; i < plan->models.size(); ++i) {
      const ModelNodes& model = plan->models[i];
      const ModelWish& wish = options.models[i];
      ASSERT_GE(model.nodes, wish.min_nodes);
      ASSERT_EQ(model.nodes % wish.multiple, 0);
      if (wish.max_nodes > 0) {
        ASSERT_LE(model.nodes, wish.max_nodes);
      }
      ASSERT_EQ(model.gpus, model.nodes * options.gpus_per_node);
      sum += model.nodes;
      cost += (static_cast<double>(model.nodes) - model.share) * (static_cast<double>(model.nodes) - model.share);
    }
    ASSERT_EQ(sum, options.nodes);
    ASSERT_EQ(options.nodes - options.spares - plan->idle, used);
    ASSERT_NEAR(cost, best, 1e-6);
  }
}

}  // namespace
}  // namespace millrace::plan
