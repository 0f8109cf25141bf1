// SPDX-License-Identifier: Apache-2.0
// Damaged tars without an index: the samples before the damage count, the same on every rank and after every resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/base/testing.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/testing/test_sets.h"

namespace millrace::loader {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class DamagedTar : public ::testing::Test {
 protected:
  // Shards of 30, 40 and 50 samples without an index.
  TestSet set_of(const std::string& name) const { return make_dataset(name, {30, 40, 50}, seed_, false, false); }
  LoaderOptions options_of(const TestSet& data) const {
    LoaderOptions options = options_for(data, 6);
    options.epochs = 2;
    options.pad_id = -1;
    options.drop_last = false;
    options.on_bad = OnBad::kQuarantine;
    options.order.seed = seed_;
    return options;
  }
  static std::string read(const Location& at) { return read_object(*at.storage, at.key, 1 << 24).value(); }
  static void write(const Location& at, std::string_view bytes) {
    ASSERT_TRUE(write_object(*at.storage, at.key, std::string(bytes)));
  }
  // Where sample `number` of a sound shard begins.
  static size_t begin_of(const Location& at, int64_t number) {
    const std::string tar = read(at);
    return formats::index_shard(MemoryReader(as_bytes(tar), "tar"))->offset[static_cast<size_t>(number)];
  }
  // A header that is flipped where sample 17 of shard 1 begins, a shard that is cut inside of sample 20, no tar.
  static void damage(const TestSet& data, int64_t shard) {
    const Location at = data.shard(1), cut = data.shard(2);
    std::string tar = read(at);
    switch (shard) {
      case 0:
        write(data.shard(0), "<html>404</html>");
        break;
      case 1:
        tar[begin_of(at, 17)] ^= 1;
        write(at, tar);
        break;
      default:
        write(cut, read(cut).substr(0, begin_of(cut, 20) + 600));
    }
  }
  static std::vector<int64_t> left(Loader& loader) {
    const auto shards = loader.damaged_shards().value();
    std::vector<int64_t> samples;
    for (const auto& shard : shards) {
      EXPECT_THAT(shard.reason, HasSubstr(shard.shard));
      samples.push_back(shard.samples);
    }
    return samples;
  }

  const uint64_t seed_ = test_seed();
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, fmt::format("MILLRACE_TEST_SEED={}", seed_)};
  std::mt19937_64 random_{seed_};
};

// Sample 16 is left out: more members of it could have followed. So is 19, for the same reason.
TEST_F(DamagedTar, SamplesBeforeTheDamageAreRead) {
  const TestSet data = set_of("damaged-tar");
  for (const int64_t shard : {0, 1, 2}) damage(data, shard);
  LoaderOptions options = options_of(data);
  options.epochs = 1;
  const auto loader = make(options);
  std::multiset<std::vector<int64_t>> rows, expected;
  while (const auto batch = take(*loader)) add_rows(*batch, rows);
  EXPECT_THAT(left(*loader), ElementsAre(0, 16, 19));
  const auto add = [&](size_t first, size_t count) {
    for (size_t number = first; number < first + count; ++number) {
      std::vector<int64_t> row(data.samples[number].begin(), data.samples[number].end());
      row.resize(static_cast<size_t>(options.seq_len), -1);
      expected.insert(row);
    }
  };
  add(30, 16);
  add(70, 19);
  EXPECT_EQ(rows, expected);
}

TEST_F(DamagedTar, EveryWorldSizeAndEveryResumeReadsTheSame) {
  for (const Collate collate : {Collate::kPad, Collate::kPack, Collate::kBestFit}) {
    const TestSet data = set_of(fmt::format("damaged-tar-{}", static_cast<int>(collate)));
    for (const int64_t shard : {0, 1, 2}) {
      damage(data, shard);
      LoaderOptions options = options_of(data);
      options.collate = collate;
      const Steps alone = run(options, 1);
      ASSERT_GT(alone.size(), 3u);
      for (const int64_t world : {2, 3, 16}) EXPECT_EQ(run(options, world), alone) << "world size " << world;
      const auto before = static_cast<int64_t>(1 + random_() % (alone.size() - 1));
      std::string state;
      run(options, 2, before, {}, &state);
      EXPECT_THAT(state, HasSubstr("damaged_shards"));
      EXPECT_EQ(run(options, 3, 1 << 30, state), Steps(alone.begin() + before, alone.end()));
    }
  }
}

TEST_F(DamagedTar, CountsForTheLimit) {
  const TestSet data = set_of("damaged-tar-limit");
  for (const int64_t shard : {0, 1, 2}) damage(data, shard);
  LoaderOptions options = options_of(data);
  options.max_bad = 3;
  EXPECT_TRUE(make(options)->open());
  options.max_bad = 2;
  const auto loader = make(options);
  const Status opened = loader->open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("3 damaged shards, max_bad is 2"));
}

TEST_F(DamagedTar, WithoutQuarantineItIsAnError) {
  const TestSet data = set_of("damaged-tar-raise");
  damage(data, 2);
  LoaderOptions options = options_of(data);
  options.on_bad = OnBad::kRaise;
  const Status opened = make(options)->open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("00002.tar"));
}

TEST_F(DamagedTar, WhenAllAreDamagedItIsAnError) {
  const TestSet data = make_dataset("damaged-tar-all", {9, 9}, seed_, false, false);
  write(data.shard(0), "no tar");
  write(data.shard(1), "");
  const Status opened = make(options_of(data))->open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(opened.error().to_string(), HasSubstr("2 of 2 shards are damaged"));
}

// Whether a file is there may differ between nodes, so ranks would read other orders.
TEST_F(DamagedTar, AMissingTarIsAnErrorInAnyCase) {
  const TestSet data = set_of("damaged-tar-missing");
  LoaderOptions options = options_of(data);
  options.shards = {data.url + "/{00000..00003}.tar"};
  const Status opened = make(options)->open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kNotFound);
}

TEST_F(DamagedTar, AStateOfAnotherDamageNamesTheShard) {
  const TestSet data = set_of("damaged-tar-mended");
  const std::string whole = read(data.shard(1));
  damage(data, 1);
  const LoaderOptions options = options_of(data);
  std::string state;
  run(options, 1, 3, {}, &state);
  write(data.shard(1), whole);
  const auto mended = make(options);
  const Status loaded = mended->load_state(state);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(loaded.error().to_string(), HasSubstr("00001.tar had 16 readable samples when the state was written"));
  // The other way round.
  const std::string of_whole = mended->state().value();
  EXPECT_THAT(of_whole, Not(HasSubstr("damaged_shards")));
  damage(data, 1);
  const Status other = make(options)->load_state(of_whole);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().to_string(),
              HasSubstr("00001.tar has 16 readable samples, and had others when the state was written"));
  // Damaged as it was.
  EXPECT_TRUE(make(options)->load_state(state));
}

TEST_F(DamagedTar, OfAMixtureTheDatasetIsNamed) {
  const TestSet a = make_dataset("damaged-tar-mix-a", {50}, seed_ + 1, false, false, {}, 1000);
  const TestSet b = set_of("damaged-tar-mix-b");
  damage(b, 1);
  LoaderOptions options = options_of(b);
  options.epochs = 0;
  options.drop_last = true;
  options.shards.clear();
  options.sources = {{{a.url}, ""}, {{b.url}, ""}};
  options.weights = {{0, {1, 2}}};
  options.mix_end = order::MixEnd::kFirstEmpty;
  const Steps alone = run(options, 1);
  std::string state;
  run(options, 3, 4, {}, &state);
  EXPECT_EQ(run(options, 2, 1 << 30, state), Steps(alone.begin() + 4, alone.end()));
  const auto damaged = make(options)->damaged_shards().value();
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged[0].source, 1);
}

}  // namespace
}  // namespace millrace::loader
