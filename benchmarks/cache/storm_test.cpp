// SPDX-License-Identifier: Apache-2.0
// The short form of the simulation: what the cache and the turns promise, for few nodes.
#include "storm.h"

#include <gtest/gtest.h>

namespace millrace::storm {
namespace {

TEST(Storm, TheRanksOfANodeAskOnceForWhatTheyShare) {
  const Outcome with = simulate({.nodes = 16, .with_cache = true});
  const Outcome without = simulate({.nodes = 16, .with_cache = false});
  EXPECT_LT(with.wanted * 2, without.wanted);
  EXPECT_LT(with.bytes, without.bytes);
  EXPECT_EQ(with.lists, 0);
  EXPECT_EQ(without.lists, 16 * 8);
}

TEST(Storm, NodesThatTakeTurnsAreSeldomRefused) {
  const Outcome with = simulate({.nodes = 128, .with_cache = true});
  const Outcome without = simulate({.nodes = 128, .with_cache = false});
  EXPECT_LT(with.refused * 10, without.refused);
  EXPECT_LE(with.all_s, without.all_s);
}

}  // namespace
}  // namespace millrace::storm
