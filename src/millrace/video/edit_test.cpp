// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/edit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "millrace/video/testing/clips.h"

namespace millrace::video {
namespace {

using ::testing::HasSubstr;

// Cuts, and holds each frame of the result against the source: equal where packets were copied.
CutReport cut_and_compare(OpenClip& clip, int64_t begin, int64_t end, const CutOptions& options = {}) {
  SCOPED_TRACE(fmt::format("[{}, {})", begin, end));
  MemorySink out;
  const auto report = cut_video(*clip, begin, end, out, options);
  EXPECT_TRUE(report) << report.error().to_string();
  if (!report) return {};
  OpenClip result(out.take(), "cut.mp4");
  const FrameIndex &from = *clip->index(), &made = *result->index();
  EXPECT_EQ(made.frames(), end - begin);
  EXPECT_EQ(made.packets.size(), made.pts.size());
  for (int64_t i = 0; i < made.frames(); ++i) {
    const int64_t ticks = from.pts[static_cast<size_t>(begin + i)] - from.pts[static_cast<size_t>(begin)];
    EXPECT_EQ(made.pts[static_cast<size_t>(i)] * from.time_base.den, ticks * made.time_base.den);
    if (report->copied) {
      EXPECT_EQ(result.frame(i), clip.frame(begin + i)) << i;
    }
  }
  return *report;
}

TEST(Cut, EveryCutIsExact) {
  const std::vector<ClipSpec> kinds = {
      {.gop = 2, .frames = 24},
      {.codec = "av1", .gop = 8, .frames = 24},
      {.gop = 8, .b_frames = 3, .frames = 24},
      {.codec = "hevc", .gop = 8, .b_frames = 3, .frames = 24, .settings = {{"x265-params", "open-gop=1"}}},
      {.gop = 8, .b_frames = 3, .frames = 24, .settings = {{"x264-params", "open-gop=1"}}},
  };
  for (const ClipSpec& spec : kinds) {
    SCOPED_TRACE(spec.name());
    OpenClip clip(video::clip(spec));
    const CutOptions copy{.may_encode = false, .check = {.random_frames = 100}};
    int copied = 0;
    for (const int64_t begin : {0, 8, 16}) {
      for (int64_t end = begin + 1; end <= 24; ++end) {
        MemorySink out;
        // What is copied is checked whole before it is given away, so that no rule that is too bold stays unseen.
        const auto report = cut_video(*clip, begin, end, out, copy);
        copied += report ? 1 : 0;
        if (report) continue;
        EXPECT_EQ(report.error().code(), ErrorCode::kUnsupported) << report.error().to_string();
      }
    }
    EXPECT_GT(copied, 4);
    cut_and_compare(clip, 0, 24, {.may_encode = false});
  }
}

TEST(Cut, WithoutBFramesEveryKeyFrameIsABeginning) {
  OpenClip clip(video::clip({.gop = 2, .frames = 20}));
  for (int64_t begin = 0; begin < 20; begin += 2) EXPECT_TRUE(cut_and_compare(clip, begin, 20).copied);
  EXPECT_TRUE(cut_and_compare(clip, 4, 5).copied);
}

TEST(Cut, OtherFramesAreEncodedAlone) {
  for (const char* codec : {"h264", "hevc", "av1"}) {
    for (const Rational fps : {Rational{30, 1}, Rational{30000, 1001}}) {
      OpenClip clip(video::clip({.codec = codec, .gop = 30, .b_frames = 2, .fps = fps, .frames = 24, .crf = 30}));
      const CutReport report = cut_and_compare(clip, 7, 20);
      EXPECT_FALSE(report.copied);
      EXPECT_GT(report.min_psnr_db, 30) << codec;
      EXPECT_LT(report.min_psnr_db, 100) << codec;
    }
  }
  OpenClip variable(video::clip({.gop = 30, .frames = 24, .variable = true}));
  EXPECT_FALSE(cut_and_compare(variable, 5, 11).copied);
}

TEST(Cut, RefusesRatherThanGiveSomethingElse) {
  OpenClip clip(video::clip({.gop = 30, .frames = 24}));
  const auto refused = [&](int64_t begin, int64_t end, const CutOptions& options) {
    MemorySink out;
    const auto report = cut_video(*clip, begin, end, out, options);
    EXPECT_FALSE(report);
    EXPECT_TRUE(out.bytes().empty());
    return report ? Error(ErrorCode::kInternal, "") : report.error();
  };
  EXPECT_EQ(refused(3, 3, {}).code(), ErrorCode::kOutOfRange);
  EXPECT_EQ(refused(0, 25, {}).code(), ErrorCode::kOutOfRange);
  const Error inexact = refused(3, 9, {.may_encode = false});
  EXPECT_EQ(inexact.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(inexact.to_string(), HasSubstr("clip.mp4: frames [3, 9)"));
  EncodeOptions coarse = cut_encoding(clip->info(), *clip->index());
  coarse.crf = 51;
  EXPECT_THAT(refused(3, 9, {.encode = coarse, .min_psnr_db = 45}).to_string(), HasSubstr("a PSNR of"));
}

TEST(Join, SixtyPartsHaveExactTimes) {
  std::deque<OpenClip> clips;
  std::vector<Video*> parts;
  // 41 frames: no whole second, so that times that pass through milliseconds would drift.
  for (uint64_t i = 0; i < 60; ++i) {
    clips.emplace_back(video::clip({.fps = i % 2 == 0 ? Rational{30000, 1001} : Rational{30000, 1001},
                                    .frames = i == 30 ? 1 : 41,
                                    .seed = i,
                                    .width = 64,
                                    .crf = 35}),
                       fmt::format("part-{}.mp4", i));
    parts.push_back(&*clips.back());
  }
  MemorySink out;
  const auto report = join_videos(parts, out);
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->frames, 59 * 41 + 1);
  EXPECT_EQ(report->begins[31], 30 * 41 + 1);
  OpenClip joined(out.take(), "joined.mp4");
  const FrameIndex& index = *joined->index();
  EXPECT_EQ(index.step, 1001);
  EXPECT_EQ(index.time_base, (Rational{1, 30000}));
  EXPECT_EQ(index.pts.back(), 1001 * (report->frames - 1));
  EXPECT_TRUE(index.is_plain());
  for (const size_t part : {size_t{0}, size_t{30}, size_t{59}}) {
    EXPECT_EQ(joined.frame(report->begins[part]), clips[part].frame(0));
  }
}

TEST(Join, KindsThatCanBeCopiedComeOutBitForBit) {
  const std::vector<ClipSpec> kinds = {{.gop = 30, .b_frames = 3},
                                       {.codec = "hevc", .gop = 30, .b_frames = 3},
                                       {.codec = "av1", .gop = 30},
                                       {.gop = 10, .variable = true}};
  for (ClipSpec spec : kinds) {
    SCOPED_TRACE(spec.name());
    OpenClip first(video::clip(spec));
    spec.seed = 9;
    spec.frames = 13;
    OpenClip second(video::clip(spec));
    Video* const parts[] = {&*first, &*second, &*first};
    MemorySink out;
    const auto report = join_videos(parts, out);
    ASSERT_TRUE(report) << report.error().to_string();
    OpenClip joined(out.take(), "joined.mp4");
    for (int64_t i = 0; i < 41; ++i) EXPECT_EQ(joined.frame(i), first.frame(i)) << i;
    for (int64_t i = 0; i < 13; ++i) EXPECT_EQ(joined.frame(41 + i), second.frame(i)) << i;
    for (int64_t i = 0; i < 41; ++i) EXPECT_EQ(joined.frame(54 + i), first.frame(i)) << i;
    // And apart again.
    for (const int64_t part : {0, 1, 2}) {
      const int64_t begin = report->begins[static_cast<size_t>(part)], length = part == 1 ? 13 : 41;
      EXPECT_TRUE(cut_and_compare(joined, begin, begin + length, {.may_encode = false}).copied);
    }
  }
}

TEST(Join, RefusesPartsThatDoNotFit) {
  OpenClip first(video::clip({.frames = 5}), "first.mp4");
  const auto refused = [&](const ClipSpec& spec) {
    OpenClip other(video::clip(spec), "other.mp4");
    Video* const parts[] = {&*first, &*other};
    MemorySink out;
    const auto report = join_videos(parts, out);
    EXPECT_FALSE(report);
    EXPECT_TRUE(out.bytes().empty());
    return report ? std::string() : report.error().to_string();
  };
  EXPECT_THAT(refused({.codec = "av1", .frames = 5}),
              HasSubstr("other.mp4 cannot be joined without encoding: it has codec"));
  EXPECT_THAT(refused({.frames = 5, .width = 64}), HasSubstr("size 64 x 64, not 96 x 64"));
  EXPECT_THAT(refused({.fps = {25, 1}, .frames = 5}), HasSubstr("time base"));
  EXPECT_THAT(refused({.gop = 5, .b_frames = 2, .frames = 5}), HasSubstr("B-frames"));
  // Another quality gives other H.264 parameters, and pictures that look right to a count only.
  EXPECT_THAT(refused({.frames = 5, .settings = {{"profile", "baseline"}}}), HasSubstr("codec parameters"));
  EXPECT_EQ(join_videos({}, *std::make_unique<MemorySink>()).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::video
