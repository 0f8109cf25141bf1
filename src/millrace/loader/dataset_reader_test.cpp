// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/dataset_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/loader/testing/test_sets.h"

namespace millrace::loader {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string_view text_of(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

std::unique_ptr<DatasetReader> open_set(const std::string& url) {
  auto reader = DatasetReader::open({url}, {});
  EXPECT_TRUE(reader) << reader.error().to_string();
  return std::move(*reader);
}

TEST(DatasetReader, GivesEachSampleByItsNumber) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  const TestSet data = make_dataset("by-number", {7, 1, 0, 12}, seed);
  const auto reader = open_set(data.url);
  ASSERT_EQ(reader->size(), 20);
  std::vector<int64_t> numbers(20);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(seed));
  for (const int64_t number : numbers) {
    const auto ids = reader->read_ids(number);
    ASSERT_TRUE(ids) << ids.error().to_string();
    EXPECT_EQ(*ids, data.samples[static_cast<size_t>(number)]);
  }
  const auto sample = reader->read(8);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->key, "00003-000000") << "the first behind the empty shard";
  ASSERT_EQ(sample->fields.size(), 2U);
  EXPECT_EQ(sample->fields[0].name, "text.txt");
  EXPECT_EQ(text_of(sample->fields[0].data), "some text");
}

TEST(DatasetReader, NumbersOutsideAreErrors) {
  const auto reader = open_set(make_dataset("outside", {3}, 1).url);
  for (const int64_t number : {-1, 3}) {
    const auto sample = reader->read(number);
    ASSERT_FALSE(sample);
    EXPECT_EQ(sample.error().code(), ErrorCode::kOutOfRange);
  }
}

TEST(DatasetReader, NamesADamagedSampleAndReadsTheOthers) {
  const TestSet data = make_dataset("damaged-sample", {5}, 1);
  const Location at = data.shard(0);
  std::string tar = read_object(*at.storage, at.key).value();
  const size_t text = tar.find("some text", tar.find("00000-000002"));
  tar[text] = 'S';
  ASSERT_TRUE(write_object(*at.storage, at.key, tar));
  const auto reader = open_set(data.url);
  for (int64_t number = 0; number < 5; ++number) {
    const auto sample = reader->read(number);
    EXPECT_EQ(sample.has_value(), number != 2);
    if (sample) continue;
    EXPECT_EQ(sample.error().code(), ErrorCode::kCorruption);
    EXPECT_THAT(sample.error().to_string(), AllOf(HasSubstr("00000.tar"), HasSubstr("sample 2")));
  }
}

TEST(DatasetReader, SamplesNeedNoTokenIds) {
  std::string tar;
  for (const char* name : {"a.jpg", "a.cls", "b.jpg", "b.cls"})
    ASSERT_TRUE(formats::append_tar_member(tar, name, as_bytes(name)));
  formats::append_tar_end(tar);
  const Location at = open_url("mem://no-ids/0.tar").value();
  ASSERT_TRUE(write_object(*at.storage, at.key, tar));
  const auto reader = open_set("mem://no-ids/0.tar");
  ASSERT_EQ(reader->size(), 2);
  const auto sample = reader->read(0);
  ASSERT_TRUE(sample) << sample.error().to_string();
  EXPECT_EQ(sample->key, "a");
  ASSERT_EQ(sample->fields.size(), 2U);
  EXPECT_EQ(text_of(sample->fields[1].data), "a.cls");
  const auto ids = reader->read_ids(0);
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace millrace::loader
