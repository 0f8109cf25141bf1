// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/loader/shard_source.h"
#include "millrace/loader/testing/test_sets.h"

// What a loader holds is under its cap: also what sources hold, and rows that are read before their size is known.

namespace millrace::loader {
namespace {

using testing::HasSubstr;

constexpr int64_t kRowBytes = 16 << 10;

// Rows that count how many bytes of them are held by runs.
struct Held {
  std::atomic<int64_t> now{0}, most{0};

  void add(int64_t bytes) {
    const int64_t held = now += bytes;
    for (int64_t seen = most; held > seen && !most.compare_exchange_weak(seen, held);) {
    }
  }
};

class HeldRun final : public order::SampleRun {
 public:
  HeldRun(Held& held, const order::Window& window) : held_(held), window_(window) { held_.add(bytes_held()); }
  ~HeldRun() override { held_.add(-bytes_held()); }
  HeldRun(const HeldRun&) = delete;
  HeldRun& operator=(const HeldRun&) = delete;

  std::string_view name() const override { return "rows"; }
  int64_t samples() const override { return window_.samples; }
  int64_t bytes() const override { return 0; }
  bool reads_ahead() const override { return false; }
  void start(std::span<std::byte>, const ReadOptions&, Done done) override { done({}); }
  [[nodiscard]] Status visit(const Visit& visit) override {
    const std::string data(kRowBytes, 'x');
    const std::vector<order::Field> fields{{"bin", as_bytes(data)}};
    for (int64_t i = 0; i < window_.samples; ++i) {
      const std::string key = fmt::format("{}:{}", window_.shard, window_.first + i);
      RETURN_IF_ERROR(visit(i, order::Sample{key, fields}));
    }
    return {};
  }

 private:
  int64_t bytes_held() const { return window_.samples * kRowBytes; }
  Held& held_;
  const order::Window window_;
};

class HeldRows final : public order::SampleSource {
 public:
  HeldRows(Held& held, std::vector<int64_t> shards) : held_(held), shards_(std::move(shards)) {}
  std::string_view name() const override { return "rows"; }
  std::string_view identity() const override { return "held"; }
  std::span<const int64_t> shard_samples() const override { return shards_; }
  std::string_view shard_name(int64_t) const override { return "rows"; }
  int64_t window_hint() const override { return 4; }
  bool reads_to_plan() const override { return true; }
  Result<order::SamplePlan> plan(std::span<const order::Window> windows, const std::stop_token&) override {
    order::SamplePlan plan;
    for (const order::Window& window : windows) {
      plan.runs.push_back(std::make_unique<HeldRun>(held_, window));
      plan.bytes.resize(plan.bytes.size() + static_cast<size_t>(window.samples), kRowBytes + 256);
    }
    return plan;
  }

 private:
  Held& held_;
  const std::vector<int64_t> shards_;
};

LoaderOptions held_options(Held& held) {
  LoaderOptions options;
  options.batch_size = 32;
  options.epochs = 1;
  options.threads = 2;
  SampleFields fields;
  fields.specs.push_back({.name = "bin", .sources = {"bin"}, .kind = FieldKind::kBytes});
  options.fields = std::make_shared<const SampleFields>(fields);
  options.open = [&held](const SourceContext&) -> Result<std::unique_ptr<order::SampleSource>> {
    return std::make_unique<HeldRows>(held, std::vector<int64_t>(16, 64));
  };
  return options;
}

TEST(LoaderMemory, RowsThatPlanningReadsStayUnderTheirPart) {
  Held held;
  LoaderOptions options = held_options(held);
  options.memory_bytes = 6 << 20;
  const auto loader = make(options);
  std::multiset<std::string> keys;
  while (const auto batch = take(*loader)) keys.insert(batch->keys.begin(), batch->keys.end());
  EXPECT_EQ(keys.size(), 1024u);
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 1024u);
  // One block more is read when the part is full: the first that waits.
  EXPECT_LE(held.most, options.memory_bytes / 4 + 4 * kRowBytes);
  EXPECT_EQ(held.now, 0);
}

TEST(LoaderMemory, RowsOfALoaderThatStandsStillAreFewEnoughToo) {
  Held held;
  LoaderOptions options = held_options(held);
  options.memory_bytes = 6 << 20;
  options.epochs = 0;
  const auto loader = make(options);
  for (int step = 0; step < 40; ++step) {
    ASSERT_TRUE(take(*loader));
    ASSERT_LE(held.most, options.memory_bytes / 4 + 4 * kRowBytes);
  }
  loader->close();
  EXPECT_EQ(held.now, 0);
}

// What an error says would do.
int64_t named_memory(const Error& error) {
  constexpr std::string_view kBefore = "raise memory_bytes to ";
  const std::string text = error.to_string();
  const size_t at = text.find(kBefore);
  EXPECT_NE(at, text.npos) << text;
  const size_t begin = at + kBefore.size();
  const auto bytes = parse_bytes(text.substr(begin, text.find(" or more", begin) - begin));
  EXPECT_TRUE(bytes) << text;
  return bytes.value_or(0);
}

TEST(LoaderMemory, ShardListsAndIndexesCount) {
  const TestSet data = make_dataset("list", std::vector<int>(400, 1), 3);
  LoaderOptions options = options_for(data, 4);
  options.memory_bytes = 256 << 10;
  const auto batch = make(options)->next();
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(batch.error().to_string(), HasSubstr("mem://list: the list of its 400 shards and their indexes take"));
  options.memory_bytes = named_memory(batch.error());
  EXPECT_LT(options.memory_bytes, 2 << 20);
  EXPECT_TRUE(take(*make(options)));
  // A mixture needs the sum, and the error names the largest.
  options.memory_bytes = 700 << 10;
  options.sources = {{{data.url}, {}, {}}, {{make_dataset("other", std::vector<int>(300, 1), 4).url}, {}, {}}};
  options.shards.clear();
  options.weights = {{0, {1, 1}}};
  options.epochs = 0;
  const auto mixed = make(options)->next();
  ASSERT_FALSE(mixed);
  EXPECT_THAT(mixed.error().to_string(), HasSubstr("mem://list: the list of its 400 shards"));
  EXPECT_THAT(mixed.error().to_string(), HasSubstr("all datasets"));
  options.memory_bytes = named_memory(mixed.error());
  EXPECT_TRUE(take(*make(options)));
}

int64_t allocated_bytes() {
  const auto facts = mallinfo2();
  return static_cast<int64_t>(facts.uordblks + facts.hblkhd);
}

// Held against what the allocator says. Sanitizers have another allocator, which says nothing.
TEST(LoaderMemory, WhatASourceSaysItHoldsIsWhatItHolds) {
  for (const bool with_index : {true, false}) {
    const TestSet data =
        make_dataset(fmt::format("said-{}", with_index), std::vector<int>(60, 300), 3, false, with_index);
    const ShardSourceOptions options{.name = data.url, .index_cache_bytes = 0};
    Metrics metrics;
    const int64_t before = allocated_bytes();
    auto shards = find_shards({data.url});
    ASSERT_TRUE(shards);
    const auto source = open_shard_source(std::move(*shards), options, metrics);
    ASSERT_TRUE(source);
    ASSERT_TRUE((*source)->lengths()->total_tokens());
    const int64_t grown = allocated_bytes() - before;
    if (grown <= 0) continue;
    EXPECT_GT((*source)->held_bytes() * 2, grown) << with_index;
    EXPECT_LT((*source)->held_bytes(), grown * 2) << with_index;
  }
}

}  // namespace
}  // namespace millrace::loader
