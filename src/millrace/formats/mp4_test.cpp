// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/mp4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "millrace/base/testing.h"
#include "millrace/formats/mp4_testing.h"

namespace millrace::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Mp4File> read(const std::string& file) {
  return read_mp4(MemoryReader(as_bytes(file), "a.mp4"));
}

TEST(Mp4, SaysWhatTheTrackHolds) {
  const std::string file = make_test_mp4({.frames = 9, .width = 640, .height = 480, .group = 4});
  const auto boxes = read(file);
  ASSERT_TRUE(boxes) << boxes.error().to_string();
  EXPECT_LT(boxes->moov_offset, boxes->mdat_offset);
  const Mp4Track* track = boxes->video();
  ASSERT_NE(track, nullptr);
  EXPECT_EQ(codec_name(*track), "h264");
  EXPECT_EQ(pixel_format(*track), "yuv420p");
  EXPECT_EQ(track->width, 640);
  EXPECT_EQ(track->height, 480);
  EXPECT_EQ(track->timescale, 15360);
  EXPECT_EQ(track->samples, 9);
  EXPECT_THAT(*track->key_samples, ElementsAre(0, 4, 8));
  EXPECT_THAT(track->durations, ElementsAre(Mp4Run{9, 512}));
}

TEST(Mp4, PresentationTimesAreThoseOfPlayers) {
  // Decode order I P B, shown I B P, two frames of delay that the edit list takes away.
  const TestVideo video{.frames = 3, .offsets = {{1, 1024}, {1, 1536}, {1, 512}}, .edits = {{1, 1024}}};
  const auto boxes = read(make_test_mp4(video));
  ASSERT_TRUE(boxes);
  EXPECT_THAT(presentation_ticks(*boxes->video()), ElementsAre(0, 512, 1024));
}

// What is read of a long file are its heads and its index.
TEST(Mp4, ReadsNoPictures) {
  class Counting final : public RandomReader {
   public:
    explicit Counting(std::string file) : file_(std::move(file)) {}
    std::string_view name() const override { return "a.mp4"; }
    int64_t size() const override { return static_cast<int64_t>(file_.size()); }
    std::string_view version() const override { return {}; }
    Status read_at(int64_t offset, std::span<std::byte> out) const override {
      ++reads;
      bytes += static_cast<int64_t>(out.size());
      return MemoryReader(as_bytes(file_)).read_at(offset, out);
    }
    mutable int64_t reads = 0, bytes = 0;

   private:
    const std::string file_;
  };
  for (const bool moov_first : {true, false}) {
    std::string file = make_test_mp4({.frames = 3'000'000, .group = 1'000'000, .moov_first = moov_first});
    const Counting reader(std::move(file));
    ASSERT_TRUE(read_mp4(reader));
    EXPECT_LE(reader.reads, 3) << moov_first;
    EXPECT_LE(reader.bytes, 200 << 10) << moov_first;
  }
}

TEST(Mp4, ThatIsDamagedIsSaidToBe) {
  const std::string file = make_test_mp4();
  EXPECT_THAT(read("").error().to_string(), HasSubstr("a.mp4: it is empty"));
  EXPECT_THAT(read("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").error().to_string(),
              HasSubstr("Git LFS"));
  EXPECT_THAT(read(file.substr(0, file.size() - 1)).error().to_string(), HasSubstr("mdat box is cut off"));
  EXPECT_THAT(read(file.substr(0, file.find("moov") - 4)).error().to_string(), HasSubstr("no moov"));
  EXPECT_THAT(read("PAR1" + file).error().to_string(), HasSubstr("a.mp4"));
}

// Whatever is in a byte, a reader refuses the file or gives tables that agree with each other.
TEST(Mp4, NoByteMakesItBelieveTooMuch) {
  const std::string file = make_test_mp4({.offsets = {{10, 512}}, .edits = {{1, 512}}});
  for (const size_t at : places_to_damage(file.size())) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const auto boxes = read(damaged);
      if (!boxes) {
        EXPECT_EQ(boxes.error().code(), ErrorCode::kCorruption) << at;
        continue;
      }
      for (const Mp4Track& track : boxes->tracks) {
        EXPECT_EQ(static_cast<int64_t>(presentation_ticks(track).size()), track.durations.empty() ? 0 : track.samples)
            << at;
      }
    }
  }
  for (const size_t size : places_to_damage(file.size())) EXPECT_FALSE(read(file.substr(0, size))) << size;
}

// Files of FFmpeg: a set of GR00T's, and one in AV1.
TEST(Mp4, FilesOfEncodersAreRead) {
  const char* data = std::getenv("MILLRACE_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "set MILLRACE_TEST_DATA to read videos of real encoders";
  const auto content = [&](const std::string& name) {
    std::ifstream file(std::filesystem::path(data) / "lerobot" / name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
  const auto av1 = read(content("labeled_frames_video.mp4"));
  ASSERT_TRUE(av1) << av1.error().to_string();
  EXPECT_EQ(codec_name(*av1->video()), "av1");
  EXPECT_EQ(pixel_format(*av1->video()), "yuv420p");
  EXPECT_EQ(av1->video()->samples, 40);
  EXPECT_EQ(av1->video()->width, 640);
  EXPECT_THAT(*av1->video()->key_samples, ElementsAre(0));
  const auto h264 = read(content("pick_n_place/videos/chunk-000/observation.images.ego_view/episode_000000.mp4"));
  ASSERT_TRUE(h264) << h264.error().to_string();
  EXPECT_EQ(codec_name(*h264->video()), "h264");
  EXPECT_EQ(h264->video()->samples, 416);
  EXPECT_EQ(h264->video()->key_samples->size(), 2U);
  const std::vector<int64_t> ticks = presentation_ticks(*h264->video());
  EXPECT_EQ(ticks.front(), 0);
  for (size_t i = 1; i < ticks.size(); ++i) ASSERT_EQ(ticks[i] - ticks[i - 1], h264->video()->timescale / 20) << i;
}

}  // namespace
}  // namespace millrace::formats
