// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/models/merges.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "millrace/tokenizer/file/load_threads.h"
#include "millrace/tokenizer/testing.h"

namespace millrace::tokenizer {
namespace {

using Pair = std::pair<uint32_t, uint32_t>;

// Where pairs are looked for first, of all slots; so that some can be crowded into one place.
uint64_t place_of(const Merge& merge) {
  return (uint64_t{merge.left} << 32 | merge.right) * 0x9E3779B97F4A7C15ull;
}

void expect_all(const std::vector<Merge>& merges, std::mt19937_64& random) {
  const MergeTable table(merges);
  std::map<Pair, uint64_t> wanted;
  for (size_t rank = 0; rank < merges.size(); ++rank)
    wanted[{merges[rank].left, merges[rank].right}] = uint64_t{rank} << 32 | merges[rank].joined;
  size_t wrong = 0, seen = 0;
  for (const auto& [pair, value] : wanted) {
    wrong += table.find(pair.first, pair.second) != value;
    wrong += table.find(table.look_ahead(pair.first, pair.second), pair.first, pair.second) != value;
  }
  table.for_each([&](uint32_t left, uint32_t right, uint32_t rank, uint32_t joined) {
    ++seen;
    const auto it = wanted.find({left, right});
    wrong += it == wanted.end() || it->second != (uint64_t{rank} << 32 | joined);
  });
  for (int i = 0; i < 100'000; ++i) {
    const auto left = static_cast<uint32_t>(random() % 200'000), right = static_cast<uint32_t>(random() % 200'000);
    wrong += table.find(left, right) != MergeTable::kNone && !wanted.contains({left, right});
  }
  EXPECT_EQ(wrong, 0u) << merges.size() << " merges";
  EXPECT_EQ(seen, wanted.size());
}

TEST(MergeTable, HoldsEveryMergeWhetherOneThreadFillsItOrMany) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const size_t count : {0, 1, 7, 1000, 49'999, 60'000, 280'000}) {
    std::vector<Merge> merges(count);
    for (Merge& merge : merges) {
      merge.left = static_cast<uint32_t>(random() % 150'000);
      merge.right = static_cast<uint32_t>(random() % 150'000);
      merge.joined = static_cast<uint32_t>(random() % 150'000);
    }
    // A pair that comes again takes the later rank.
    for (size_t i = 0; i + 1 < count; i += 97) merges[random() % count] = merges[i];
    expect_all(merges, random);
  }
}

// More pairs than there are slots at the end of what a thread fills, and of the whole table, some of them twice.
TEST(MergeTable, PairsThatCrowdAtTheEndOfAThreadsPartAreHeld) {
  std::mt19937_64 random(1);
  std::vector<Merge> merges;
  for (int i = 0; i < 2'000'000; ++i) {
    const Merge merge{static_cast<uint32_t>(random() % 150'000), static_cast<uint32_t>(random() % 150'000), 5};
    const uint64_t place = place_of(merge) >> 50;  // of 2^14, with two lines each
    const bool is_at_an_end = (place & 0xFFF) == 0xFFF;
    if (i < 60'000 || is_at_an_end) merges.push_back(merge);
    if (is_at_an_end && i % 3 == 0) merges.push_back(merge);
  }
  expect_all(merges, random);
}

TEST(MergeTable, NoTokensHaveNoMerge) {
  const MergeTable table({});
  EXPECT_EQ(table.find(MergeTable::empty_line(), UINT32_MAX, UINT32_MAX), MergeTable::kNone);
}

TEST(LoadThreads, EachPartIsDoneOnce) {
  std::vector<int> done(4);
  in_parts(done.size(), [&](size_t part) { ++done[part]; });
  EXPECT_EQ(done, std::vector<int>(4, 1));
  EXPECT_EQ(load_threads(10), 1u);
}

}  // namespace
}  // namespace millrace::tokenizer
