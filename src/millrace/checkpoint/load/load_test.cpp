// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/records/records.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;

// Saves with one Saver a rank, as ranks do.
void save_sharded(const Location& root, int64_t step, const std::vector<RankTensors>& ranks) {
  std::vector<std::unique_ptr<Saver>> savers;
  std::vector<std::shared_ptr<PendingSave>> saves;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    savers.push_back(
        make_saver(root, {.rank = static_cast<int64_t>(rank), .world_size = static_cast<int64_t>(ranks.size())}));
    auto save = savers.back()->save(step, ranks[rank].tensors(), "{}", std::to_string(rank));
    ASSERT_TRUE(save) << explain(save);
    saves.push_back(std::move(*save));
  }
  for (const auto& save : saves) EXPECT_OK(save->wait());
}

Box random_box_in(const std::vector<int64_t>& shape, std::mt19937_64& random) {
  Box box;
  for (const int64_t dimension : shape) {
    box.offset.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(dimension + 1)));
    box.shape.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(dimension - box.offset.back() + 1)));
  }
  return box;
}

TEST(Load, AnyBoxesOfAnyShardingEqualThePlainArray) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "MILLRACE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 25; ++round) {
    Arrays arrays = small_arrays(random());
    arrays["three"] = make_array(Dtype::kF64, {1 + static_cast<int64_t>(random() % 7), 5, 4}, random());
    arrays["tall"] = make_array(Dtype::kU8, {30'000, 7}, random());
    const Location root = memory_root();
    save_sharded(root, 3, sharded_tensors(arrays, 1 + static_cast<int64_t>(random() % 5), random));
    const auto checkpoint = Checkpoint::open(root, 3);
    ASSERT_TRUE(checkpoint) << explain(checkpoint);
    ASSERT_TRUE((*checkpoint)->verify(2));
    for (int load = 0; load < 4; ++load) {
      std::map<std::string, Box> boxes;
      for (const auto& [name, array] : arrays) {
        if (random() % 4 == 0) continue;
        boxes[name] = random() % 4 == 0 ? box_of_all(array.shape) : random_box_in(array.shape, random);
      }
      const Status same = load_and_compare(**checkpoint, arrays, boxes);
      ASSERT_TRUE(same) << explain(same);
    }
  }
}

// Tensors of several hash chunks, cut and put together across chunk borders.
TEST(Load, LargeTensorsAreReadChunkByChunk) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  const Arrays arrays{{"w", make_array(Dtype::kF32, {1'100, 4'001}, 4)}, {"b", make_array(Dtype::kU8, {1'300'000}, 5)}};
  std::vector<RankTensors> ranks(2);
  ranks[0].add("w", arrays.at("w"), {{0, 0}, {1'100, 4'000}});
  ranks[1].add("w", arrays.at("w"), {{0, 4'000}, {1'100, 1}});
  ranks[1].add("b", arrays.at("b"), {{0}, {1'300'000}});
  save_sharded(root, 1, ranks);
  const auto checkpoint = Checkpoint::open(root, 1);
  ASSERT_TRUE(checkpoint) << explain(checkpoint);
  EXPECT_OK(load_and_compare(**checkpoint, arrays, {{"w", {{0, 0}, {1'100, 4'001}}}, {"b", {{0}, {1'300'000}}}}));
  EXPECT_OK(load_and_compare(**checkpoint, arrays, {{"w", {{0, 0}, {1'100, 4'000}}}}));
  EXPECT_OK(load_and_compare(**checkpoint, arrays, {{"w", {{1'030, 3'990}, {20, 11}}}, {"b", {{1'299'999}, {1}}}}));
}

// So that each read may go past the page cache, wherever tensors and the caller's memory lie.
TEST(Load, ReadsWholePagesIntoPagesOfMemory) {
  const auto watched = std::make_shared<WatchedStorage>(make_memory_storage("test"));
  const Location root = root_of(watched);
  Arrays arrays;
  for (int i = 0; i < 7; ++i) {
    arrays["step" + std::to_string(i)] = make_array(Dtype::kF32, {}, static_cast<uint64_t>(i));
    arrays["avg" + std::to_string(i)] = make_array(Dtype::kF64, {950'001}, static_cast<uint64_t>(i) + 50);
  }
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  EXPECT_OK(load_and_compare(root, 1, arrays));
  const int64_t file = list_steps(root).value().front().bytes;
  int64_t bytes = 0;
  for (const auto& read : watched->reads()) {
    EXPECT_TRUE(read.in_pages);
    EXPECT_EQ(read.offset % 4096, 0);
    EXPECT_TRUE(read.size % 4096 == 0 || read.offset + read.size == file) << read.offset << " " << read.size;
    EXPECT_LE(read.size, 8 << 20);
    bytes += read.size;
  }
  EXPECT_LE(bytes, file + file / 50) << "neighbours are read once, but for a page where two chunks meet";
}

// What an earlier build wrote: hashes of up to 16 MiB.
TEST(Load, HashChunksOfAnySizeAreRead) {
  const Location root = memory_root();
  const Arrays arrays{{"w", make_array(Dtype::kF64, {17 << 17}, 4)}, {"x", make_array(Dtype::kU8, {3}, 5)}};
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  const Location part = step_location(root, 1).child("r0000-test").child(RankPlaces::of_new(1).record(0));
  PartRecord record = parse_part(read_object(*part.storage, part.key).value(), part.url).value();
  record.chunk_bytes = kMaxChunkBytes;
  const std::string_view w = arrays.at("w").bytes;
  record.tensors[0].hashes = {xxh3_128(w.substr(0, kMaxChunkBytes)), xxh3_128(w.substr(kMaxChunkBytes))};
  const std::string text = serialize(record);
  ASSERT_TRUE(write_object(*part.storage, part.key, text));
  Manifest manifest = read_manifest(root, 1).value().manifest;
  manifest.parts[0].bytes = std::ssize(text);
  manifest.parts[0].hash = xxh3_128(text);
  ASSERT_TRUE(write_object(*root.storage, step_location(root, 1).child(kManifestName).key, serialize(manifest)));
  EXPECT_OK(load_and_compare(root, 1, arrays));
  EXPECT_OK(Checkpoint::open(root, 1).value()->verify(2));
}

TEST(Load, OpensOnlyTheFilesThatAreNeeded) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  const Arrays arrays{{"a", make_array(Dtype::kF32, {8}, 1)}};
  std::vector<RankTensors> ranks(4);
  for (size_t r = 0; r < 4; ++r) ranks[r].add("a", arrays.at("a"), {{static_cast<int64_t>(r) * 2}, {2}});
  save_sharded(root, 1, ranks);
  for (const char* part : {"00000-of", "00003-of"})
    plan->add(
        {.key_part = part, .count = FaultRule::kForever, .error = Error(ErrorCode::kUnavailable, "do not touch")});
  const auto checkpoint = Checkpoint::open(root, 1);
  ASSERT_TRUE(checkpoint) << explain(checkpoint);
  EXPECT_OK(load_and_compare(**checkpoint, arrays, {{"a", {{3}, {2}}}}));
  EXPECT_EQ(plan->hits(), 0);
  EXPECT_CODE(load_and_compare(**checkpoint, arrays, {{"a", {{3}, {4}}}}), ErrorCode::kUnavailable);
  EXPECT_EQ((*checkpoint)->rank_state(2).value(), "2");
}

TEST(Load, WhatCannotBeLoadedIsSaid) {
  const Location root = memory_root();
  const Arrays arrays = small_arrays(1);
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  EXPECT_CODE(Checkpoint::open(root, 2), ErrorCode::kNotFound);
  EXPECT_CODE(Checkpoint::open(root_of(root.storage, "elsewhere"), 1), ErrorCode::kNotFound);
  const auto checkpoint = Checkpoint::open(root, 1).value();
  std::byte data[64];
  const auto load = [&](TensorToLoad target, std::stop_token stop = {}) {
    return checkpoint->load({&target, 1}, 1, stop);
  };
  EXPECT_CODE(load({"nothing", {}, data}), ErrorCode::kNotFound);
  EXPECT_CODE(load({"layer.0.bias", {{1}, {8}}, data}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(load({"layer.0.bias", {{0, 0}, {8, 1}}, data}), ErrorCode::kInvalidArgument);
  EXPECT_CODE(load({"layer.0.bias", {{0}, {8}}, nullptr}), ErrorCode::kInvalidArgument);
  EXPECT_OK(load({"empty", {{0, 0}, {0, 4}}, nullptr}));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_CODE(load({"layer.0.bias", {{0}, {8}}, data}, stop.get_token()), ErrorCode::kCancelled);
  EXPECT_CODE(checkpoint->verify(1, stop.get_token()), ErrorCode::kCancelled);
}

TEST(Load, ElementsBelowAByteLoadAsTheyWereSaved) {
  const Location root = memory_root();
  const Array array{Dtype::kF4, {4, 2}, "abcd"};
  // SAFETY: std::byte may alias any object.
  const TensorToSave tensor{
      "q", Dtype::kF4, {4, 2}, {{0, 0}, {4, 2}}, reinterpret_cast<const std::byte*>(array.bytes.data())};
  const auto saver = make_saver(root);
  const auto save = saver->save(1, {&tensor, 1}, "{}", "null");
  ASSERT_TRUE(save) << explain(save);
  EXPECT_OK((*save)->wait());
  const auto checkpoint = Checkpoint::open(root, 1).value();
  std::string bytes(4, '?');
  // SAFETY: std::byte may alias any object.
  auto* data = reinterpret_cast<std::byte*>(bytes.data());
  TensorToLoad all{"q", {{0, 0}, {4, 2}}, data};
  EXPECT_OK(checkpoint->load({&all, 1}));
  EXPECT_EQ(bytes, "abcd");
  TensorToLoad half{"q", {{0, 0}, {2, 2}}, data};
  EXPECT_CODE(checkpoint->load({&half, 1}), ErrorCode::kUnsupported);
}

TEST(Load, ProgressEndsAtItsTotals) {
  const Location root = memory_root();
  const Arrays arrays = small_arrays(1);
  EXPECT_OK(save_and_wait(*make_saver(root), 1, arrays));
  Progress progress;
  EXPECT_OK(Checkpoint::open(root, 1).value()->verify(2, {}, &progress));
  const auto at = progress.snapshot();
  EXPECT_EQ(at.bytes, 96 + 32 + 8 + 30);
  EXPECT_EQ(at.bytes, at.total_bytes);
  EXPECT_EQ(at.items, 4) << "all but the empty one";
  EXPECT_EQ(at.items, at.total_items);
}

}  // namespace
}  // namespace millrace::checkpoint
