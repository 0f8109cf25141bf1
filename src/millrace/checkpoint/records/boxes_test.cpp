// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/boxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "millrace/checkpoint/testing.h"

namespace millrace::checkpoint {
namespace {

bool tiles(const std::vector<int64_t>& shape, const std::vector<Box>& boxes) {
  std::vector<const Box*> pointers;
  for (const Box& box : boxes) pointers.push_back(&box);
  const Status status = check_tiling(shape, pointers);
  EXPECT_TRUE(status || status.error().code() == ErrorCode::kCorruption);
  return status.has_value();
}

TEST(Boxes, TilingFindsGapsOverlapsAndStrays) {
  EXPECT_TRUE(tiles({4, 6}, {{{0, 0}, {4, 6}}}));
  EXPECT_TRUE(tiles({4, 6}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 4}}}));
  EXPECT_TRUE(tiles({4, 6}, {{{2, 3}, {2, 3}}, {{0, 0}, {2, 6}}, {{2, 0}, {2, 3}}}));
  EXPECT_TRUE(tiles({4}, {{{0}, {4}}, {{2}, {0}}})) << "an empty box is in nobody's way";
  EXPECT_TRUE(tiles({}, {{}}));
  EXPECT_TRUE(tiles({0, 3}, {}));
  EXPECT_FALSE(tiles({}, {{}, {}})) << "a scalar saved twice";
  EXPECT_FALSE(tiles({4}, {})) << "nothing";
  EXPECT_FALSE(tiles({4}, {{{0}, {3}}})) << "a gap";
  EXPECT_FALSE(tiles({4}, {{{0}, {2}}, {{1}, {2}}})) << "as many elements, but one twice";
  EXPECT_FALSE(tiles({2, 2}, {{{0, 0}, {2, 1}}, {{0, 0}, {1, 2}}})) << "the corner twice";
  EXPECT_FALSE(tiles({4}, {{{2}, {3}}})) << "outside";
  EXPECT_FALSE(tiles({4}, {{{-1}, {4}}})) << "outside";
  EXPECT_FALSE(tiles({4}, {{{INT64_MAX}, {INT64_MAX}}})) << "outside, and sums overflow";
  EXPECT_FALSE(tiles({4}, {{{0, 0}, {4, 1}}})) << "more dimensions";
}

// Cuts a box into random boxes, guillotine by guillotine.
void split(Box box, int depth, std::mt19937_64& random, std::vector<Box>& out) {
  const size_t d = random() % box.shape.size();
  if (depth == 0 || box.shape[d] < 2) {
    out.push_back(std::move(box));
    return;
  }
  Box rest = box;
  box.shape[d] = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(box.shape[d] - 1));
  rest.offset[d] += box.shape[d];
  rest.shape[d] -= box.shape[d];
  split(std::move(box), depth - 1, random, out);
  split(std::move(rest), depth - 1, random, out);
}

TEST(Boxes, RandomTilingsAreToldFromBrokenOnes) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const std::vector<int64_t> shape{1 + static_cast<int64_t>(random() % 9), 1 + static_cast<int64_t>(random() % 9),
                                     1 + static_cast<int64_t>(random() % 9)};
    std::vector<Box> boxes;
    split(whole_box(shape), 4, random, boxes);
    std::shuffle(boxes.begin(), boxes.end(), random);
    ASSERT_TRUE(tiles(shape, boxes));
    std::vector<Box> twice = boxes;
    twice.push_back(boxes[random() % boxes.size()]);
    ASSERT_FALSE(tiles(shape, twice));
    if (boxes.size() < 2) continue;
    std::vector<Box> moved = boxes;
    moved[0] = moved[1];
    ASSERT_FALSE(tiles(shape, moved));
    boxes.pop_back();
    ASSERT_FALSE(tiles(shape, boxes));
  }
}

TEST(Boxes, ThousandsOfShardsAreCheckedAtOnce) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < 20'000; ++i) boxes.push_back({{0, i}, {1'000, 1}});  // by columns: all start at row 0
  EXPECT_TRUE(tiles({1'000, 20'000}, boxes));
  boxes.back().offset[1] = 7;
  EXPECT_FALSE(tiles({1'000, 20'000}, boxes));
}

Box random_box(const std::vector<int64_t>& shape, std::mt19937_64& random) {
  Box box;
  for (const int64_t dimension : shape) {
    box.offset.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(dimension)));
    box.shape.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(dimension - box.offset.back())));
  }
  return box;
}

TEST(Boxes, CopyInAnyChunksIsTheCopyElementByElement) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> shape;
    for (size_t d = random() % 5; d-- > 0;) shape.push_back(1 + static_cast<int64_t>(random() % 6));
    const Array array = make_array(formats::Dtype::kF32, shape, random());
    const Box from = random_box(shape, random), to = random_box(shape, random);
    const auto common = intersect(from, to);
    if (!common) continue;
    const BoxCopy copy(*common, from, to, 4);
    const std::string source = cut(array, from), wanted = cut(array, to);
    std::string target(wanted.size(), '\0');
    const auto out = std::as_writable_bytes(std::span(target));
    for (size_t begin = 0; begin < source.size();) {
      const size_t size = std::min<size_t>(1 + random() % 40, source.size() - begin);
      const std::string before = target;
      copy.copy(static_cast<int64_t>(begin), as_bytes(std::string_view(source).substr(begin, size)), out.data());
      const bool touched = copy.touches(static_cast<int64_t>(begin), static_cast<int64_t>(begin + size));
      ASSERT_TRUE(touched || target == before);
      begin += size;
    }
    // What the boxes share is there, the rest untouched.
    const auto written = std::count_if(target.begin(), target.end(), [](char byte) { return byte != '\0'; });
    Array filled{formats::Dtype::kF32, to.shape, target};
    Box within = *common;
    for (size_t d = 0; d < within.offset.size(); ++d) within.offset[d] -= to.offset[d];
    ASSERT_EQ(cut(filled, within), cut(array, *common));
    ASSERT_LE(written, 4 * volume(common->shape));
  }
}

}  // namespace
}  // namespace millrace::checkpoint
