// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/batch_ring.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/testing.h"
#include "millrace/loader/packed_batch.h"
#include "millrace/loader/testing/test_sets.h"

// Batches that lie in memory of the caller: the same ones, never written over while somebody has them.

namespace millrace::loader {
namespace {

using testing::HasSubstr;

struct Aligned {
  explicit Aligned(int64_t bytes) : data(new (std::align_val_t(4096)) std::byte[static_cast<size_t>(bytes)]) {}
  ~Aligned() { ::operator delete[](data, std::align_val_t(4096)); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  std::byte* const data;
};

// A ring as large as the loader asks for. Closes the loader before its memory goes.
struct Ring {
  Ring(Loader& of, int64_t kept) : loader(of) {
    const auto space = loader.ring_space(kept);
    EXPECT_TRUE(space) << (space ? "" : space.error().to_string());
    memory.emplace(space->buffer_bytes * space->buffers);
    buffers = *BatchRing::create(memory->data, space->buffer_bytes, space->buffers, kept);
    EXPECT_TRUE(loader.use_ring(buffers));
  }
  ~Ring() { loader.close(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  Loader& loader;
  std::optional<Aligned> memory;
  std::shared_ptr<BatchRing> buffers;
};

TEST(BatchRing, ABufferIsFreeAgainWhenItsLastOwnerIsGone) {
  const Aligned memory(4 * 128);
  const auto ring = *BatchRing::create(memory.data, 128, 4, 2);
  EXPECT_EQ(ring->most_batches(), 2);
  EXPECT_EQ(ring->try_take(129), nullptr);
  std::vector<std::shared_ptr<std::byte>> taken;
  std::set<int64_t> numbers;
  for (int i = 0; i < 4; ++i) numbers.insert(ring->number_of(taken.emplace_back(ring->try_take(128)).get()));
  EXPECT_EQ(numbers, (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(ring->try_take(1), nullptr);
  auto copy = taken[2];
  std::byte* const third = copy.get();
  taken.clear();
  EXPECT_EQ(ring->free_buffers(), 3);
  copy.reset();
  EXPECT_EQ(ring->free_buffers(), 4);
  EXPECT_EQ(ring->try_take(1).get(), third);  // the one used last, which may be in a cache
  EXPECT_EQ(ring->number_of(memory.data + 1), -1);
  EXPECT_EQ(ring->number_of(memory.data + 512), -1);
  EXPECT_EQ(ring->number_of(memory.data - 128), -1);
}

TEST(BatchRing, MemoryThatDoesNotSuitIsRefused) {
  const Aligned memory(1024);
  const auto code = [](const auto& ring) { return ring.error().code(); };
  EXPECT_EQ(code(BatchRing::create(memory.data + 8, 64, 4, 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(BatchRing::create(memory.data, 100, 4, 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(BatchRing::create(memory.data, 64, 4, 3)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(BatchRing::create(nullptr, 64, 4, 1)), ErrorCode::kInvalidArgument);
  const TestSet data = make_dataset("ring-refused", {40}, 1);
  const auto loader = make(options_for(data, 4));
  EXPECT_THAT(loader->use_ring(*BatchRing::create(memory.data, 64, 4, 1)).error().to_string(),
              HasSubstr("not what ring_space() asks for"));
  EXPECT_EQ(code(loader->ring_space(1 << 20)), ErrorCode::kInvalidArgument);
  const Ring ring(*loader, 2);
  EXPECT_THAT(loader->use_ring(ring.buffers).error().to_string(), HasSubstr("in other memory already"));
  loader->close();
}

// What NumPy would see of a field.
std::string text_of(const PackedBatch& batch, std::string_view name) {
  const auto field = std::ranges::find(batch.fields, name, &PackedBatch::Field::name);
  if (field == batch.fields.end()) return "none";
  int64_t count = 1;
  for (const int64_t size : field->shape) count *= size;
  std::string text(field->dtype);
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* const at = batch.data + field->offset;
    if (field->dtype == "int64") text += fmt::format(" {}", reinterpret_cast<const int64_t*>(at)[i]);
    if (field->dtype == "int32") text += fmt::format(" {}", reinterpret_cast<const int32_t*>(at)[i]);
    if (field->dtype == "bool") text += fmt::format(" {}", static_cast<int>(at[i]));
  }
  return text;
}

std::string text_of(const PackedBatch& batch) {
  std::string text;
  for (const auto& field : batch.fields) {
    EXPECT_EQ(field.offset % BatchRing::kAlignment, 0);
    text += fmt::format("{} [{}] {}\n", field.name, fmt::join(field.shape, ","), text_of(batch, field.name));
  }
  return text;
}

LoaderOptions random_options(const TestSet& data, std::mt19937_64& random) {
  LoaderOptions options =
      options_for(data, static_cast<int64_t>(1 + random() % 5), static_cast<int64_t>(1 + random() % 40));
  options.collate = std::array{Collate::kPad, Collate::kPack, Collate::kBestFit}[random() % 3];
  options.documents = options.collate != Collate::kPad && random() % 2 == 0;
  options.id_type = random() % 2 == 0 ? IdType::kInt64 : IdType::kInt32;
  options.drop_last = random() % 2 == 0;
  options.fill_last = std::array{FillLast::kNothing, FillLast::kPadding, FillLast::kRepeats}[random() % 3];
  options.world_size = static_cast<int64_t>(1 + random() % 3);
  options.rank = static_cast<int64_t>(random() % static_cast<uint64_t>(options.world_size));
  options.uneven_ranks = options.fill_last == FillLast::kNothing;
  if (options.fill_last != FillLast::kNothing) {
    options.drop_last = false;
    options.global_batch_size *= options.world_size;
  }
  options.order.seed = random();
  options.threads = static_cast<int>(1 + random() % 4);
  return options;
}

// Batches are held as long as a copy of them might take, and looked at when they are given back.
TEST(BatchRing, BatchesAreThoseOfAPlainLoaderAndStayWhatTheyAreWhileTheyAreHeld) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", test_seed()));
  const TestSet data = make_dataset("ring", {60, 3, 40}, random());
  for (int round = 0; round < rounds(24); ++round) {
    const LoaderOptions options = random_options(data, random);
    SCOPED_TRACE(fmt::format("round {}", round));
    const PackedFields wanted{.sources = false, .state = random() % 2 == 0};
    const auto plain = make(options), loader = make(options);
    const auto kept = static_cast<int64_t>(1 + random() % 3);
    const Ring ring(*loader, kept);
    std::deque<std::pair<PackedBatch, std::string>> held;
    const auto let_go = [&] {
      ASSERT_EQ(text_of(held.front().first), held.front().second);
      held.pop_front();
    };
    for (int number = 0;; ++number) {
      auto expected = take(*plain);
      auto given = take(*loader);
      ASSERT_EQ(expected.has_value(), given.has_value());
      if (!expected) break;
      ASSERT_EQ(*plain->state(), *loader->state());
      const int64_t rows = given->rows;
      PackedBatch packed = pack_batch(*std::move(given), options, wanted);
      ASSERT_GE(ring.buffers->number_of(packed.data), 0) << number;
      ASSERT_LE(packed.bytes, packed_bytes(options, rows));
      std::string text = text_of(pack_batch(*std::move(expected), options, wanted));
      ASSERT_EQ(text_of(packed), text);
      held.emplace_back(std::move(packed), std::move(text));
      if (std::ssize(held) > kept - 1) let_go();
    }
    while (!held.empty()) let_go();
    loader->close();
    EXPECT_EQ(ring.buffers->free_buffers(), ring.buffers->buffers());
    EXPECT_EQ(loader->metrics().count(Metric::kBatchCopies), 0);
  }
}

TEST(BatchRing, WhoKeepsMoreGetsOrdinaryMemory) {
  const TestSet data = make_dataset("ring-kept", {300}, 7);
  LoaderOptions options = options_for(data, 2);
  options.memory_bytes = 1 << 20;
  const auto plain = make(options), loader = make(options);
  const Ring ring(*loader, 2);
  std::vector<Batch> kept;
  while (auto batch = take(*loader)) kept.push_back(*std::move(batch));
  for (const Batch& batch : kept) ASSERT_EQ(rows_of(batch), rows_of(*take(*plain)));
  EXPECT_FALSE(take(*plain));
  EXPECT_EQ(ring.buffers->free_buffers(), 0);
  EXPECT_EQ(loader->metrics().count(Metric::kBatchCopies), std::ssize(kept) - ring.buffers->buffers());
  kept.clear();
  EXPECT_EQ(ring.buffers->free_buffers(), ring.buffers->buffers());
}

TEST(BatchRing, AMoveGivesBuffersBack) {
  const TestSet data = make_dataset("ring-moves", {200}, 7);
  const auto plain = make(options_for(data, 4)), loader = make(options_for(data, 4));
  const Ring ring(*loader, 1);
  const std::string start = *loader->state();
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(loader->load_state(start));
    ASSERT_TRUE(plain->load_state(start));
    for (int i = 0; i <= round % 5; ++i) ASSERT_EQ(rows_of(*take(*loader)), rows_of(*take(*plain)));
  }
  loader->close();
  EXPECT_EQ(ring.buffers->free_buffers(), ring.buffers->buffers());
  EXPECT_EQ(loader->metrics().count(Metric::kBatchCopies), 0);
}

// A batch that was made before the loader had a ring has no room behind it.
TEST(BatchRing, ABatchWithoutRoomIsPackedIntoNewMemory) {
  const TestSet data = make_dataset("ring-room", {40}, 2);
  LoaderOptions options = options_for(data, 3);
  options.collate = Collate::kPack;
  options.documents = true;
  const auto loader = make(options);
  Batch batch = *take(*loader);
  const std::byte* const before = batch.arrays.front().data;
  const auto rows = rows_of(batch);
  const std::vector<int32_t> ends = batch.cu_seqlens;
  const std::string state = fmt::format("int64 {} {}", batch.epoch, batch.next_position);
  const PackedBatch packed = pack_batch(std::move(batch), options, {.state = true});
  EXPECT_NE(packed.data, before);
  EXPECT_EQ(text_of(packed, "cu_seqlens"), fmt::format("int32 {}", fmt::join(ends, " ")));
  EXPECT_EQ(text_of(packed, "loader_state"), state);
  EXPECT_THAT(text_of(packed, "input_ids"), HasSubstr(fmt::format("int64 {} ", fmt::join(rows[0], " "))));
  EXPECT_EQ(text_of(packed, "source"), "none");
}

TEST(BatchRing, TheRingIsPartOfTheLoadersMemory) {
  const TestSet data = make_dataset("ring-cap", std::vector<int>(4, 100), 5);
  for (const int64_t memory : {1 << 20, 8 << 20, 64 << 20}) {
    LoaderOptions options = options_for(data, 8, 64);
    options.memory_bytes = memory;
    const int64_t before = MemoryBudget::process()->reserved_bytes();
    const auto loader = make(options);
    const Ring ring(*loader, 4);
    while (take(*loader)) {
    }
    // All that the loader may hold, its buffers with it, is one reservation of memory_bytes.
    EXPECT_EQ(MemoryBudget::process()->reserved_bytes() - before, memory);
    EXPECT_LE(ring.buffers->bytes(), std::max<int64_t>(memory / 4, 6 * ring.buffers->buffer_bytes()));
    EXPECT_GE(ring.buffers->buffers(), 6);
  }
}

TEST(BatchRing, SamplesOfAnyKindHaveNone) {
  const TestSet data = make_dataset("ring-any", {10}, 5);
  LoaderOptions options = options_for(data, 2);
  SampleFields fields;
  fields.specs.push_back({.name = "text", .sources = {"text.txt"}, .kind = FieldKind::kBytes});
  options.fields = std::make_shared<const SampleFields>(fields);
  EXPECT_THAT(make(options)->ring_space(2).error().to_string(), HasSubstr("no largest size"));
}

TEST(LoaderTryNext, GivesTheSameBatchesAndNeverWaits) {
  const TestSet data = make_dataset("try-next", {100}, 5);
  const auto plain = make(options_for(data, 4)), loader = make(options_for(data, 4));
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (const auto expected = take(*plain)) {
    auto given = loader->try_next();
    while (given && !*given && Clock::now() < deadline) {
      std::this_thread::yield();
      given = loader->try_next();
    }
    ASSERT_TRUE(given && *given);
    ASSERT_EQ(rows_of(**given), rows_of(*expected));
    ASSERT_EQ(*loader->state(), *plain->state());
  }
  const auto end = loader->try_next();
  EXPECT_TRUE(end && !*end);
  EXPECT_EQ(*loader->state(), *plain->state());
  loader->close();
  EXPECT_EQ(loader->try_next().error().code(), ErrorCode::kCancelled);
}

TEST(LoaderTryNext, AnErrorStays) {
  const TestSet data = make_dataset("try-error", {100}, 5);
  const Location shard = data.shard(0);
  std::string bytes = read_object(*shard.storage, shard.key, 1 << 24).value();
  std::fill(bytes.begin() + 2000, bytes.end(), 'x');
  ASSERT_TRUE(write_object(*shard.storage, shard.key, bytes));
  const auto loader = make(options_for(data, 4));
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  auto answer = loader->try_next();
  while (answer && !*answer && Clock::now() < deadline) answer = loader->try_next();
  ASSERT_FALSE(answer);
  EXPECT_EQ(loader->try_next().error().to_string(), answer.error().to_string());
  EXPECT_EQ(loader->next().error().to_string(), answer.error().to_string());
}

}  // namespace
}  // namespace millrace::loader
