// SPDX-License-Identifier: Apache-2.0
#include "millrace/order/order.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "millrace/base/testing.h"

namespace millrace::order {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Lengths = std::vector<std::vector<uint32_t>>;

// A dataset, one order over it, and what a loader would train on.
class Trainer {
 public:
  Trainer(std::vector<int64_t> shards, const OrderOptions& options, uint64_t epoch, Lengths lengths = {})
      : options_(options), lengths_(std::move(lengths)), order_(make(std::move(shards), epoch)) {}

  const EpochOrder& order() const { return order_; }

  struct Piece {
    int64_t shard = 0, sample = 0, begin = 0, end = 0;
    auto operator<=>(const Piece&) const = default;
  };
  // The unit at a position: one piece with begin and end 0 when it is a sample, segments when packed.
  std::vector<Piece> unit(int64_t position) {
    const auto place = order_.place(position);
    const auto& block = blocks_.try_emplace({place.lane, place.block}).first->second.fill(*this, place);
    if (options_.pack_seq_len == 0) return {block.samples[static_cast<size_t>(place.index)]};
    std::vector<Piece> pieces;
    for (const Segment& segment : block.packing->row(place.index)) {
      Piece piece = block.samples[static_cast<size_t>(segment.sample)];
      piece.begin = segment.begin;
      piece.end = segment.end;
      pieces.push_back(piece);
    }
    return pieces;
  }
  std::string text(int64_t position) {
    std::string text;
    for (const Piece& piece : unit(position)) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : " ", piece.shard, piece.sample);
      if (piece.end > 0) text += fmt::format("[{},{})", piece.begin, piece.end);
    }
    return text;
  }
  std::string text(const std::vector<int64_t>& positions) {
    std::string all;
    for (const int64_t position : positions) all += (all.empty() ? "" : " ") + text(position);
    return all;
  }
  std::string epoch_text() {
    std::vector<int64_t> positions(static_cast<size_t>(order_.units()));
    std::iota(positions.begin(), positions.end(), 0);
    return text(positions);
  }

 private:
  struct LoadedBlock {
    std::vector<Piece> samples;  // in trained order
    std::optional<BlockPacking> packing;

    const LoadedBlock& fill(const Trainer& trainer, const EpochOrder::Place& place) {
      if (!samples.empty()) return *this;
      std::vector<Piece> laid;
      for (const Window& window : trainer.order_.block(place.lane, place.block).windows)
        for (int64_t i = 0; i < window.samples; ++i) laid.push_back({window.shard, window.first + i});
      std::vector<uint32_t> lengths;
      for (const uint32_t i : trainer.order_.permutation(place.lane, place.block)) {
        samples.push_back(laid[i]);
        if (trainer.options_.pack_seq_len > 0)
          lengths.push_back(trainer.lengths_[static_cast<size_t>(laid[i].shard)][static_cast<size_t>(laid[i].sample)]);
      }
      if (trainer.options_.pack_seq_len > 0) packing.emplace(lengths, trainer.options_.pack_seq_len);
      return *this;
    }
  };

  EpochOrder make(std::vector<int64_t> shards, uint64_t epoch) const {
    WindowTable windows = *WindowTable::create(shards, options_.window_samples, !lengths_.empty());
    for (size_t shard = 0; shard < lengths_.size(); ++shard)
      for (size_t i = 0; i < lengths_[shard].size(); ++i)
        windows.shard_tokens(static_cast<int64_t>(shard))[i / static_cast<size_t>(options_.window_samples)] +=
            lengths_[shard][i];
    auto order = EpochOrder::create(std::make_shared<WindowTable>(std::move(windows)), options_, epoch);
    if (!order) throw std::runtime_error(order.error().to_string());
    return *std::move(order);
  }

  OrderOptions options_;
  Lengths lengths_;
  EpochOrder order_;
  std::map<std::pair<int64_t, int64_t>, LoadedBlock> blocks_;
};

const OrderOptions kExample = {.seed = 7, .lanes = 3, .window_samples = 2, .block_windows = 2};
const std::vector<int64_t> kExampleShards = {5, 3, 6};

std::vector<std::vector<int64_t>> split(const EpochOrder& order, int64_t begin, int64_t count, int64_t world) {
  std::vector<std::vector<int64_t>> ranks;
  for (int64_t rank = 0; rank < world; ++rank) ranks.push_back(rank_positions(order, begin, count, rank, world));
  return ranks;
}

// The examples of docs/format/order.md.

TEST(OrderExample, TheShuffle) {
  Trainer trainer({10}, {.seed = 7, .lanes = 1, .window_samples = 1, .block_windows = 1}, 0);
  EXPECT_EQ(trainer.epoch_text(), "0:5 0:1 0:2 0:8 0:3 0:4 0:7 0:9 0:6 0:0");
}

TEST(OrderExample, TwoEpochs) {
  EXPECT_EQ(Trainer(kExampleShards, kExample, 0).epoch_text(),
            "0:3 2:2 2:5 0:2 2:3 0:4 1:0 2:1 2:4 1:1 2:0 1:2 0:1 0:0");
  EXPECT_EQ(Trainer(kExampleShards, kExample, 1).epoch_text(),
            "2:4 1:0 2:0 2:5 0:3 0:4 2:2 0:2 2:1 2:3 1:1 1:2 0:0 0:1");
}

TEST(OrderExample, TheTables) {
  const EpochOrder order = Trainer(kExampleShards, kExample, 0).order();
  EXPECT_EQ(order.units(), 14);
  EXPECT_EQ(order.lanes(), 3);
  EXPECT_EQ(order.place(5), (EpochOrder::Place{.lane = 2, .block = 0, .index = 1, .row = 1}));
  EXPECT_EQ(order.place(10), (EpochOrder::Place{.lane = 1, .block = 0, .index = 3, .row = 3}));
  EXPECT_EQ(order.place(11), (EpochOrder::Place{.lane = 0, .block = 1, .index = 0, .row = 4}));
  EXPECT_EQ(order.place(13), (EpochOrder::Place{.lane = 1, .block = 1, .index = 1, .row = 5}));
  EXPECT_EQ(order.blocks(0), 2);
  EXPECT_EQ(order.blocks(2), 1);
  const auto block = order.block(0, 1);
  EXPECT_THAT(block.windows, ElementsAre(Window{.shard = 1, .first = 2, .samples = 1}));
  EXPECT_EQ(block.samples, 1);
  EXPECT_EQ(block.units, 1);
  EXPECT_EQ(block.first_row, 4);
}

TEST(OrderExample, TwoThenThreeRanksAndTheEnd) {
  Trainer trainer(kExampleShards, kExample, 0);
  const auto steps = [&](int64_t begin, int64_t count, int64_t world) {
    std::string positions, samples;
    for (const auto& rank : split(trainer.order(), begin, count, world)) {
      positions += fmt::format("{}{}", positions.empty() ? "" : " | ",
                               rank.empty() ? "-" : fmt::format("{}", fmt::join(rank, " ")));
      samples += fmt::format("{}{}", samples.empty() ? "" : " | ", rank.empty() ? "-" : trainer.text(rank));
    }
    return positions + "   " + samples;
  };
  EXPECT_EQ(steps(0, 4, 2), "0 3 | 1 2   0:3 0:2 | 2:2 2:5");
  EXPECT_EQ(steps(4, 4, 2), "6 4 | 7 5   1:0 2:3 | 2:1 0:4");
  EXPECT_EQ(steps(8, 4, 3), "9 | 11 | 10 8   1:1 | 1:2 | 2:0 2:4");
  EXPECT_EQ(steps(12, 2, 3), "- | 12 | 13   - | 0:1 | 0:0");
  EXPECT_THAT(steps(8, 4, 2), HasSubstr("9 11 | 10 8"));
  EXPECT_THAT(steps(12, 2, 2), HasSubstr("12 | 13"));
}

TEST(OrderExample, Packed) {
  OrderOptions options = kExample;
  options.pack_seq_len = 8;
  Trainer trainer(kExampleShards, options, 0, {{3, 9, 2, 4, 1}, {6, 2, 5}, {7, 1, 8, 3, 2, 4}});
  std::string table;
  for (int64_t p = 0; p < trainer.order().units(); ++p)
    table += fmt::format("{} {} {}\n", p, trainer.order().place(p).lane, trainer.text(p));
  EXPECT_EQ(table,
            "0 0 0:3[0,4) 0:2[0,2) 1:0[0,2)\n"
            "1 1 2:2[0,8)\n"
            "2 2 2:5[0,4) 0:4[0,1) 2:4[0,2)\n"
            "3 0 1:0[2,6) 1:1[0,2)\n"
            "4 1 2:3[0,3) 2:1[0,1) 2:0[0,4)\n"
            "5 0 1:2[0,5)\n"
            "6 1 2:0[4,7)\n"
            "7 1 0:1[0,8)\n"
            "8 1 0:1[8,9) 0:0[0,3)\n");
}

TEST(OrderExample, TheState) {
  const OrderState state{.epoch = 0, .position = 8, .options = kExample, .source = "5f2b"};
  EXPECT_EQ(serialize_state(state),
            R"({"epoch":0,"format":"millrace.order","options":{"block_windows":2,"lanes":3,"pack_seq_len":0,"seed":7,)"
            R"("shuffle":true,"window_samples":2},"position":8,"source":"5f2b","version":1})");
  EXPECT_EQ(*parse_state(serialize_state(state)), state);
}

TEST(OrderExample, ResolvedOptions) {
  const auto resolved = resolve_options({}, 10'000, 3'000'000);
  EXPECT_EQ(resolved.window_samples, 218);
  EXPECT_EQ(resolved.block_windows, 8);
  EXPECT_EQ(resolved.lanes, 8);
}

// Whole orders, held to tests/python/order_reference.py by one number each.

uint64_t reference_mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

TEST(Order, IsTheReferencesOrder) {
  struct Case {
    uint64_t shards, most;
    OrderOptions options;
    uint64_t epoch, most_tokens;
    int64_t units;
    uint64_t fingerprint;
  };
  const Case cases[] = {
      {7,
       40,
       {.seed = 0U, .shuffle = true, .lanes = 1, .window_samples = 1, .block_windows = 1, .pack_seq_len = 0},
       0U,
       0,
       98,
       0x8EC875C5CE61447A},
      {20,
       100,
       {.seed = 1U, .shuffle = true, .lanes = 4, .window_samples = 8, .block_windows = 4, .pack_seq_len = 0},
       0U,
       0,
       846,
       0x9295FEE32801A8A1},
      {20,
       100,
       {.seed = 0xFFFFFFFFFFFFFFFF,
        .shuffle = true,
        .lanes = 5,
        .window_samples = 7,
        .block_windows = 3,
        .pack_seq_len = 0},
       0xFFFFFFFFFFFFFFFF,
       0,
       846,
       0xC0074BD144C1AC37},
      {3,
       10,
       {.seed = 3U, .shuffle = true, .lanes = 16, .window_samples = 4, .block_windows = 2, .pack_seq_len = 0},
       2U,
       0,
       12,
       0xFEE5ABD766DA2699},
      {20,
       100,
       {.seed = 1U, .shuffle = false, .lanes = 1, .window_samples = 8, .block_windows = 4, .pack_seq_len = 0},
       5U,
       0,
       846,
       0x6AC8C221C86D9E2F},
      {20,
       100,
       {.seed = 9U, .shuffle = true, .lanes = 4, .window_samples = 8, .block_windows = 4, .pack_seq_len = 64},
       1U,
       50,
       345,
       0x4374C9CC7023D0FD},
      {20,
       100,
       {.seed = 9U, .shuffle = true, .lanes = 3, .window_samples = 5, .block_windows = 1, .pack_seq_len = 1},
       1U,
       9,
       3363,
       0x448ECAF9DB95BE0C},
      {20,
       100,
       {.seed = 9U, .shuffle = false, .lanes = 1, .window_samples = 5, .block_windows = 9, .pack_seq_len = 1000},
       1U,
       99,
       52,
       0x9FC43FD5E89EE802},
  };
  for (const Case& c : cases) {
    std::vector<int64_t> shards;
    Lengths lengths;
    for (uint64_t s = 0; s < c.shards; ++s) {
      shards.push_back(static_cast<int64_t>(1 + reference_mix(s) % c.most));
      if (c.most_tokens == 0) continue;
      lengths.emplace_back();
      for (uint64_t i = 0; i < static_cast<uint64_t>(shards.back()); ++i)
        lengths.back().push_back(static_cast<uint32_t>(reference_mix(1000 * s + i) % c.most_tokens));
    }
    Trainer trainer(shards, c.options, c.epoch, lengths);
    ASSERT_EQ(trainer.order().units(), c.units);
    uint64_t fingerprint = 0;
    const auto add = [&](int64_t word) {
      fingerprint = reference_mix((fingerprint ^ static_cast<uint64_t>(word)) + 0x9E3779B97F4A7C15);
    };
    for (int64_t p = 0; p < c.units; ++p) {
      add(trainer.order().place(p).lane);
      for (const auto& piece : trainer.unit(p)) {
        add(piece.shard);
        add(piece.sample);
        if (c.most_tokens == 0) continue;
        add(piece.begin);
        add(piece.end);
      }
    }
    EXPECT_EQ(fingerprint, c.fingerprint);
  }
}

struct RandomCase {
  std::vector<int64_t> shards;
  OrderOptions options;
  uint64_t epoch = 0;
  Lengths lengths;
};

RandomCase random_case(std::mt19937_64& random) {
  const auto up_to = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  RandomCase c;
  for (int64_t n = 1 + up_to(8); n > 0; --n) c.shards.push_back(up_to(60));
  c.shards.push_back(1 + up_to(60));
  c.options = {.seed = random(),
               .shuffle = up_to(5) > 0,
               .lanes = 1 + up_to(10),
               .window_samples = 1 + up_to(20),
               .block_windows = 1 + up_to(5)};
  if (!c.options.shuffle) c.options.lanes = 1;
  c.epoch = random() % 3;
  if (up_to(2) == 0) return c;
  c.options.pack_seq_len = 1 + up_to(40);
  for (const int64_t samples : c.shards) {
    c.lengths.emplace_back();
    for (int64_t i = 0; i < samples; ++i)
      c.lengths.back().push_back(static_cast<uint32_t>(up_to(up_to(4) == 0 ? 200 : 20)));
  }
  c.lengths.back().back() = 1;  // at least one token in all
  return c;
}

class OrderProperties : public ::testing::Test {
 protected:
  void SetUp() override { RecordProperty("seed", fmt::format("{}", seed_)); }
  const uint64_t seed_ = test_seed();
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, fmt::format("MILLRACE_TEST_SEED={}", seed_)};
  std::mt19937_64 random_{seed_};
};

TEST_F(OrderProperties, EverySampleOrTokenOnceAnEpochAndUnitsAreFull) {
  for (int round = 0; round < 400; ++round) {
    const RandomCase c = random_case(random_);
    Trainer trainer(c.shards, c.options, c.epoch, c.lengths);
    std::vector<Trainer::Piece> seen, all;
    for (int64_t p = 0; p < trainer.order().units(); ++p) {
      const auto place = trainer.order().place(p);
      int64_t tokens = 0;
      for (const auto& piece : trainer.unit(p)) {
        tokens += piece.end - piece.begin;
        if (c.options.pack_seq_len == 0) seen.push_back(piece);
        for (int64_t t = piece.begin; t < piece.end; ++t) seen.push_back({piece.shard, piece.sample, t, t + 1});
      }
      if (c.options.pack_seq_len == 0) continue;
      const auto block = trainer.order().block(place.lane, place.block);
      const int64_t left = block.tokens - place.index * c.options.pack_seq_len;
      EXPECT_EQ(tokens, std::min(left, c.options.pack_seq_len));
      EXPECT_GT(tokens, 0);
    }
    for (size_t shard = 0; shard < c.shards.size(); ++shard) {
      for (int64_t i = 0; i < c.shards[shard]; ++i) {
        const auto s = static_cast<int64_t>(shard);
        if (c.options.pack_seq_len == 0) all.push_back({s, i});
        for (int64_t t = 0; c.options.pack_seq_len > 0 && t < c.lengths[shard][static_cast<size_t>(i)]; ++t)
          all.push_back({s, i, t, t + 1});
      }
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen, all);
  }
}

TEST_F(OrderProperties, PlacesCountAlongTheRows) {
  for (int round = 0; round < 200; ++round) {
    const RandomCase c = random_case(random_);
    const EpochOrder order = Trainer(c.shards, c.options, c.epoch, c.lengths).order();
    std::pair<int64_t, int64_t> last = {-1, 0};
    std::vector<int64_t> next_row(static_cast<size_t>(order.lanes()));
    for (int64_t p = 0; p < order.units(); ++p) {
      const auto place = order.place(p);
      ASSERT_LT(last, std::pair(place.row, place.lane));
      last = {place.row, place.lane};
      ASSERT_EQ(place.row, next_row[static_cast<size_t>(place.lane)]++);
      const auto block = order.block(place.lane, place.block);
      ASSERT_EQ(place.row, block.first_row + place.index);
      ASSERT_LT(place.index, block.units);
    }
  }
}

TEST_F(OrderProperties, RanksShareEveryStepAtAnyWorldSize) {
  for (int round = 0; round < 200; ++round) {
    const RandomCase c = random_case(random_);
    const EpochOrder order = Trainer(c.shards, c.options, c.epoch, c.lengths).order();
    const auto batch = static_cast<int64_t>(1 + random_() % 20);
    for (int64_t begin = 0; begin < order.units(); begin += batch) {
      const int64_t count = std::min(batch, order.units() - begin);
      const auto world = static_cast<int64_t>(1 + random_() % 9);
      std::vector<int64_t> together, expected(static_cast<size_t>(count));
      std::pair<int64_t, int64_t> last = {-1, -1};
      for (const auto& rank : split(order, begin, count, world)) {
        EXPECT_LE(static_cast<int64_t>(rank.size()), (count + world - 1) / world);
        for (const int64_t p : rank) {
          const std::pair here = {order.place(p).lane, order.place(p).row};
          EXPECT_LT(last, here);
          last = here;
          together.push_back(p);
        }
      }
      std::sort(together.begin(), together.end());
      std::iota(expected.begin(), expected.end(), begin);
      ASSERT_EQ(together, expected);
    }
  }
}

// A run that changes its number of ranks, and its global batch, at random steps, each time through the state alone.
TEST_F(OrderProperties, AStateGoesOnExactlyAtAnotherWorldSize) {
  for (int round = 0; round < 100; ++round) {
    const RandomCase c = random_case(random_);
    std::vector<std::vector<Trainer::Piece>> trained, expected;
    Trainer whole(c.shards, c.options, c.epoch, c.lengths);
    for (int64_t p = 0; p < whole.order().units(); ++p) expected.push_back(whole.unit(p));

    std::string saved = serialize_state({.epoch = c.epoch, .options = c.options, .source = "d"});
    while (true) {
      OrderState state = *parse_state(saved);
      Trainer trainer(c.shards, state.options, state.epoch, c.lengths);
      if (state.position == trainer.order().units()) break;
      const auto world = static_cast<int64_t>(1 + random_() % 5), batch = static_cast<int64_t>(1 + random_() % 9);
      for (uint64_t steps = 1 + random_() % 5; steps > 0 && state.position < trainer.order().units(); --steps) {
        const int64_t count = std::min(batch, trainer.order().units() - state.position);
        std::map<int64_t, std::vector<Trainer::Piece>> step;
        for (const auto& rank : split(trainer.order(), state.position, count, world))
          for (const int64_t p : rank) step[p] = trainer.unit(p);
        for (auto& [p, unit] : step) trained.push_back(unit);
        state.position += count;
      }
      saved = serialize_state(state);
    }
    ASSERT_EQ(trained, expected);
  }
}

TEST_F(OrderProperties, ARankKeepsItsLanes) {
  for (int round = 0; round < 50; ++round) {
    const auto world = static_cast<int64_t>(1 + random_() % 6);
    const int64_t lanes = world * static_cast<int64_t>(1 + random_() % 4);
    const int64_t batch = lanes * static_cast<int64_t>(1 + random_() % 3);
    const OrderOptions options{.seed = random_(), .lanes = lanes, .window_samples = 5, .block_windows = 2};
    const EpochOrder order = Trainer({lanes * 5 * 8}, options, 0).order();  // all lanes end together
    for (int64_t begin = 0; begin + batch <= order.units(); begin += batch)
      for (int64_t rank = 0; rank < world; ++rank)
        for (const int64_t p : rank_positions(order, begin, batch, rank, world))
          ASSERT_EQ(order.place(p).lane * world / lanes, rank);
  }
}

TEST_F(OrderProperties, SeedsAndEpochsGiveDifferentOrders) {
  OrderOptions options{.seed = random_(), .lanes = 2, .window_samples = 4, .block_windows = 3};
  std::set<std::string> orders;
  for (int seed = 0; seed < 4; ++seed, ++options.seed)
    for (uint64_t epoch = 0; epoch < 4; ++epoch) orders.insert(Trainer({40, 30}, options, epoch).epoch_text());
  EXPECT_EQ(orders.size(), 16U);
  EXPECT_EQ(Trainer({40, 30}, options, 1).epoch_text(), Trainer({40, 30}, options, 1).epoch_text());
}

// An even shuffle moves a sample by a third of the epoch on average, and neighbours in training rarely share a window.
TEST_F(OrderProperties, TheShuffleIsEven) {
  const int64_t samples = 100'000, window = 50;
  const OrderOptions options{.seed = random_(), .lanes = 8, .window_samples = window, .block_windows = 8};
  Trainer trainer({samples}, options, 0);
  double moved = 0;
  int64_t neighbours = 0, last = -1;
  std::vector<int64_t> in_first_half(10);  // of each tenth of the dataset
  for (int64_t p = 0; p < samples; ++p) {
    const int64_t sample = trainer.unit(p).front().sample;
    moved += static_cast<double>(std::abs(sample - p));
    neighbours += sample / window == last / window;
    if (p < samples / 2) ++in_first_half[static_cast<size_t>(sample * 10 / samples)];
    last = sample;
  }
  EXPECT_NEAR(moved / samples / samples, 1.0 / 3, 0.03);
  EXPECT_LT(neighbours, samples / 50);
  for (const int64_t count : in_first_half) EXPECT_NEAR(static_cast<double>(count), 5000, 1500);
}

TEST(Order, WithoutShufflingItIsTheCanonicalOrder) {
  Trainer trainer({3, 0, 2}, {.shuffle = false, .lanes = 1, .window_samples = 2, .block_windows = 2}, 9);
  EXPECT_EQ(trainer.epoch_text(), "0:0 0:1 0:2 2:0 2:1");
}

TEST(Order, WindowsAreCutShardByShard) {
  const std::vector<int64_t> shards = {5, 0, 2};
  const WindowTable table = *WindowTable::create(shards, 2, /*with_lengths=*/false);
  std::vector<Window> windows;
  for (int64_t i = 0; i < table.size(); ++i) windows.push_back(table.window(i));
  EXPECT_THAT(windows, ElementsAre(Window{0, 0, 2}, Window{0, 2, 2}, Window{0, 4, 1}, Window{2, 0, 2}));
  EXPECT_EQ(WindowTable::create({}, 2, false)->size(), 0);
  // A manifest may say anything: no table is sized by it unchecked.
  const int64_t huge = int64_t{1} << 62;
  const std::vector<int64_t> too_many = {huge}, negative = {-1}, overflow = {huge, huge};
  EXPECT_EQ(WindowTable::create(overflow, huge, true).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(WindowTable::create(too_many, 2, true).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(WindowTable::create(negative, 2, true).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Order, OptionsAreResolvedFromTheSizeAlone) {
  const auto resolved = [](OrderOptions options, int64_t samples, int64_t tokens) {
    const auto r = resolve_options(options, samples, tokens);
    return std::vector<int64_t>{r.lanes, r.window_samples, r.block_windows};
  };
  EXPECT_THAT(resolved({}, 0, 0), ElementsAre(1, 64, 8));
  EXPECT_THAT(resolved({}, 1, 1), ElementsAre(1, 256, 8));
  EXPECT_THAT(resolved({}, 1'000'000, 0), ElementsAre(32, 64, 8));
  EXPECT_THAT(resolved({}, 1'000'000, 1'000'000'000), ElementsAre(32, 65, 8));
  EXPECT_THAT(resolved({}, 1'000, 1'000'000'000), ElementsAre(32, 1, 8));
  EXPECT_THAT(resolved({}, 5 * 4 * 64, 0), ElementsAre(4, 64, 8));
  EXPECT_THAT(resolved({.shuffle = false}, 1'000'000, 0), ElementsAre(1, 64, 8));
  EXPECT_THAT(resolved({.lanes = 7, .window_samples = 3, .block_windows = 2}, 10, 10), ElementsAre(7, 3, 2));
}

TEST(Order, RefusesWhatItCannotOrder) {
  const auto table = [](std::vector<int64_t> shards, int64_t window_samples, std::vector<int64_t> tokens) {
    WindowTable windows = *WindowTable::create(shards, window_samples, true);
    for (size_t shard = 0, at = 0; shard < shards.size(); ++shard)
      for (int64_t& count : windows.shard_tokens(static_cast<int64_t>(shard))) count = tokens[at++];
    return std::make_shared<const WindowTable>(std::move(windows));
  };
  const auto windows = table({8}, 4, {100, 0});
  const OrderOptions good{.lanes = 2, .window_samples = 4, .block_windows = 2, .pack_seq_len = 8};
  ASSERT_TRUE(EpochOrder::create(windows, good, 0));
  const auto reason = [&](const std::shared_ptr<const WindowTable>& given, OrderOptions options) {
    const auto order = EpochOrder::create(given, options, 0);
    EXPECT_FALSE(order);
    EXPECT_EQ(order.error().code(), ErrorCode::kInvalidArgument);
    return order.error().message();
  };
  const auto with = [&](auto edit) {
    OrderOptions options = good;
    edit(options);
    return options;
  };
  EXPECT_THAT(reason(table({}, 4, {}), good), HasSubstr("no windows"));
  EXPECT_THAT(reason(windows, with([](auto& o) { o.lanes = 0; })), HasSubstr("0 lanes"));
  EXPECT_THAT(reason(windows, with([](auto& o) { o.lanes = int64_t{1} << 60; })), HasSubstr("lanes"));
  EXPECT_THAT(reason(windows, with([](auto& o) { o.block_windows = 0; })), HasSubstr("0 windows a block"));
  EXPECT_THAT(reason(windows, with([](auto& o) { o.pack_seq_len = -1; })), HasSubstr("-1 tokens"));
  EXPECT_THAT(reason(windows, with([](auto& o) { o.shuffle = false; })), HasSubstr("without shuffling"));
  EXPECT_THAT(reason(table({8}, 4, {0, 0}), good), HasSubstr("lengths are unknown"));
  EXPECT_THAT(reason(table({1}, 4, {-5}), good), HasSubstr("a window of shard 0"));
  const int64_t huge = int64_t{1} << 62;
  EXPECT_THAT(reason(table({1, 1}, 1, {huge, huge}), good), HasSubstr("a window of shard 1"));
  EXPECT_THAT(reason(table({huge}, huge, {5}), good), HasSubstr("at most 2^31"));
}

TEST(Order, HugeOptionsAreHarmless) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  Trainer trainer({5}, {.lanes = 1, .window_samples = 5, .block_windows = huge, .pack_seq_len = huge}, 0,
                  {{1, 2, 3, 4, 5}});
  EXPECT_EQ(trainer.order().units(), 1);
  EXPECT_EQ(trainer.unit(0).size(), 5U);
}

TEST(BlockPacking, LaysSamplesEndToEnd) {
  const std::vector<uint32_t> lengths = {0, 5, 0, 12, 3, 0};
  const BlockPacking packing(lengths, 8);
  EXPECT_EQ(packing.rows(), 3);
  EXPECT_THAT(packing.row(0), ElementsAre(Segment{1, 0, 5}, Segment{3, 0, 3}));
  EXPECT_THAT(packing.row(1), ElementsAre(Segment{3, 3, 11}));
  EXPECT_THAT(packing.row(2), ElementsAre(Segment{3, 11, 12}, Segment{4, 0, 3}));
  EXPECT_EQ(BlockPacking({}, 8).rows(), 0);
}

TEST(OrderState, RefusesWhatIsNoState) {
  const std::string good = serialize_state({.options = kExample, .source = "s"});
  const auto code = [&](std::string_view from, std::string_view to) -> std::optional<ErrorCode> {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    const auto parsed = parse_state(text.replace(at, from.size(), to));
    return parsed ? std::optional<ErrorCode>() : parsed.error().code();
  };
  EXPECT_EQ(code("millrace.order", "millrace.order"), std::nullopt);
  EXPECT_EQ(code("\"version\":1", "\"version\":2"), ErrorCode::kUnsupported);
  const std::pair<std::string_view, std::string_view> wrong[] = {{"\"version\":1", "\"version\":0"},
                                                                 {"\"version\":1", "\"version\":1.0"},
                                                                 {"millrace.order", "millrace.part"},
                                                                 {"\"position\":0", "\"position\":-1"},
                                                                 {"\"position\":0", "\"position\":\"0\""},
                                                                 {"\"position\":0", "\"position\":9223372036854775808"},
                                                                 {"\"epoch\":0", "\"epoch\":0.5"},
                                                                 {"\"epoch\":0,", ""},
                                                                 {"\"source\":\"s\"", "\"source\":1"},
                                                                 {"\"lanes\":3", "\"lanes\":0"},
                                                                 {"\"window_samples\":2", "\"window_samples\":0"},
                                                                 {"\"block_windows\":2", "\"block_windows\":0"},
                                                                 {"\"pack_seq_len\":0", "\"pack_seq_len\":-8"},
                                                                 {"\"shuffle\":true", "\"shuffle\":1"},
                                                                 {"\"seed\":7", "\"seed\":-7"},
                                                                 {"\"seed\":7", "\"seed\":7,\"new\":1"},
                                                                 {"\"epoch\":0", "\"epoch\":0,\"new\":1"},
                                                                 {"\"epoch\":0", "\"epoch\":0,\"epoch\":0"},
                                                                 {"{", "\xef\xbb\xbf{"},
                                                                 {"\"source\":\"s\"", "\"source\":\"\xff\""},
                                                                 {"}", ""}};
  for (const auto& [from, to] : wrong) EXPECT_EQ(code(from, to), ErrorCode::kInvalidArgument) << to;
  for (const char* text : {"", "[]", "1", "null", "{}", "{\"options\":[]}"})
    EXPECT_EQ(parse_state(text).error().code(), ErrorCode::kInvalidArgument) << text;
}

TEST(OrderState, TakesKeysInAnyOrderAndWhiteSpace) {
  const auto tree = nlohmann::ordered_json::parse(serialize_state({.options = kExample, .source = "s"}));
  nlohmann::ordered_json reversed;
  for (auto member = tree.rbegin(); member != tree.rend(); ++member) reversed[member.key()] = member.value();
  EXPECT_EQ(*parse_state(reversed.dump(4)), *parse_state(tree.dump()));
}

TEST(OrderState, KeepsLargeNumbersExactly) {
  OrderState state{.epoch = ~uint64_t{0}, .position = (int64_t{1} << 53) + 1, .options = kExample, .source = "é\"\n"};
  state.options.seed = ~uint64_t{0};
  EXPECT_EQ(*parse_state(serialize_state(state)), state);
}

TEST(OrderState, EveryTruncationIsRefused) {
  const std::string good = serialize_state({.options = kExample, .source = "s"});
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse_state(good.substr(0, size)));
}

}  // namespace
}  // namespace millrace::order
