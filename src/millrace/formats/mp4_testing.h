// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes small MP4 files for tests: all boxes of an H.264 track, without pictures.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/formats/mp4.h"

namespace millrace::formats {

struct TestVideo {
  int64_t timescale = 15360, ticks_per_frame = 512;
  int64_t frames = 10;
  int64_t width = 64, height = 48;
  int64_t group = 2;                // frames from key frame to key frame
  std::vector<Mp4Run> durations{};  // empty: all ticks_per_frame
  std::vector<Mp4Run> offsets{};
  std::vector<Mp4Edit> edits{};
  bool moov_first = true;
};

namespace mp4_testing {

inline std::string be(uint64_t value, int width) {
  std::string out;
  for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) {
    out += static_cast<char>(shift < 64 ? value >> shift & 255 : 0);
  }
  return out;
}

inline std::string box(std::string_view type, const std::string& body) {
  return be(body.size() + 8, 4) + std::string(type) + body;
}

inline std::string runs(const std::vector<Mp4Run>& all) {
  std::string out = be(0, 4) + be(all.size(), 4);
  for (const Mp4Run& run : all)
    out += be(static_cast<uint64_t>(run.count), 4) + be(static_cast<uint32_t>(run.value), 4);
  return out;
}

inline std::string sample_table(const TestVideo& video) {
  // Profile High, 4:2:0, 8 bits: the parameter set has the profile, two bytes, its id, the chroma and both depths.
  const std::string set = std::string("\x67\x64\x00\x1e\xac\xd0", 6);
  const std::string avc = be(0x0164001E, 4) + be(0xFFE1, 2) + be(set.size(), 2) + set + be(0, 1);
  const std::string entry = std::string(6, '\0') + be(1, 2) + std::string(16, '\0') +
                            be(static_cast<uint64_t>(video.width), 2) + be(static_cast<uint64_t>(video.height), 2) +
                            std::string(50, '\0') + box("avcC", avc);
  std::string out = box("stsd", be(0, 4) + be(1, 4) + box("avc1", entry));
  const std::vector<Mp4Run> durations =
      video.durations.empty() ? std::vector<Mp4Run>{{video.frames, video.ticks_per_frame}} : video.durations;
  out += box("stts", runs(durations));
  if (!video.offsets.empty()) out += box("ctts", runs(video.offsets));
  std::string keys;
  uint64_t count = 0;
  for (int64_t frame = 0; frame < video.frames; frame += video.group, ++count)
    keys += be(static_cast<uint64_t>(frame + 1), 4);
  out += box("stss", be(0, 4) + be(count, 4) + keys);
  return out + box("stsz", be(0, 4) + be(1, 4) + be(static_cast<uint64_t>(video.frames), 4));
}

}  // namespace mp4_testing

inline std::string make_test_mp4(const TestVideo& video = {}) {
  using namespace mp4_testing;
  const auto scale = static_cast<uint64_t>(video.timescale);
  const auto ticks = static_cast<uint64_t>(video.frames * video.ticks_per_frame);
  const std::string clock = be(0, 12) + be(scale, 4) + be(ticks, 4);
  std::string edits = be(0, 4) + be(video.edits.size(), 4);
  for (const Mp4Edit& edit : video.edits) {
    edits +=
        be(static_cast<uint64_t>(edit.duration), 4) + be(static_cast<uint32_t>(edit.media_ticks), 4) + be(0x10000, 4);
  }
  const std::string media = box("mdhd", clock + be(0, 4)) + box("hdlr", be(0, 8) + "vide" + be(0, 13)) +
                            box("minf", box("stbl", sample_table(video)));
  const std::string track =
      box("tkhd", be(0, 84)) + (video.edits.empty() ? "" : box("edts", box("elst", edits))) + box("mdia", media);
  const std::string moov = box("moov", box("mvhd", clock + be(0, 80)) + box("trak", track));
  const std::string mdat = box("mdat", std::string(static_cast<size_t>(video.frames), 'x'));
  const std::string head = box("ftyp", "isom" + be(512, 4) + "isomiso2");
  return video.moov_first ? head + moov + mdat : head + mdat + moov;
}

}  // namespace millrace::formats
