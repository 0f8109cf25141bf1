// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/episodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "millrace/base/testing/helpers.h"
#include "millrace/episodes/npz_file.h"
#include "millrace/formats/npz.h"

namespace millrace::episodes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CsvEpisode small_episode(const std::vector<float>& numbers) {
  formats::CsvTexts texts;
  for (const std::string_view cell : {"gr\xC3\xBC\xC3\x9F"
                                      "e \xF0\x9F\xA4\x96",
                                      ""}) {
    texts.bytes += cell;
    texts.ends.push_back(texts.bytes.size());
  }
  return {.rows = 2, .numbers = std::as_bytes(std::span(numbers)), .texts = {texts}};
}

TEST(NpzEpisode, ComesBackWithItsTexts) {
  const std::vector<float> numbers{1, 2, 3, 4};
  const formats::EpisodeColumns columns{.numbers = {"x", "\xC3\xA9"}, .texts = {"task"}};
  for (const bool compress : {false, true}) {
    const auto file = npz_of_episode(small_episode(numbers), columns, {7, 8}, compress);
    ASSERT_TRUE(file) << file.error().to_string();
    EXPECT_EQ(npz_identity(std::string_view(*file).substr(file->size() - kNpzTailBytes)), (Hash128{7, 8}));
    const auto episode = parse_npz_episode(as_bytes(*file), "e.npz");
    ASSERT_TRUE(episode) << episode.error().to_string();
    EXPECT_EQ(episode->columns, columns);
    EXPECT_EQ(episode->rows, 2);
    EXPECT_TRUE(std::ranges::equal(episode->numbers, std::as_bytes(std::span(numbers))));
    EXPECT_EQ(episode->texts[0][0],
              "gr\xC3\xBC\xC3\x9F"
              "e \xF0\x9F\xA4\x96");
    EXPECT_EQ(episode->texts[0][1], "");
  }
  const auto slash = npz_of_episode(small_episode(numbers), {.numbers = {"x", "y"}, .texts = {"a/b"}}, {}, false);
  EXPECT_EQ(code_of(slash), ErrorCode::kUnsupported);
}

TEST(NpzEpisode, OtherArchivesAreRefusedWithTheReason) {
  const std::vector<float> numbers{1, 2};
  const auto data = std::as_bytes(std::span(numbers));
  const auto refusal = [](const std::vector<formats::NpzArray>& arrays) {
    const auto file = *formats::write_npz(arrays, "", false);
    const auto episode = parse_npz_episode(as_bytes(file), "e.npz");
    EXPECT_FALSE(episode);
    return episode ? std::string() : episode.error().message();
  };
  const formats::NpzArray names{"columns", "<U1", {2}, std::as_bytes(std::span(U"xy", 2))};
  EXPECT_THAT(refusal({{"a", "<f4", {2}, data}}), HasSubstr("e.npz: it has no members"));
  EXPECT_THAT(refusal({{"data", "<f4", {2}, data}, names}), HasSubstr("no matrix of floats"));
  EXPECT_THAT(refusal({{"data", "<i4", {1, 2}, data}, names}), HasSubstr("no matrix of floats"));
  EXPECT_THAT(refusal({{"data", "<f4", {2, 2}, data}, names}), HasSubstr("cut"));
  EXPECT_THAT(refusal({{"data", "<f4", {2, 1}, data}, names}), HasSubstr("cut"));
  EXPECT_THAT(refusal({{"data", "<f4", {1, 2}, data}, {"columns", "<f4", {2}, data}}), HasSubstr("no list of texts"));
}

TEST(OpenEpisodes, SaysWhatIsWrong) {
  const TempDir dir;
  EXPECT_EQ(code_of(open_episodes("s3://bucket/set")), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of(open_episodes(dir.path())), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(open_episodes(dir.path() + "/none.mrpack")), ErrorCode::kNotFound);
  std::ofstream(dir.path() + "/a.mrpack").close();
  EXPECT_EQ(code_of(open_episodes(dir.path() + "/a.mrpack")), ErrorCode::kCorruption);
  std::ofstream(dir.path() + "/a.npz") << "PK";
  EXPECT_EQ(code_of(open_episodes(dir.path() + "/a.npz")), ErrorCode::kCorruption);
}

TEST(ReadCsvEpisode, HasTheTypesOfItsOwnFile) {
  const TempDir dir;
  std::ofstream(dir.path() + "/a.csv") << "t,s\n1,go\n2,\n";
  const auto episode = read_csv_episode(dir.path() + "/a.csv", true, {});
  ASSERT_TRUE(episode) << episode.error().to_string();
  EXPECT_THAT(episode->columns->numbers, ElementsAre("t"));
  EXPECT_TRUE(episode->columns->is_float64);
  EXPECT_EQ(episode->rows, 2);
  EXPECT_EQ(episode->numbers.size(), 16);
  EXPECT_EQ((*episode->texts)[0][0], "go");
}

}  // namespace
}  // namespace millrace::episodes
