// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/video.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>

#include "millrace/base/testing.h"
#include "millrace/video/testing/clips.h"

namespace millrace::video {
namespace {

using ::testing::HasSubstr;

std::vector<ClipSpec> all_kinds() {
  std::vector<ClipSpec> kinds;
  for (const char* codec : {"h264", "hevc", "av1"}) {
    for (const int gop : {2, 30}) kinds.push_back({.codec = codec, .gop = gop});
    kinds.push_back({.codec = codec, .gop = 12, .b_frames = 3, .fps = {30000, 1001}});
    kinds.push_back({.codec = codec, .gop = 10, .b_frames = 2, .variable = true});
  }
  kinds.push_back({.gop = 8, .b_frames = 3, .settings = {{"x264-params", "open-gop=1"}}});
  kinds.push_back({.codec = "hevc", .gop = 8, .b_frames = 3, .settings = {{"x265-params", "open-gop=1"}}});
  kinds.push_back({.gop = 250, .fps = {50, 1}, .frames = 1});
  return kinds;
}

TEST(Video, EveryFrameIsTheSameInAnyOrder) {
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(test_seed());
  for (const ClipSpec& spec : all_kinds()) {
    SCOPED_TRACE(spec.name());
    OpenClip clip(video::clip(spec));
    ASSERT_TRUE(clip.video);
    const FrameIndex& index = *clip->index();
    ASSERT_EQ(index.frames(), spec.frames);
    if (!spec.variable && spec.frames > 1) {
      EXPECT_EQ(index.fps, spec.fps);
      EXPECT_TRUE(index.is_plain());
    }
    const int64_t keys = std::ranges::count_if(index.packets, &Packet::key);
    EXPECT_LE(keys, (spec.frames + spec.gop - 1) / spec.gop) << "frames depend on others";
    EXPECT_EQ(index.reorder_depth > 0, spec.b_frames > 0 && spec.codec != "av1");
    const auto in_order = clip.all_frames();
    EXPECT_EQ(std::set(in_order.begin(), in_order.end()).size(), in_order.size()) << "two frames are equal";
    for (int i = 0; i < 40; ++i) {
      const auto number = static_cast<int64_t>(random() % static_cast<uint64_t>(spec.frames));
      EXPECT_EQ(clip.frame(number), in_order[static_cast<size_t>(number)]) << "frame " << number;
    }
    // Many at once, some of them twice, with a decoder that has seen none before.
    OpenClip fresh(clip.bytes);
    std::vector<int64_t> numbers;
    for (int i = 0; i < 9; ++i) numbers.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(spec.frames)));
    numbers.push_back(numbers.front());
    const size_t bytes = in_order.front().size();
    std::vector<std::byte> out(numbers.size() * bytes);
    ASSERT_TRUE(fresh->read(numbers, out, {.layout = PixelLayout::kPlanes}));
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_TRUE(
          std::ranges::equal(std::span(out).subspan(i * bytes, bytes), in_order[static_cast<size_t>(numbers[i])]))
          << "frame " << numbers[i];
    }
  }
}

TEST(Video, FramesAreThoseThatWereEncoded) {
  const ClipSpec spec{.gop = 12, .b_frames = 3, .settings = {{"qp", "0"}}, .crf = 0};
  OpenClip clip(video::clip(spec));
  for (int64_t i = 0; i < spec.frames; ++i) {
    EXPECT_EQ(clip.frame(i), rgb_to_yuv420p(clip_picture(spec, i), spec.width, spec.height)) << i;
  }
}

TEST(Video, TheIndexHasTimesInTicks) {
  OpenClip clip(video::clip({.gop = 12, .b_frames = 3, .fps = {30000, 1001}}));
  const FrameIndex& index = *clip->index();
  EXPECT_EQ(index.time_base, (Rational{1, 30000}));
  EXPECT_EQ(index.step, 1001);
  EXPECT_GT(index.reorder_depth, 0);
  EXPECT_EQ(index.pts[40], 40 * 1001);
  OpenClip variable(video::clip({.variable = true}));
  EXPECT_EQ(variable->index()->step, 0);
  EXPECT_FALSE(variable->index()->is_plain());
}

// The rows of a picture whose width is no multiple of a vector are as those of one whose is.
TEST(Video, BothLayoutsOfRgbHoldTheSame) {
  for (const int64_t width : {int64_t{96}, int64_t{98}, int64_t{66}}) {
    OpenClip clip(video::clip({.frames = 3, .width = width}));
    const auto hwc = clip.frame(2, PixelLayout::kHwc), chw = clip.frame(2, PixelLayout::kChw);
    const size_t pixels = hwc.size() / 3;
    for (size_t i = 0; i < hwc.size(); ++i) ASSERT_EQ(hwc[i], chw[i % 3 * pixels + i / 3]) << i;
  }
}

TEST(Video, TimesBetweenFramesFollowTheStatedRules) {
  OpenClip clip(video::clip({.frames = 10}));
  const FrameIndex& index = *clip->index();
  EXPECT_EQ(index.frame_near(4 / 30.0, 1e-4), 4);
  EXPECT_EQ(index.frame_near(4 / 30.0 + 0.9e-4, 1e-4), 4);
  EXPECT_FALSE(index.frame_near(4 / 30.0 + 1.1e-4, 1e-4));
  EXPECT_EQ(index.frame_near(4.5 / 30.0, 1), 4) << "the earlier of two equally near";
  EXPECT_EQ(index.frame_near(0.31, 1), 9);
  EXPECT_FALSE(index.frame_near(-0.1, 1e-4));
}

TEST(Video, RefusesNumbersThatAreNotThere) {
  OpenClip clip(video::clip({.frames = 3}));
  std::vector<std::byte> out(static_cast<size_t>(clip->frame_bytes(PixelLayout::kHwc)));
  for (const int64_t number : {int64_t{-1}, int64_t{3}}) {
    const Status read = clip->read({&number, 1}, out);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::kOutOfRange);
    EXPECT_THAT(read.error().to_string(), HasSubstr("clip.mp4: there is no frame"));
  }
}

TEST(Video, StopsWhenToldTo) {
  OpenClip clip(video::clip({.gop = 30}));
  std::vector<std::byte> out(static_cast<size_t>(clip->frame_bytes(PixelLayout::kHwc)));
  std::stop_source stop;
  stop.request_stop();
  const int64_t last = 40;
  EXPECT_EQ(clip->read({&last, 1}, out, {.stop = stop.get_token()}).error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(clip->read({&last, 1}, out, {.deadline = Clock::now()}).error().code(), ErrorCode::kTimeout);
  EXPECT_TRUE(clip->read({&last, 1}, out));
}

// Counts what is read.
class CountingReader final : public RandomReader {
 public:
  explicit CountingReader(std::span<const std::byte> file) : memory_(file, "far.mp4") {}
  std::string_view name() const override { return memory_.name(); }
  int64_t size() const override { return memory_.size(); }
  std::string_view version() const override { return {}; }
  Status read_at(int64_t offset, std::span<std::byte> out) const override {
    ++reads;
    bytes += static_cast<int64_t>(out.size());
    return memory_.read_at(offset, out);
  }
  mutable int64_t reads = 0, bytes = 0;

 private:
  const MemoryReader memory_;
};

TEST(Video, ReadsThePacketsOfAFrameOnly) {
  const ClipSpec spec{.gop = 10, .frames = 200, .width = 320, .height = 240, .crf = 1};
  const auto bytes = video::clip(spec);
  const CountingReader file(bytes);
  auto video = open_video(file);
  ASSERT_TRUE(video);
  EXPECT_LT(file.bytes, file.size() / 3) << "opening reads the tables and the first frame";
  const int64_t before = file.reads, number = 155;
  std::vector<std::byte> out(static_cast<size_t>((*video)->frame_bytes(PixelLayout::kHwc)));
  ASSERT_TRUE((*video)->read({&number, 1}, out));
  EXPECT_EQ(file.reads - before, 1) << "a frame far away costs one read";
  // With the index from before no table is scanned, and frames are the same.
  auto again = open_video(file, {.index = (*video)->index()});
  ASSERT_TRUE(again);
  std::vector<std::byte> same(out.size());
  ASSERT_TRUE((*again)->read({&number, 1}, same));
  EXPECT_EQ(out, same);
}

TEST(Video, ADamagedFrameIsNamedAndOthersAreRead) {
  const ClipSpec spec{.gop = 10, .frames = 40};
  auto bytes = video::clip(spec);
  OpenClip good(bytes);
  const Packet& packet = good->index()->packets[15];
  std::fill_n(bytes.begin() + packet.offset, packet.size_bytes, std::byte{0xFF});
  OpenClip clip(bytes);
  std::vector<std::byte> out(static_cast<size_t>(clip->frame_bytes(PixelLayout::kPlanes)));
  const int64_t behind = 17;
  const Status read = clip->read({&behind, 1}, out, {.layout = PixelLayout::kPlanes});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(read.error().to_string(), HasSubstr("clip.mp4: frame 15 "));
  for (const int64_t whole : {0, 14, 20, 39}) EXPECT_EQ(clip.frame(whole), good.frame(whole)) << whole;
}

TEST(Video, WhatIsNoVideoIsRefused) {
  const auto refused = [](std::span<const std::byte> bytes) {
    const MemoryReader file(bytes, "a.mp4");
    const auto video = open_video(file);
    EXPECT_FALSE(video);
    if (video) return std::string();
    EXPECT_EQ(video.error().code(), ErrorCode::kCorruption);
    return video.error().to_string();
  };
  EXPECT_THAT(refused({}), HasSubstr("a.mp4: the file is empty"));
  EXPECT_THAT(refused(as_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(refused(as_bytes("this is a text and no video at all")), HasSubstr("not an MP4 or MOV"));
  const auto whole = video::clip({.frames = 20});
  for (const size_t left : {whole.size() - 1, whole.size() / 2, size_t{600}, size_t{40}}) {
    EXPECT_THAT(refused(std::span(whole).first(left)), HasSubstr("cut off")) << left;
  }
}

// No byte that is changed makes it end, or wait for ever.
TEST(Video, AnyDamagedByteIsAnErrorOrAPicture) {
  const auto whole = video::clip({.frames = 4, .width = 64, .height = 64, .crf = 40});
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE(test_seed());
  for (int i = 0; i < rounds(1500); ++i) {
    auto bytes = whole;
    for (int k = 0; k < 2; ++k) bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << random() % 8);
    const MemoryReader file(bytes, "a.mp4");
    const auto video = open_video(file);
    if (!video) {
      EXPECT_NE(video.error().code(), ErrorCode::kInternal) << video.error().to_string();
      continue;
    }
    const int64_t last = (*video)->index()->frames() - 1;
    std::vector<std::byte> out(static_cast<size_t>((*video)->frame_bytes(PixelLayout::kHwc)));
    static_cast<void>((*video)->read({&last, 1}, out));
  }
}

// Also when new memory holds something else: encoders read some of it before they write it.
TEST(Encoder, TheSameFramesGiveTheSameBytes) {
  for (const char* codec : {"h264", "hevc", "av1"}) {
    for (const int b_frames : {0, 2}) {
      const auto encoded = [&](int fill_byte) {
        mallopt(M_PERTURB, fill_byte);
        auto bytes = video::clip({.codec = codec, .b_frames = b_frames, .frames = 9});
        mallopt(M_PERTURB, 0);
        return bytes;
      };
      const auto once = encoded(0x11);
      for (const int fill_byte : {0x11, 0x80, 0xEE}) {
        const auto again = encoded(fill_byte);
        ASSERT_EQ(once.size(), again.size()) << codec;
        const auto differs = std::ranges::mismatch(once, again).in1;
        EXPECT_EQ(differs - once.begin(), std::ssize(once)) << codec << ": the first byte that differs";
      }
    }
  }
}

// SVT-AV1 schedules itself and its caller before everything else of the machine, where root starts it.
TEST(Encoder, LeavesTheSchedulingOfThreadsAsItIs) {
  for (int round = 0; round < 2; ++round) {
    EncodeOptions options = clip_encoding({.codec = "av1"});
    options.threads = 2;
    const auto encoder = new_encoder(options);
    ASSERT_TRUE(encoder) << encoder.error().to_string();
    size_t threads = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      EXPECT_EQ(sched_getscheduler(std::stoi(entry.path().filename())), SCHED_OTHER) << "opened " << round + 1;
      ++threads;
    }
    EXPECT_GT(threads, 1U);
  }
}

TEST(Encoder, RefusesWhatItCannotDo) {
  const auto refused = [](const EncodeOptions& options) {
    const auto encoder = new_encoder(options);
    EXPECT_FALSE(encoder);
    return encoder ? std::string() : encoder.error().to_string();
  };
  EncodeOptions options = clip_encoding({});
  options.codec = "wmv9";
  EXPECT_THAT(refused(options), HasSubstr("there are h264, hevc and av1"));
  options = clip_encoding({.settings = {{"no-such-thing", "1"}}});
  EXPECT_THAT(refused(options), HasSubstr("no-such-thing"));
  options = clip_encoding({.width = 0});
  EXPECT_THAT(refused(options), HasSubstr("0 x 64"));
}

}  // namespace
}  // namespace millrace::video
