// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the boxes of an MP4 (ISO/IEC 14496-12) that describe its tracks: codec, size, number of samples, their times
// and key samples. Reads only the heads of all other boxes, and no sample. A file in an object store therefore costs a
// few reads. Pure functions; thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

// `count` consecutive samples with the same `value`: a duration (stts) or a presentation offset (ctts), in ticks.
struct Mp4Run {
  int64_t count = 0;
  int64_t value = 0;
  bool operator==(const Mp4Run&) const = default;
};

// One entry of an edit list. With media_ticks -1, nothing is shown for `duration`.
struct Mp4Edit {
  int64_t duration = 0;     // in the movie's time scale
  int64_t media_ticks = 0;  // where in the track the entry begins
};

struct Mp4Track {
  std::string kind;       // "vide", "soun", or another handler
  std::string codec;      // the sample entry: "avc1", "av01", "hvc1"
  int64_t timescale = 0;  // ticks per second
  int64_t duration_ticks = 0;
  int64_t width = 0, height = 0;  // of the coded picture; 0 for other kinds
  int64_t samples = 0;
  // These two are from the decoder configuration; 0: none, or an unknown one.
  int bits = 0;
  int chroma = 0;                                   // 400, 420, 422, 444
  std::vector<Mp4Run> durations;                    // of the samples in decode order
  std::vector<Mp4Run> offsets;                      // presentation time minus decode time; empty: all 0
  std::vector<Mp4Edit> edits;                       // empty: none
  std::optional<std::vector<int64_t>> key_samples;  // counted from 0, ascending; nullopt: all samples
};

struct Mp4File {
  int64_t moov_offset = 0;
  int64_t mdat_offset = 0;  // of the first mdat box; -1: none
  bool fragmented = false;  // more samples are in moof boxes, and are not counted
  int64_t movie_timescale = 0;
  std::vector<Mp4Track> tracks;

  // Returns the first video track; null: none.
  const Mp4Track* video() const;
};

// Returns the presentation times of all samples, in ticks and in the order in which they are shown. Applies the edit
// list as players do: the first edit's media_ticks is time zero.
std::vector<int64_t> presentation_ticks(const Mp4Track& track);

// Returns FFmpeg's name for `bits` and `chroma`: "yuv420p", "gray12le"; empty when these are 0.
std::string pixel_format(const Mp4Track& track);

// Returns the name of the codec in FFmpeg and LeRobot: "h264", "hevc", "av1", ...; the sample entry itself for other
// codecs.
std::string codec_name(const Mp4Track& track);

// Reads the boxes. Refuses a moov box above 256 MiB. Errors: corruption (empty, cut off, a Git LFS pointer, no moov
// box, damaged boxes; the message says which); those of read_at.
[[nodiscard]] Result<Mp4File> read_mp4(const RandomReader& file);

// Returns whether `head`, the first bytes of a file, is the text that Git LFS stores instead of the content.
bool is_lfs_pointer(std::string_view head);

}  // namespace millrace::formats
