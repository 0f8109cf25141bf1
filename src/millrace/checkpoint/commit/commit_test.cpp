// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/commit/commit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <future>
#include <iostream>
#include <thread>

#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/testing.h"
#include "millrace/storage/testing/fault.h"

namespace millrace::checkpoint {
namespace {

using formats::Dtype;
using std::chrono::milliseconds;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

SaverOptions options_of(const std::string& attempt, int64_t rank = 0, int64_t world_size = 1) {
  return {.attempt = attempt,
          .rank = rank,
          .world_size = world_size,
          .threads = 1,
          .commit_timeout = std::chrono::minutes(2)};
}

// For a rank that waits for others that never come.
SaverOptions hasty(SaverOptions options, milliseconds commit_timeout = milliseconds(100)) {
  options.commit_timeout = commit_timeout;
  return options;
}

TEST(Commit, NeedsEveryRank) {
  const Location root = memory_root();
  const Arrays arrays = small_arrays(1);
  std::mt19937_64 random(1);
  const auto ranks = sharded_tensors(arrays, 4, random);
  std::vector<std::unique_ptr<Saver>> savers;
  // Short enough to wait for, long enough for four ranks of a busy machine.
  for (int64_t rank = 0; rank < 4; ++rank)
    savers.push_back(make_saver(root, hasty(options_of("r0000-a", rank, 4), milliseconds(3'000))));
  const auto save = [&](size_t rank, int64_t step) {
    return savers[rank]->save(step, ranks[rank].tensors(), "{}", "null").value();
  };
  const auto first = save(0, 1), third = save(2, 1);
  const Status missed = first->wait();
  EXPECT_CODE(missed, ErrorCode::kTimeout);
  EXPECT_THAT(missed.error().to_string(), HasSubstr("no part record of rank 1, 3 (of 4)"));
  EXPECT_CODE(third->wait(), ErrorCode::kTimeout);
  EXPECT_THAT(committed_steps(root), IsEmpty());
  EXPECT_CODE(Checkpoint::open(root, 1), ErrorCode::kNotFound);

  // The next step succeeds and takes what the failed one left with it.
  std::vector<std::shared_ptr<PendingSave>> saves;
  for (size_t rank = 4; rank-- > 0;) saves.push_back(save(rank, 2));
  for (const auto& each : saves) EXPECT_OK(wait_for_all(*each));
  EXPECT_OK(load_and_compare(root, 2, arrays));
  EXPECT_THAT(keys_below(root.child("step-000000000001")), IsEmpty());
}

// The part of one of many ranks, each of which has four elements of one tensor.
void save_shard(Saver& saver, int64_t rank, int64_t world_size) {
  static const Array shard = make_array(Dtype::kBF16, {4}, 1);
  RankTensors tensors;
  tensors.add("shard", shard, box_of_all(shard.shape));
  std::vector<TensorToSave> saved = tensors.tensors();
  saved[0].global_shape = {4 * world_size};
  saved[0].box = {{4 * rank}, {4}};
  const auto save = saver.save_part(1, saved, "null");
  ASSERT_TRUE(save) << explain(save);
  ASSERT_TRUE((*save)->wait());
}

// What thousands of ranks ask of a storage, counted rank by rank: the code of a save and a load, but one rank at a
// time.
TEST(Commit, ManyRanksAskForLittleEach) {
  const int64_t world_size = std::getenv("MILLRACE_TEST_LONG") != nullptr ? 16'384 : 512;
  const auto plan = std::make_shared<FaultPlan>();
  plan->add({.count = FaultRule::kForever});
  const auto storage = make_memory_storage("many");
  const Location root = root_of(make_fault_storage(storage, plan), "run");
  int64_t before = 0;
  const auto asked = [&] { return plan->hits() - std::exchange(before, plan->hits()); };
  const Array shard = make_array(Dtype::kBF16, {4}, 1);
  std::unique_ptr<Saver> committer;
  int64_t most = 0;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    auto saver = make_saver(root, options_of("r0000-a", rank, world_size));
    static_cast<void>(asked());
    save_shard(*saver, rank, world_size);
    most = std::max(most, asked());
    if (rank == 0) committer = std::move(saver);
  }
  ASSERT_TRUE(committer->commit(1, "{}"));
  committer.reset();  // ends with what follows the commit
  const int64_t committing = asked();
  const auto checkpoint = Checkpoint::open(root, 1);
  ASSERT_TRUE(checkpoint) << explain(checkpoint);
  const int64_t opening = asked();
  std::string bytes(8, '?');
  const TensorToLoad target{"shard", {{4 * (world_size - 1)}, {4}}, reinterpret_cast<std::byte*>(bytes.data())};
  ASSERT_TRUE((*checkpoint)->load(std::span(&target, 1)));
  EXPECT_EQ(bytes, shard.bytes);
  const int64_t loading = asked();
  const Location manifest = step_location(root, 1).child(kManifestName);
  const auto manifest_bytes = std::ssize(*read_object(*storage, manifest.key, 1 << 30));
  int64_t files = 0, record_bytes = 0;
  ASSERT_TRUE(for_each_object(*storage, root.key + "/", [&](const ObjectInfo& object) {
    ++files;
    if (object.key.ends_with(".json") && object.key != manifest.key) record_bytes += object.size;
    return Status();
  }));
  std::cout << world_size << " ranks: " << most << " operations to save a part, " << committing << " to commit, "
            << opening << " to open, " << loading << " to load a shard; " << files
            << " files, of which the manifest has " << manifest_bytes << " bytes and the records "
            << record_bytes / world_size << " a rank\n";
  EXPECT_LE(most, 12);
  EXPECT_LE(committing, 4 * world_size + 20) << "a listing, and a record of each rank";
  EXPECT_LE(opening, 4);
  EXPECT_LE(loading, 8);
  EXPECT_LT(manifest_bytes, 300 * world_size);
  EXPECT_EQ(files, 2 * world_size + 2) << "two a rank, the manifest and `latest`";
  EXPECT_LT(record_bytes, 600 * world_size);
}

// Checks the last eight elements of all ranks in the tensor "shard".
void expect_shards(std::span<const Location> tiers, int64_t world_size) {
  const auto checkpoint = Checkpoint::open(tiers, 1);
  ASSERT_TRUE(checkpoint) << explain(checkpoint);
  std::string bytes(16, '?');
  const TensorToLoad target{"shard", {{4 * world_size - 8}, {8}}, reinterpret_cast<std::byte*>(bytes.data())};
  EXPECT_OK((*checkpoint)->load(std::span(&target, 1)));
  const std::string shard = make_array(Dtype::kBF16, {4}, 1).bytes;
  EXPECT_EQ(bytes, shard + shard);
  EXPECT_TRUE((*checkpoint)->heal());
  EXPECT_OK((*checkpoint)->verify(2));
}

// The same step as an earlier build wrote it: format version 1, all files in one folder.
void flatten(const Location& root) {
  Manifest manifest = read_manifest(root, 1).value().manifest;
  const Location attempt = step_location(root, 1).child(manifest.attempt);
  const RankPlaces flat{manifest.world_size(), false};
  for (int64_t rank = 0; rank < manifest.world_size(); ++rank) {
    const Location record_at = attempt.child(manifest.places().record(rank));
    const Location file_at = attempt.child(manifest.places().file(rank));
    PartRecord record = parse_part(read_object(*root.storage, record_at.key).value(), "here").value();
    record.in_folders = false;
    const std::string text = serialize(record), file = read_object(*root.storage, file_at.key).value();
    ASSERT_TRUE(write_object(*root.storage, attempt.child(flat.record(rank)).key, text));
    ASSERT_TRUE(write_object(*root.storage, attempt.child(flat.file(rank)).key, file));
    ASSERT_TRUE(root.storage->remove(std::vector{record_at.key, file_at.key}));
    manifest.parts[static_cast<size_t>(rank)].bytes = std::ssize(text);
    manifest.parts[static_cast<size_t>(rank)].hash = xxh3_128(text);
  }
  manifest.in_folders = false;
  ASSERT_TRUE(write_object(*root.storage, step_location(root, 1).child(kManifestName).key, serialize(manifest)));
}

TEST(ManyRanks, HaveAFolderForEachThousand) {
  constexpr int64_t kRanks = 1'001;
  const Location root = memory_root();
  std::unique_ptr<Saver> committer;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    auto saver = make_saver(root, options_of("r0000-a", rank, kRanks));
    save_shard(*saver, rank, kRanks);
    if (rank == 0) committer = std::move(saver);
  }
  EXPECT_OK(committer->commit(1, "{}"));
  const Location attempt = step_location(root, 1).child("r0000-a");
  EXPECT_THAT(list_level(attempt).value().directories, ElementsAre("ranks-00000", "ranks-00001"));
  EXPECT_THAT(list_level(attempt).value().objects, IsEmpty());
  EXPECT_EQ(list_level(attempt.child("ranks-00000")).value().objects.size(), 2'000U);
  EXPECT_THAT(keys_below(attempt.child("ranks-00001")),
              ElementsAre("part-01000-of-01001.json", "rank-01000-of-01001.safetensors"));
  const Location manifest = step_location(root, 1).child(kManifestName);
  EXPECT_THAT(read_object(*root.storage, manifest.key).value(), HasSubstr("\"version\":2"))
      << "an older build must not look for the files in one folder, miss them and go to the step before";
  expect_shards(std::span(&root, 1), kRanks);

  const Location copy = root_of(make_memory_storage("copy"), "copy");
  EXPECT_OK(copy_step(std::span(&root, 1), copy, 1));
  EXPECT_EQ(keys_below(step_location(copy, 1)), keys_below(step_location(root, 1)));
  const Location damaged = step_location(copy, 1).child("r0000-a/ranks-00001/rank-01000-of-01001.safetensors");
  const std::string good = read_object(*copy.storage, damaged.key).value();
  ASSERT_TRUE(write_object(*copy.storage, damaged.key, std::string(good.size(), 'x')));
  expect_shards(std::vector{copy, root}, kRanks);
  EXPECT_EQ(read_object(*copy.storage, damaged.key).value(), good) << "written anew";

  flatten(copy);
  expect_shards(std::span(&copy, 1), kRanks);
  const Location second = root_of(make_memory_storage("second"), "second");
  EXPECT_OK(copy_step(std::span(&copy, 1), second, 1)) << "as it is, and not in folders";
  expect_shards(std::span(&second, 1), kRanks);
  EXPECT_OK(remove_step(root, 1));
  EXPECT_THAT(keys_below(root), ElementsAre("latest"));
}

TEST(ManyRanks, TheirFoldersGoWithTheStep) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  const Location dead = step_location(root, 1).child("r0000-a");
  ASSERT_TRUE(write_object(*root.storage, dead.child("ranks-00000/rank-00000-of-01001.safetensors").key, "half"));
  std::filesystem::create_directories(directory.path() + "/run/step-000000000001/r0000-a/ranks-00001");
  std::filesystem::create_directories(directory.path() + "/run/step-000000000001/r0001-b/ranks-00000");
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-c")), 2, small_arrays(2)));
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/run/step-000000000001"));
  EXPECT_OK(load_and_compare(root, 2, small_arrays(2)));
}

TEST(Commit, RanksThatWaitDoNotAskTooOften) {
  EXPECT_EQ(look_pauses(1).first, milliseconds(5));
  EXPECT_EQ(look_pauses(8).longest, milliseconds(200));
  for (const int64_t ranks : {1'000, 16'384, 1'000'000}) {
    EXPECT_LE(1000.0 * ranks / look_pauses(ranks).longest.count(), 1000.0) << "requests a second of all";
  }
}

TEST(Commit, ASaveInTwoHalvesIsInvisibleBeforeTheSecond) {
  const Location root = memory_root();
  const Arrays arrays = small_arrays(1);
  std::mt19937_64 random(1);
  const auto ranks = sharded_tensors(arrays, 2, random);
  auto rank0 = make_saver(root, hasty(options_of("r0000-a", 0, 2)));
  const auto rank1 = make_saver(root, options_of("r0000-a", 1, 2));
  const auto part = [&](Saver& saver, size_t rank, int64_t step) {
    const auto pending = saver.save_part(step, ranks[rank].tensors(), "null");
    EXPECT_OK(pending);
    return (*pending)->wait();
  };
  EXPECT_CODE(rank0->commit(1, "{}"), ErrorCode::kInvalidArgument);
  EXPECT_OK(part(*rank0, 0, 1));
  EXPECT_CODE(rank0->commit(1, "{}"), ErrorCode::kTimeout) << "rank 1 has no part";
  EXPECT_OK(part(*rank1, 1, 1));
  EXPECT_THAT(committed_steps(root), IsEmpty());
  EXPECT_CODE(rank0->commit(1, "{}"), ErrorCode::kInvalidArgument) << "its part is used up";

  EXPECT_OK(part(*rank1, 1, 2));
  EXPECT_OK(part(*rank0, 0, 2));
  EXPECT_CODE(rank0->commit(3, "{}"), ErrorCode::kInvalidArgument);
  EXPECT_CODE(rank0->commit(2, "\xff"), ErrorCode::kInvalidArgument);
  EXPECT_OK(rank0->commit(2, "{\"a\": 1}"));
  EXPECT_THAT(committed_steps(root), ElementsAre(2));
  EXPECT_OK(load_and_compare(root, 2, arrays));
  EXPECT_EQ(Checkpoint::open(root, 2).value()->state(), "{\"a\": 1}");
  rank0.reset();  // ends with the sweep
  EXPECT_THAT(keys_below(root.child("step-000000000001")), IsEmpty()) << "what was not committed is swept";
  EXPECT_EQ(Checkpoint::open(root, 2).value()->boxes("layer.0.weight").size(), 2U);
}

TEST(Commit, PartsThatDoNotMakeOneTensorAreRefused) {
  const Array array = make_array(Dtype::kF32, {4, 4}, 1);
  const SaverOptions of_one = options_of("r0000-a", 1, 2);
  const auto outcome = [&](const RankTensors& zero, const RankTensors& one, const SaverOptions& options_of_one) {
    const Location root = memory_root();
    const auto committer = make_saver(root, options_of("r0000-a", 0, 2)), other = make_saver(root, options_of_one);
    const auto theirs = other->save(1, one.tensors(), "{}", "null").value();
    const Status status = committer->save(1, zero.tensors(), "{}", "null").value()->wait();
    EXPECT_EQ(theirs->wait().has_value(), status.has_value());
    EXPECT_EQ(committed_steps(root).size(), status.has_value() ? 1U : 0U);
    return status;
  };
  RankTensors top, bottom, all, none, short_bottom, other_type, other_shape;
  top.add("w", array, {{0, 0}, {2, 4}});
  bottom.add("w", array, {{2, 0}, {2, 4}});
  short_bottom.add("w", array, {{2, 0}, {1, 4}});
  all.add("w", array, {{0, 0}, {4, 4}});
  other_type.add("w", {Dtype::kI32, array.shape, array.bytes}, {{2, 0}, {2, 4}});
  other_shape.add("w", {Dtype::kF32, {2, 8}, array.bytes}, {{0, 0}, {2, 8}});
  EXPECT_OK(outcome(top, bottom, of_one));
  EXPECT_OK(outcome(none, all, of_one));
  const auto refused = [&](const RankTensors& zero, const RankTensors& one, const char* reason) {
    const Status status = outcome(zero, one, hasty(of_one));
    EXPECT_CODE(status, ErrorCode::kCorruption);
    EXPECT_THAT(status.error().to_string(), testing::AllOf(HasSubstr("'w'"), HasSubstr(reason)));
  };
  refused(top, none, "gap");
  refused(top, short_bottom, "gap");
  refused(all, all, "overlap");
  refused(top, all, "overlap");
  refused(top, other_type, "other ranks have");
  refused(top, other_shape, "other ranks have");
}

TEST(Commit, AFileOfAnotherSizeIsRefused) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto storage = make_memory_storage("test");
  const Location root = root_of(storage);
  const Location slow = root_of(make_fault_storage(storage, plan));
  // Rank 1's file is cut between its record and the committer's look.
  plan->add({.call = FaultCall::kList, .delay = milliseconds(150)});
  const RankTensors tensors = whole_tensors(small_arrays(1));
  const auto one = make_saver(root, hasty(options_of("r0000-a", 1, 2)));
  const auto theirs = one->save(1, tensors.tensors(), "{}", "null").value();
  const auto zero = make_saver(slow, options_of("r0000-a", 0, 2));
  const auto ours = zero->save(1, {}, "{}", "null").value();
  const std::string record = root.child("step-000000000001/r0000-a/part-00001-of-00002.json").key;
  while (!storage->stat(record)) std::this_thread::yield();
  ASSERT_TRUE(
      write_object(*storage, root.child("step-000000000001/r0000-a/rank-00001-of-00002.safetensors").key, "cut"));
  const Status status = ours->wait();
  EXPECT_CODE(status, ErrorCode::kCorruption);
  EXPECT_THAT(status.error().to_string(), HasSubstr("its file has 3 bytes"));
  EXPECT_FALSE(theirs->wait()) << "it is notified, or its wait timed out before";
}

TEST(Attempt, CountsUpFromWhatIsThere) {
  const Location root = memory_root();
  const auto first = make_attempt(root).value();
  EXPECT_THAT(first, StartsWith("r0000-"));
  EXPECT_NE(first, make_attempt(root).value());
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0007-x")), 1, small_arrays(1)));
  EXPECT_THAT(make_attempt(root).value(), StartsWith("r0008-"));
  // An attempt that never committed counts too.
  const auto dead = make_saver(root, hasty(options_of("r0011-x", 1, 2)));
  const RankTensors tensors = whole_tensors(small_arrays(1));
  EXPECT_CODE(dead->save(1, tensors.tensors(), "{}", "null").value()->wait(), ErrorCode::kTimeout);
  EXPECT_THAT(make_attempt(root).value(), StartsWith("r0012-"));
}

TEST(Attempt, AZombieNeverCommitsOverANewerOne) {
  const Location root = memory_root();
  const auto zombie = make_saver(root, options_of("r0001-old"));
  EXPECT_OK(save_and_wait(*zombie, 1, small_arrays(1)));
  const auto now = make_saver(root, options_of("r0002-new"));
  EXPECT_OK(save_and_wait(*now, 2, small_arrays(2)));
  const auto refused = save_and_wait(*zombie, 2, small_arrays(1));
  EXPECT_CODE(refused, ErrorCode::kAlreadyExists);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("r0002-new, which is not older than r0001-old"));
  // Nor may another attempt of the same age, nor this one a second time.
  EXPECT_CODE(save_and_wait(*make_saver(root, options_of("r0002-two")), 2, small_arrays(1)), ErrorCode::kAlreadyExists);
  EXPECT_CODE(save_and_wait(*make_saver(root, options_of("r0002-new")), 2, small_arrays(1)), ErrorCode::kAlreadyExists);
  EXPECT_OK(load_and_compare(root, 2, small_arrays(2)));
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
}

// The zombie's look at the step came before the newer attempt's commit, its own commit comes after.
TEST(Attempt, AZombieInMidSaveLosesToo) {
  const auto plan = std::make_shared<FaultPlan>();
  const auto storage = make_memory_storage("test");
  const Location root = root_of(storage);
  plan->add({.call = FaultCall::kCommit, .key_part = "manifest", .delay = milliseconds(200)});
  const auto zombie = make_saver(root_of(make_fault_storage(storage, plan)), options_of("r0001-old"));
  const RankTensors old_tensors = whole_tensors(small_arrays(1));
  const auto late = zombie->save(5, old_tensors.tensors(), "{}", "null").value();
  while (plan->hits() == 0) std::this_thread::yield();
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-new")), 5, small_arrays(2)));
  EXPECT_CODE(late->wait(), ErrorCode::kAlreadyExists);
  EXPECT_OK(load_and_compare(root, 5, small_arrays(2)));
}

TEST(Attempt, ANewerOneReplacesAStepAndItsFiles) {
  for (const bool damaged : {false, true}) {
    const Location root = memory_root();
    EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0001-old")), 5, small_arrays(1)));
    const std::string manifest = root.child("step-000000000005/manifest.json").key;
    if (damaged) {
      ASSERT_TRUE(write_object(*root.storage, manifest, "{"));
    }
    EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-new")), 5, small_arrays(2)));
    EXPECT_OK(load_and_compare(root, 5, small_arrays(2)));
    EXPECT_THAT(keys_below(root.child("step-000000000005")), Not(Contains(StartsWith("r0001-old/"))));
  }
}

TEST(Attempt, ItsFirstCommitRemovesWhatOlderOnesLeft) {
  const Location root = memory_root();
  const RankTensors tensors = whole_tensors(small_arrays(1));
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0001-a")), 1, small_arrays(1)));
  for (const int64_t step : {2, 9}) {
    const auto dead = make_saver(root, hasty(options_of("r0001-a", 1, 2)));
    EXPECT_CODE(dead->save(step, tensors.tensors(), "{}", "null").value()->wait(), ErrorCode::kTimeout);
  }
  const auto newer = make_saver(root, hasty(options_of("r0003-c", 1, 2)));
  EXPECT_CODE(newer->save(9, tensors.tensors(), "{}", "null").value()->wait(), ErrorCode::kTimeout);
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-b")), 3, small_arrays(3)));
  EXPECT_THAT(keys_below(root.child("step-000000000002")), IsEmpty());
  EXPECT_THAT(keys_below(root.child("step-000000000009")), Each(StartsWith("r0003-c/"))) << "newer: not ours to judge";
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
  EXPECT_OK(load_and_compare(root, 3, small_arrays(3)));
}

// Turns the manifest of `step` into one that a later format version wrote.
void make_newer(const Location& root, int64_t step) {
  const Location at = step_location(root, step).child(kManifestName);
  std::string text = read_object(*at.storage, at.key).value();
  const std::string now = "\"version\":1", sum = "\"checksum\":\"";
  text.replace(text.find(now), now.size(), "\"version\":4");
  const size_t begin = text.find(sum);
  const std::string rest = text.substr(0, begin) + text.substr(begin + sum.size() + 34);
  text.replace(begin + sum.size(), 32, to_hex(xxh3_128(rest)));
  ASSERT_TRUE(write_object(*at.storage, at.key, text));
}

TEST(Retention, KeepsTheLastAndEveryNth) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  SaverOptions options = options_of("r0000-a");
  options.keep.last = 2;
  options.keep.every = 40;
  const auto saver = make_saver(root, options);
  for (int64_t step = 10; step <= 100; step += 10) EXPECT_OK(save_and_wait(*saver, step, small_arrays(1)));
  EXPECT_THAT(committed_steps(root), ElementsAre(40, 80, 90, 100));
  for (const int64_t step : {40, 80, 90, 100}) EXPECT_OK(load_and_compare(root, step, small_arrays(1)));
  EXPECT_THAT(keys_below(root.child("step-000000000070")), IsEmpty());
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path() + "/run"))
    folders += static_cast<int>(entry.is_directory());
  EXPECT_EQ(folders, 4) << "those of removed steps are gone";
}

// Losses 9, 3, 5, 8, nan, 7 at steps 1 to 6; a step without a finite value is never the best.
TEST(Retention, KeepsTheBestByTheMetricsOfTheSaves) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  SaverOptions options = options_of("r0000-a");
  options.keep = {.last = 1, .best = 2, .monitor = "val/loss"};
  int64_t step = 0;
  for (int restart = 0; restart < 2; ++restart) {  // also over what an earlier process has saved
    options.attempt = "r000" + std::to_string(restart) + "-a";
    const auto saver = make_saver(root, options);
    for (int i = 0; i < 3; ++i) {
      const double loss = std::array{9.0, 3.0, 5.25, 8.0, std::nan(""), 7.0}.at(static_cast<size_t>(step++));
      const Arrays arrays = small_arrays(1);
      const auto save = saver->save(step, whole_tensors(arrays).tensors(), "{}", "null", {{"val/loss", loss}});
      ASSERT_TRUE(save) << explain(save);
      EXPECT_OK(wait_for_all(**save));
    }
  }
  EXPECT_THAT(committed_steps(root), ElementsAre(2, 3, 6));
  const auto steps = list_steps(root);
  EXPECT_EQ((*steps)[1].metrics, (StepMetrics{{"val/loss", 5.25}}));
  EXPECT_OK(load_and_compare(root, 3, small_arrays(1)));
}

TEST(Retention, StaysWithinAQuota) {
  const Location root = memory_root();
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0000-a")), 1, small_arrays(1)));
  const int64_t bytes = list_steps(root)->front().bytes;
  SaverOptions options = options_of("r0001-a");
  options.keep.quota_bytes = 3 * bytes;
  const auto saver = make_saver(root, options);
  for (int64_t step = 2; step <= 5; ++step) EXPECT_OK(save_and_wait(*saver, step, small_arrays(1)));
  EXPECT_THAT(committed_steps(root), ElementsAre(3, 4, 5));
  options.attempt = "r0002-a";
  options.keep = {.best = 1};
  EXPECT_CODE(Saver::create(root, options), ErrorCode::kInvalidArgument) << "the best by what?";
}

TEST(Retention, LeavesAStepOfANewerVersion) {
  const Location root = memory_root();
  SaverOptions options = options_of("r0000-a");
  options.keep.last = 1;
  const auto saver = make_saver(root, options);
  EXPECT_OK(save_and_wait(*saver, 1, small_arrays(1)));
  make_newer(root, 1);
  const auto steps = list_steps(root);
  ASSERT_TRUE(steps && steps->size() == 1) << explain(steps);
  EXPECT_EQ(steps->front().damage->code(), ErrorCode::kUnsupported);
  EXPECT_CODE(Checkpoint::open(root, 1), ErrorCode::kUnsupported);
  EXPECT_OK(save_and_wait(*saver, 2, small_arrays(2)));
  EXPECT_OK(save_and_wait(*saver, 3, small_arrays(3)));
  EXPECT_THAT(committed_steps(root), ElementsAre(1, 3));
}

TEST(Retention, OfARunThatWasSetBackLeavesTheLaterStepsAndItsOwn) {
  const Location root = memory_root();
  SaverOptions options = options_of("r0001-a");
  for (int64_t step = 10; step <= 50; step += 10)
    EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0001-a")), step, small_arrays(1)));
  options.attempt = "r0002-b";
  options.keep.last = 1;
  const auto saver = make_saver(root, options);
  EXPECT_OK(save_and_wait(*saver, 20, small_arrays(2)));
  EXPECT_THAT(committed_steps(root), ElementsAre(20, 30, 40, 50));
  EXPECT_OK(load_and_compare(root, 20, small_arrays(2)));
}

TEST(Retention, AZombieRemovesNothingOfANewerAttempt) {
  const Location root = memory_root();
  SaverOptions options = options_of("r0001-a");
  options.keep.last = 1;
  const auto zombie = make_saver(root, options);
  EXPECT_OK(save_and_wait(*make_saver(root, options_of("r0002-b")), 10, small_arrays(2)));
  EXPECT_OK(save_and_wait(*zombie, 20, small_arrays(1)));
  EXPECT_THAT(committed_steps(root), ElementsAre(10, 20));
  EXPECT_OK(load_and_compare(root, 10, small_arrays(2)));
}

TEST(Retention, LeavesWhatANewerAttemptIsWritingIntoTheStepThatGoes) {
  const TempDir directory;
  const Location root = local_root(directory.path());
  SaverOptions options = options_of("r0001-a");
  options.keep.last = 1;
  const auto zombie = make_saver(root, options);
  EXPECT_OK(save_and_wait(*zombie, 10, small_arrays(1)));
  // Rank 1 of 2 of the newer attempt has written its part; rank 0 commits after the zombie's retention.
  SaverOptions newer = options_of("r0002-b");
  newer.world_size = 2;
  newer.rank = 1;
  const auto rank1 = make_saver(root, newer);
  newer.rank = 0;
  const auto rank0 = make_saver(root, newer);
  const RankTensors nothing, tensors = whole_tensors(small_arrays(2));
  const auto first = rank1->save(10, nothing.tensors(), "null", "null");
  ASSERT_TRUE(first) << explain(first);
  for (int i = 0; i < 10000 && keys_below(root.child("step-000000000010/r0002-b")).size() < 2; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_OK(save_and_wait(*zombie, 20, small_arrays(1)));
  EXPECT_THAT(committed_steps(root), ElementsAre(20));
  const auto second = rank0->save(10, tensors.tensors(), "{}", "null");
  ASSERT_TRUE(second) << explain(second);
  EXPECT_OK((*second)->wait());
  EXPECT_OK((*first)->wait());
  EXPECT_OK(load_and_compare(root, 10, small_arrays(2)));
}

TEST(Retention, ItsFailureIsNotTheSaves) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  SaverOptions options = options_of("r0000-a");
  options.keep.last = 1;
  const auto saver = make_saver(root, options);
  EXPECT_OK(save_and_wait(*saver, 1, small_arrays(1)));
  plan->add({.call = FaultCall::kRemove, .error = Error(ErrorCode::kUnavailable, "not now")});
  plan->add({.call = FaultCall::kCommit, .key_part = "latest", .error = Error(ErrorCode::kUnavailable, "not now")});
  EXPECT_OK(save_and_wait(*saver, 2, small_arrays(2)));
  EXPECT_THAT(committed_steps(root), ElementsAre(1, 2));
  EXPECT_OK(load_and_compare(root, 1, small_arrays(1)));
  EXPECT_OK(save_and_wait(*saver, 3, small_arrays(3)));
  EXPECT_THAT(committed_steps(root), ElementsAre(3));
}

// A save is durable at its commit. What it removes goes on behind wait(); the next save and the Saver's end come after.
TEST(Retention, GoesOnBehindADurableSave) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  SaverOptions options = options_of("r0000-a");
  options.keep.last = 1;
  auto saver = make_saver(root, options);
  const auto save_beside_removal = [&](int64_t step, Hang& hang) {
    plan->add({.call = FaultCall::kRemove, .before = hang.hook()});
    const auto save = saver->save(step, whole_tensors(arrays_of(step)).tensors(), "{}", "null").value();
    EXPECT_TRUE(save->wait_until(Clock::now() + std::chrono::seconds(60)).value())
        << "it does not wait for the removal";
    EXPECT_OK(save->wait());
    EXPECT_TRUE(save->done() && save->state(0) == TierState::kDurable);
    EXPECT_THAT(committed_steps(root), ElementsAre(step - 1, step)) << "nothing goes before its successor is durable";
    EXPECT_EQ(read_object(*root.storage, root.child("latest").key, 100).value(), step_name(step) + "\n");
  };
  EXPECT_OK(save_and_wait(*saver, 1, arrays_of(1)));
  // Long enough to expose a rank that does not wait.
  const auto release_later = [](Hang& hang, std::atomic<bool>& released) {
    return Thread("mr-test", [&] {
      std::this_thread::sleep_for(milliseconds(50));
      released = true;
      hang.release();
    });
  };
  {
    Hang hang;
    std::atomic<bool> released = false, early = false;
    save_beside_removal(2, hang);
    plan->add({.call = FaultCall::kOpenWrite, .key_part = "step-000000000003", .before = [&] { early = !released; }});
    const Thread releasing = release_later(hang, released);
    EXPECT_OK(save_and_wait(*saver, 3, arrays_of(3)));
    EXPECT_FALSE(early) << "a save began beside the removals of the one before";
    EXPECT_THAT(committed_steps(root), ElementsAre(3));
  }
  Hang hang;
  std::atomic<bool> released = false;
  save_beside_removal(4, hang);
  const Thread releasing = release_later(hang, released);
  saver.reset();
  EXPECT_TRUE(released);
  EXPECT_THAT(committed_steps(root), ElementsAre(4));
}

// The order in which things become visible: every write of a save is stopped, one after the other.
TEST(Commit, LatestComesLast) {
  const auto plan = std::make_shared<FaultPlan>();
  const Location root = root_of(make_fault_storage(make_memory_storage("test"), plan));
  const auto saver = make_saver(root, options_of("r0000-a"));
  plan->add({.call = FaultCall::kCommit, .key_part = "manifest", .error = Error(ErrorCode::kUnavailable, "no")});
  EXPECT_CODE(save_and_wait(*saver, 1, small_arrays(1)), ErrorCode::kUnavailable);
  EXPECT_CODE(root.storage->stat(root.child("latest").key), ErrorCode::kNotFound);
  plan->add({.call = FaultCall::kCommit, .key_part = "part-", .error = Error(ErrorCode::kUnavailable, "no")});
  EXPECT_CODE(save_and_wait(*saver, 2, small_arrays(1)), ErrorCode::kUnavailable);
  EXPECT_THAT(committed_steps(root), IsEmpty());
}

}  // namespace
}  // namespace millrace::checkpoint
