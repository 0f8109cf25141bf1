// SPDX-License-Identifier: Apache-2.0
// Samples of any kind: fields in, columns out, in the order and with the states of every loader.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "millrace/base/testing.h"
#include "millrace/loader/detail/record.h"
#include "millrace/loader/detail/sample_rows.h"
#include "millrace/loader/loader.h"
#include "millrace/loader/row_source.h"
#include "millrace/loader/testing/test_sets.h"
#include "millrace/loader/typed_value.h"

namespace millrace::loader {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Samples with a class, an array of as many values and a text; every `bad_every`-th class is no number.
std::string make_samples(const std::string& name, std::vector<int> shard_samples, int bad_every = 0) {
  int number = 0;
  for (size_t i = 0; i < shard_samples.size(); ++i) {
    std::string tar;
    for (int k = 0; k < shard_samples[i]; ++k, ++number) {
      const std::string key = fmt::format("s{:05d}", number);
      const bool is_bad = bad_every > 0 && number % bad_every == 3;
      std::string array;
      formats::append_npy_u32(array, std::vector<uint32_t>(static_cast<size_t>(number % 7), 5));
      EXPECT_TRUE(formats::append_tar_member(tar, key + ".cls", as_bytes(is_bad ? "none" : fmt::format("{}", number))));
      EXPECT_TRUE(formats::append_tar_member(tar, key + ".x.npy", as_bytes(array)));
      EXPECT_TRUE(formats::append_tar_member(tar, key + ".txt", as_bytes(fmt::format("text {}", number))));
    }
    formats::append_tar_end(tar);
    const Location at = open_url(fmt::format("mem://{}/{:03d}.tar", name, i)).value();
    EXPECT_TRUE(write_object(*at.storage, at.key, tar));
  }
  return "mem://" + name;
}

SampleFields fields_of_test() {
  SampleFields fields;
  fields.specs.push_back({.name = "cls", .sources = {"cls"}, .kind = FieldKind::kInteger});
  fields.specs.push_back({.name = "x",
                          .sources = {"y.npy", "x.npy"},
                          .kind = FieldKind::kNpy,
                          .batch = FieldBatch::kPad,
                          .pad_value = -0.0});
  fields.specs.push_back({.name = "txt", .sources = {"txt"}, .kind = FieldKind::kText});
  return fields;
}

LoaderOptions sample_options(const std::string& url, int64_t global_batch) {
  LoaderOptions options;
  options.shards = {url};
  options.global_batch_size = global_batch;
  options.fields = std::make_shared<const SampleFields>(fields_of_test());
  options.order.seed = 5;
  options.epochs = 2;
  options.threads = 2;
  options.memory_bytes = 64 << 20;
  options.uneven_ranks = true;
  return options;
}

using StepKeys = std::multiset<std::string>;

// What each step trains on, over all ranks.
std::vector<StepKeys> run_samples(LoaderOptions options, int64_t world, int64_t steps = 1 << 30,
                                  const std::string& state = {}, std::string* state_out = nullptr) {
  std::vector<std::unique_ptr<Loader>> ranks;
  options.world_size = world;
  for (options.rank = 0; options.rank < world; ++options.rank) {
    ranks.push_back(make(options));
    if (!state.empty()) {
      EXPECT_TRUE(ranks.back()->load_state(state));
    }
  }
  std::vector<StepKeys> all;
  for (int64_t step = 0; step < steps; ++step) {
    StepKeys rows;
    bool any = false;
    for (auto& rank : ranks) {
      const auto batch = take(*rank);
      if (!batch) continue;
      any = true;
      for (int64_t r = 0; r < batch->rows; ++r) {
        int64_t cls = 0;
        std::memcpy(&cls, batch->columns[0].data + 8 * r, sizeof cls);
        const auto at = static_cast<size_t>(r);
        const auto& text = batch->columns[2].items[at];
        rows.insert(fmt::format("{} {} {} {}", batch->keys[at], cls, batch->columns[1].lengths[at],
                                as_text({batch->columns[2].data + text.offset, static_cast<size_t>(text.size)})));
      }
    }
    if (!any) break;
    all.push_back(std::move(rows));
  }
  if (state_out != nullptr) *state_out = ranks[0]->state().value();
  return all;
}

TEST(Samples, EverySampleOnceAnEpochAtEveryWorldSize) {
  const std::string url = make_samples("samples-worlds", {60, 41, 30});
  LoaderOptions options = sample_options(url, 6);
  options.drop_last = false;
  const auto alone = run_samples(options, 1);
  std::multiset<std::string> seen;
  for (const StepKeys& rows : alone) seen.insert(rows.begin(), rows.end());
  std::multiset<std::string> expected;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int n = 0; n < 131; ++n) expected.insert(fmt::format("s{:05d} {} {} text {}", n, n, n % 7, n));
  }
  EXPECT_EQ(seen, expected);
  for (const int64_t world : {2, 3, 5, 16}) EXPECT_EQ(run_samples(options, world), alone) << world;
}

TEST(Samples, AStateContinuesOnAnyNumberOfRanks) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const std::string url = make_samples("samples-resume", {60, 41, 30, 80});
  for (int round = 0; round < rounds(10); ++round) {
    LoaderOptions options = sample_options(url, 1 + static_cast<int64_t>(random() % 12));
    options.order.seed = random();
    const auto alone = run_samples(options, 1);
    std::vector<StepKeys> parts;
    std::string state;
    for (const int64_t steps : {int64_t{3}, int64_t{7}, int64_t{1} << 30}) {
      const auto world = static_cast<int64_t>(1 + random() % 5);
      for (StepKeys& rows : run_samples(options, world, steps, state, &state)) parts.push_back(std::move(rows));
    }
    EXPECT_EQ(parts, alone);
  }
}

TEST(Samples, OneThatDoesNotDecodeIsNamedAndTheStateStaysBeforeIt) {
  const std::string url = make_samples("samples-bad", {40}, 20);
  LoaderOptions options = sample_options(url, 4);
  options.order.shuffle = false;
  const auto loader = make(options);
  const std::string before = loader->state().value();
  for (int i = 0; i < 2; ++i) {
    const auto batch = loader->next();
    ASSERT_FALSE(batch);
    EXPECT_EQ(batch.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(batch.error().to_string(), HasSubstr("000.tar: sample s00003: cls: no integer"));
  }
  EXPECT_EQ(loader->state().value(), before);
}

TEST(Samples, TheSameOnesTakeThePlaceOfThoseThatDoNotDecode) {
  const std::string url = make_samples("samples-quarantine", {60, 41, 30}, 9);
  LoaderOptions options = sample_options(url, 6);
  options.on_bad = OnBad::kQuarantine;
  std::string state;
  const auto alone = run_samples(options, 1, 1 << 30, {}, &state);
  EXPECT_EQ(alone.size(), 42u);
  for (const StepKeys& rows : alone) EXPECT_EQ(rows.size(), 6u);
  EXPECT_THAT(state, HasSubstr("no integer"));
  for (const int64_t world : {2, 3, 7}) EXPECT_EQ(run_samples(options, world), alone) << world;
  options.max_bad = 2;
  const auto loader = make(options);
  Result<std::optional<Batch>> batch = loader->next();
  while (batch && *batch) batch = loader->next();
  ASSERT_FALSE(batch);
  EXPECT_THAT(batch.error().to_string(), HasSubstr("max_bad is 2"));
}

TEST(Samples, APaddedEvaluationHasEverySampleOnce) {
  const std::string url = make_samples("samples-fill", {13});
  LoaderOptions options = sample_options(url, 8);
  options.fill_last = FillLast::kPadding;
  options.epochs = 1;
  options.world_size = 4;
  options.uneven_ranks = false;
  std::set<std::string> keys;
  for (options.rank = 0; options.rank < 4; ++options.rank) {
    const auto loader = make(options);
    for (int step = 0; step < 2; ++step) {
      const auto batch = take(*loader);
      ASSERT_TRUE(batch);
      ASSERT_EQ(batch->rows, 2);
      for (size_t r = 0; r < 2; ++r) {
        EXPECT_EQ(batch->keys[r].empty(), batch->row_mask[r] == 0);
        if (batch->row_mask[r] != 0) {
          EXPECT_TRUE(keys.insert(batch->keys[r]).second);
        }
      }
    }
    EXPECT_FALSE(take(*loader));
  }
  EXPECT_EQ(keys.size(), 13u);
}

TEST(Samples, ARecordKeepsWhatIsTaken) {
  const std::string data = "12";
  const order::Field fields[] = {{"png", as_bytes("picture")}, {"cls", as_bytes(data)}};
  SampleFields wanted;
  wanted.specs.push_back({.name = "c", .sources = {"klass", "cls"}});
  std::vector<std::byte> out(64);
  std::vector<uint32_t> scratch;
  const auto decoder = make_record_decoder(wanted);
  SampleDecoder::Slot slot{.data = out};
  ASSERT_TRUE(decoder->decode({"key", fields}, "tar", slot, scratch));
  const Record record = read_record(out);
  EXPECT_EQ(record.key, "key");
  ASSERT_EQ(record.fields.size(), 1u);
  EXPECT_EQ(record.fields[0].name, "cls");
  EXPECT_EQ(as_text(record.fields[0].data), data);
  slot.data = std::span(out).first(20);
  EXPECT_FALSE(decoder->decode({"key", fields}, "tar", slot, scratch));
}

TEST(Samples, ArraysAreStackedOrPaddedOrRefused) {
  std::vector<std::string> files(2);
  formats::append_npy_u32(files[0], std::vector<uint32_t>{1, 2, 3});
  formats::append_npy_u32(files[1], std::vector<uint32_t>{4});
  const auto collated = [&](FieldBatch rule, int64_t length, Batch& batch) {
    SampleFields fields;
    fields.specs.push_back(
        {.name = "x", .sources = {"x"}, .kind = FieldKind::kNpy, .batch = rule, .pad_value = 9, .length = length});
    std::vector<DecodedSample> samples;
    for (const std::string& file : files) {
      samples.push_back({.key = "k", .source = "tar"});
      samples.back().values.emplace_back(decode_field(fields.specs[0], as_bytes(file), "tar").value());
    }
    const DecodedSample* const rows[] = {&samples[0], &samples[1]};
    return collate_samples(
        rows, fields,
        [](int64_t bytes) {
          auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
          return std::pair<std::byte*, std::shared_ptr<void>>(memory->data(), memory);
        },
        batch);
  };
  const auto values = [](const Batch& batch) {
    const auto* data = reinterpret_cast<const uint32_t*>(batch.columns[0].data);
    return std::vector<uint32_t>(data, data + batch.columns[0].shape[0] * batch.columns[0].shape[1]);
  };
  Batch padded, cut, listed, stacked;
  ASSERT_TRUE(collated(FieldBatch::kPad, 0, padded));
  EXPECT_THAT(values(padded), ElementsAre(1, 2, 3, 4, 9, 9));
  EXPECT_THAT(padded.columns[0].lengths, ElementsAre(3, 1));
  ASSERT_TRUE(collated(FieldBatch::kPad, 2, cut));
  EXPECT_THAT(values(cut), ElementsAre(1, 2, 4, 9));
  EXPECT_THAT(cut.columns[0].lengths, ElementsAre(2, 1));
  ASSERT_TRUE(collated(FieldBatch::kList, 0, listed));
  EXPECT_THAT(listed.columns[0].items[0].shape, ElementsAre(3));
  const Status status = collated(FieldBatch::kStack, 0, stacked);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().to_string(), HasSubstr("give batch='pad' or batch='list'"));
}

TEST(Samples, DamagedArraysAreErrors) {
  std::string file;
  formats::append_npy_u32(file, std::vector<uint32_t>{1, 2, 3});
  const FieldSpec spec{.name = "x", .sources = {"x"}, .kind = FieldKind::kNpy};
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(decode_field(spec, as_bytes(std::string_view(file).substr(0, size)), "tar")) << size;
  }
  for (const size_t at : places_to_damage(128)) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x15);
    const auto value = decode_field(spec, as_bytes(damaged), "tar");
    if (value) {
      EXPECT_EQ(value->data.size(), 12u) << at;
    }
  }
}

TEST(Samples, WrongFieldsAreRefused) {
  LoaderOptions options = sample_options("mem://nothing", 4);
  SampleFields fields = fields_of_test();
  fields.specs[1].name = "cls";
  options.fields = std::make_shared<const SampleFields>(fields);
  const auto loader = Loader::create(options);
  ASSERT_FALSE(loader);
  EXPECT_THAT(loader.error().to_string(), HasSubstr("field 'cls': it is named twice"));
}

TEST(Samples, ValuesSayWhatTheyAre) {
  std::string array("a\x03<i2\x01", 6);
  array += std::string("\x02\0\0\0\0\0\0\0", 8) + std::string("\x05\0\x06\0", 4);
  const auto value = parse_typed_value(as_bytes(array), "table: row 1");
  ASSERT_TRUE(value) << value.error().to_string();
  EXPECT_EQ(value->dtype, "<i2");
  EXPECT_THAT(value->shape, ElementsAre(2));
  EXPECT_EQ(value->data.size(), 4u);
  for (size_t size = 0; size < array.size(); ++size) {
    EXPECT_FALSE(parse_typed_value(as_bytes(std::string_view(array).substr(0, size)), "table")) << size;
  }
  for (const size_t at : places_to_damage(array.size() - 4)) {
    std::string damaged = array;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x9);
    const auto other = parse_typed_value(as_bytes(damaged), "table");
    if (other && other->is_array()) {
      EXPECT_LE(other->data.size(), array.size());
    }
  }
  EXPECT_FALSE(parse_typed_value(as_bytes("t\xff"), "table"));
  EXPECT_EQ(parse_typed_value(as_bytes("n"), "table")->form, Value::Form::kNothing);
}

// Rows that say their number; one row, and one shard, cannot be read.
class TestRows final : public RowReader {
 public:
  Result<std::vector<Row>> read(int64_t shard, int64_t begin, int64_t end) override {
    if (shard == 2) return fail(ErrorCode::kNotFound, "shard 2 is gone");
    std::vector<Row> rows;
    for (int64_t n = begin; n < end; ++n) {
      rows.push_back({fmt::format("{}:{}", shard, n), {{"text", fmt::format("t{}", n)}}, std::nullopt});
      if (shard == 1 && n == 5) rows.back().error = Error(ErrorCode::kCorruption, "row 5 is torn");
    }
    return rows;
  }
};

// Notes which threads read.
class NotedRows final : public RowReader {
 public:
  NotedRows(Mutex& mutex, std::set<std::thread::id>& readers) : mutex_(mutex), readers_(readers) {}
  Result<std::vector<Row>> read(int64_t, int64_t begin, int64_t end) override {
    {
      MutexLock lock(mutex_);
      readers_.insert(std::this_thread::get_id());
    }
    return std::vector<Row>(static_cast<size_t>(end - begin), {"key", {{"text", "t"}}, std::nullopt});
  }

 private:
  Mutex& mutex_;
  std::set<std::thread::id>& readers_;
};

TEST(Samples, ManySourcesArePlannedByTheWorkersOfTheLoaderAlone) {
  constexpr size_t kSources = 20;
  for (const int threads : {1, 3}) {
    Mutex mutex;
    std::set<std::thread::id> readers;
    LoaderOptions options = sample_options("unused", 8);
    SampleFields fields;
    fields.specs.push_back({.name = "text", .sources = {"text"}, .kind = FieldKind::kText});
    options.fields = std::make_shared<const SampleFields>(fields);
    options.shards.clear();
    options.threads = threads;
    options.epochs = 0;
    options.weights = {{0, std::vector<double>(kSources, 1)}};
    for (size_t i = 0; i < kSources; ++i) {
      options.sources.push_back({.open = [&, i](const SourceContext& context) {
        return Result<std::unique_ptr<order::SampleSource>>(
            make_row_source({fmt::format("rows {}", i), fmt::format("{}", i), {{"a", 64}}, 64 << 10, 8},
                            std::make_unique<NotedRows>(mutex, readers), context.metrics, context.activities));
      }});
    }
    const auto loader = make(options);
    for (int batch = 0; batch < 100; ++batch) ASSERT_TRUE(take(*loader));
    loader->close();
    EXPECT_LE(readers.size(), static_cast<size_t>(threads));
    EXPECT_FALSE(readers.contains(std::this_thread::get_id()));
  }
}

// Has token ids, and does not know how many.
class IdsWithoutLengths final : public order::SampleSource {
 public:
  std::string_view name() const override { return "numbers"; }
  std::string_view identity() const override { return "numbers"; }
  std::span<const int64_t> shard_samples() const override { return samples_; }
  std::string_view shard_name(int64_t) const override { return "numbers"; }
  std::optional<order::TokenIds> token_ids() const override { return order::TokenIds{.field = "n.u32"}; }
  Result<order::SamplePlan> plan(std::span<const order::Window>, const std::stop_token&) override {
    return fail(ErrorCode::kInternal, "planned");
  }

 private:
  const std::vector<int64_t> samples_{8};
};

TEST(Samples, ASourceWithoutIdsOrLengthsIsRefusedWhereTheyAreNeeded) {
  LoaderOptions options;
  options.seq_len = 4;
  options.batch_size = 2;
  options.open = [](const SourceContext& context) -> Result<std::unique_ptr<order::SampleSource>> {
    return make_row_source({"rows", "identity", {{"a", 20}}, 0, 0}, std::make_unique<TestRows>(), context.metrics,
                           context.activities);
  };
  const auto refused = [&] {
    const auto batch = make(options)->next();
    EXPECT_FALSE(batch);
    return batch ? Error(ErrorCode::kInternal, "a batch") : batch.error();
  };
  EXPECT_EQ(refused().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused().message(), HasSubstr("rows: its samples hold no token ids; SampleLoader reads"));
  options.open = [](const SourceContext&) -> Result<std::unique_ptr<order::SampleSource>> {
    return std::make_unique<IdsWithoutLengths>();
  };
  EXPECT_EQ(refused().message(), "planned");
  for (const Collate collate : {Collate::kPack, Collate::kBestFit}) {
    options.collate = collate;
    EXPECT_EQ(refused().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(refused().message(), HasSubstr("numbers: packing needs the number of tokens of each sample"));
  }
}

TEST(Samples, RowsThatCannotBeReadGiveTheirPlaceToOthers) {
  LoaderOptions options = sample_options("unused", 4);
  SampleFields fields;
  fields.specs.push_back({.name = "text", .sources = {"text"}, .kind = FieldKind::kText});
  options.fields = std::make_shared<const SampleFields>(fields);
  options.shards.clear();
  options.open = [](const SourceContext& context) -> Result<std::unique_ptr<order::SampleSource>> {
    return make_row_source({"rows", "identity", {{"a", 20}, {"b", 20}, {"c", 8}}, 48 << 10, 0},
                           std::make_unique<TestRows>(), context.metrics, context.activities);
  };
  const auto failing = make(options);
  Result<std::optional<Batch>> batch = failing->next();
  while (batch && *batch) batch = failing->next();
  EXPECT_FALSE(batch);
  options.on_bad = OnBad::kQuarantine;
  const auto loader = make(options);
  int64_t rows = 0;
  while (const auto good = take(*loader)) {
    rows += good->rows;
    for (const std::string& key : good->keys) {
      EXPECT_NE(key, "1:5");
      EXPECT_NE(key[0], '2');
    }
  }
  EXPECT_EQ(rows, 96);
  EXPECT_EQ(loader->quarantined()->size(), 2u * 9);
}

}  // namespace
}  // namespace millrace::loader
