// SPDX-License-Identifier: Apache-2.0
// What needs no table; the rules are tested one by one in tests/e2e/test_lerobot_rules.py.
#include "millrace/lerobot/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "millrace/formats/mp4_testing.h"
#include "millrace/lerobot/inspect.h"
#include "millrace/storage/memory.h"

namespace millrace::lerobot {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two episodes of ten frames with one camera; no data files, so LR004 is always found.
std::map<std::string, std::string> small_set() {
  const std::string video = formats::make_test_mp4();
  const std::string folder = "videos/chunk-000/observation.images.top/";
  return {{"meta/info.json",
           R"({"codebase_version": "v2.1", "fps": 30, "chunks_size": 1000, "total_episodes": 2, "total_frames": 20,
    "total_tasks": 1, "total_videos": 2, "total_chunks": 1, "splits": {"train": "0:2"},
    "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "features": {"observation.images.top": {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}}})"},
          {"meta/episodes.jsonl",
           "{\"episode_index\": 0, \"tasks\": [\"a\"], \"length\": 10}\n{\"episode_index\": 1, \"tasks\": [\"a\"], "
           "\"length\": 10}\n"},
          {"meta/tasks.jsonl", "{\"task_index\": 0, \"task\": \"a\"}\n"},
          {folder + "episode_000000.mp4", video},
          {folder + "episode_000001.mp4", video}};
}

Location stored(const std::map<std::string, std::string>& files) {
  const auto storage = make_memory_storage("test");
  for (const auto& [key, content] : files) EXPECT_TRUE(write_object(*storage, "set/" + key, content));
  return {storage, "set", "mem://test/set"};
}

std::vector<std::string> rules_of(const Validation& found) {
  std::vector<std::string> ids;
  for (const Finding& finding : found.findings) ids.emplace_back(finding.rule->id);
  return ids;
}

// Gives each frame facts, as asked; fails at one frame.
class Probe final : public FrameProbe {
 public:
  std::function<FrameFacts(int64_t)> facts;
  int64_t broken = -1;

  Result<std::vector<FrameFacts>> probe(const RandomReader& file, std::span<const int64_t> frames) override {
    std::vector<FrameFacts> out;
    for (const int64_t frame : frames) {
      if (frame == broken) return fail(ErrorCode::kCorruption, "{}: frame {} cannot be decoded", file.name(), frame);
      out.push_back(facts(frame));
    }
    return out;
  }
};

Validation validated(const std::map<std::string, std::string>& files, const ValidateOptions& options = {}) {
  auto found = validate_dataset(stored(files), options);
  EXPECT_TRUE(found) << found.error().to_string();
  return *std::move(found);
}

TEST(Validate, DecodesWhereADecoderIsGiven) {
  Probe probe;
  probe.facts = [](int64_t frame) { return FrameFacts{100, 30, static_cast<uint64_t>(frame)}; };
  const Validation good = validated(small_set(), {.frames = &probe});
  EXPECT_EQ(good.videos_decoded, 2);
  EXPECT_THAT(rules_of(good), Not(Contains("LR053")));
  probe.facts = [](int64_t) { return FrameFacts{100, 30, 7}; };
  EXPECT_THAT(rules_of(validated(small_set(), {.frames = &probe})), Contains("LR053"));
  probe.facts = [](int64_t frame) { return FrameFacts{2, 0, static_cast<uint64_t>(frame)}; };
  EXPECT_THAT(rules_of(validated(small_set(), {.frames = &probe})), Contains("LR053"));
  probe.facts = [](int64_t frame) { return FrameFacts{100, 30, static_cast<uint64_t>(frame)}; };
  probe.broken = 9;
  EXPECT_THAT(rules_of(validated(small_set(), {.frames = &probe})), Contains("LR053"));
  const Validation not_decoded = validated(small_set());
  EXPECT_EQ(not_decoded.videos, 2);
  EXPECT_EQ(not_decoded.videos_decoded, 0);
}

TEST(Validate, LooksAtTheFirstAndTheLastFrame) {
  EXPECT_THAT(frames_to_probe(100, 5), ElementsAre(0, 24, 49, 74, 99));
  EXPECT_THAT(frames_to_probe(1, 5), ElementsAre(0));
  EXPECT_THAT(frames_to_probe(3, 5), ElementsAre(0, 1, 2));
}

TEST(Validate, TooManyFilesForTheHub) {
  auto files = small_set();
  EXPECT_THAT(rules_of(validated(files)), Not(Contains("LR072")));
  for (int i = 0; i < 10'001; ++i) files["extra/" + std::to_string(i)] = "x";
  EXPECT_THAT(rules_of(validated(files)), Contains("LR072"));
}

TEST(Validate, ReasonsSilenceRules) {
  auto files = small_set();
  files["meta/episodes.jsonl"] += "\n";
  files[".millrace-ignore"] = "LR036 -- the recorder ends in a blank line\nLR999 -- no such rule\nLR004\n";
  const Validation found = validated(files, {.ignore = {"LR055 -- computed later"}});
  for (const Finding& finding : found.findings) {
    const bool silenced = finding.rule->id == "LR036" || finding.rule->id == "LR055";
    EXPECT_EQ(finding.suppressed_because.has_value(), silenced) << finding.rule->id;
  }
  EXPECT_THAT(rules_of(found), Contains("LR036"));
  EXPECT_THAT(rules_of(found), Contains("LR055"));
  EXPECT_THAT(rules_of(found), Contains("IG01"));
  EXPECT_THAT(rules_of(found), Contains("IG02"));
}

TEST(Validate, NothingThereIsAnErrorAndNoFinding) {
  const auto found = validate_dataset({make_memory_storage("empty"), "set", "mem://empty/set"});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kNotFound);
}

TEST(Validate, StopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  const auto found = validate_dataset(stored(small_set()), {.stop = stop.get_token()});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kCancelled);
}

TEST(Inspect, SaysWhatIsThere) {
  const auto found = inspect_dataset(stored(small_set()));
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->episodes, 2);
  EXPECT_EQ(found->frames, 20);
  EXPECT_EQ(found->tasks.at(0).episodes, 2);
  EXPECT_EQ(found->cameras.at(0).files, 2);
  EXPECT_TRUE(found->explanation.empty());
  auto files = small_set();
  files["meta/episodes/chunk-000/episode_000000.parquet"] = "PAR1....PAR1";
  files["meta/tasks.parquet"] = "PAR1....PAR1";
  const auto mixed = inspect_dataset(stored(files));
  ASSERT_TRUE(mixed) << mixed.error().to_string();
  EXPECT_THAT(mixed->explanation, Contains(HasSubstr("is in no version")));
}

}  // namespace
}  // namespace millrace::lerobot
