// SPDX-License-Identifier: Apache-2.0
#pragma once

// The boxes of an MP4 (ISO/IEC 14496-12) that say what its tracks hold: codec, size, number of samples, their times
// and key samples. No sample is read or decoded, and only the heads of the other boxes are: a few reads of a file that
// may lie in an object store. Pure functions; thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

// `count` samples in a row, each of them with `value`: a duration (stts) or an offset of presentation (ctts), in ticks.
struct Mp4Run {
  int64_t count = 0;
  int64_t value = 0;
  bool operator==(const Mp4Run&) const = default;
};

// One entry of an edit list. media_ticks -1: nothing is shown for that long.
struct Mp4Edit {
  int64_t duration = 0;     // in the movie's time scale
  int64_t media_ticks = 0;  // where in the track it begins
};

struct Mp4Track {
  std::string kind;       // "vide", "soun", or another handler
  std::string codec;      // the sample entry: "avc1", "av01", "hvc1"
  int64_t timescale = 0;  // ticks a second
  int64_t duration_ticks = 0;
  int64_t width = 0, height = 0;  // of the coded picture; 0 of other kinds
  int64_t samples = 0;
  // As the decoder configuration says; 0 where there is none that is known.
  int bits = 0;
  int chroma = 0;                                   // 400, 420, 422, 444
  std::vector<Mp4Run> durations;                    // of the samples in decode order
  std::vector<Mp4Run> offsets;                      // presentation time less decode time; empty: both are the same
  std::vector<Mp4Edit> edits;                       // empty: none
  std::optional<std::vector<int64_t>> key_samples;  // from 0, rising; nothing: every sample is one
};

struct Mp4File {
  int64_t moov_offset = 0;
  int64_t mdat_offset = 0;  // of the first one; -1: there is none
  bool fragmented = false;  // samples come in moof boxes as well, and are not counted
  int64_t movie_timescale = 0;
  std::vector<Mp4Track> tracks;

  // The first track of that kind; null when there is none.
  const Mp4Track* video() const;
};

// The presentation times of all samples, in ticks and in the order in which they are shown; the edit list is applied as
// players do: what the first edit's media_ticks says is time zero.
std::vector<int64_t> presentation_ticks(const Mp4Track& track);

// "yuv420p", "gray12le": FFmpeg's name for what `bits` and `chroma` say; empty where they say nothing.
std::string pixel_format(const Mp4Track& track);

// "h264", "hevc", "av1", ...: the name of the codec as FFmpeg and LeRobot have it; the sample entry where it is
// another.
std::string codec_name(const Mp4Track& track);

// Errors: corruption (empty, cut off, a Git LFS pointer, no moov box, damaged boxes: the message says which); those of
// read_at. A moov box above 256 MiB is refused.
[[nodiscard]] Result<Mp4File> read_mp4(const RandomReader& file);

// Whether `head`, the first bytes of a file, is the text that Git LFS leaves in place of the content.
bool is_lfs_pointer(std::string_view head);

}  // namespace millrace::formats
