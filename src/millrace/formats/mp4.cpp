// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/mp4.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

namespace millrace::formats {
namespace {

constexpr int64_t kMostMoov = 256 << 20;
// A film of a day at 60 frames a second has five million; a table that claims more is damaged.
constexpr int64_t kMostSamples = 16 << 20;
// The first read has ftyp, free and the head of mdat, or a whole small moov; where mdat comes first a later one begins
// with the moov of most recordings.
constexpr int64_t kFirstRead = 4096, kLaterRead = 32 << 10;

// Big-endian numbers of a box, bounds checked. After a read past the end `ok` is false and zeros come.
class BoxReader {
 public:
  explicit BoxReader(std::string_view bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size() - at_; }

  uint64_t number(size_t width) {
    if (left() < width) {
      ok_ = false;
      at_ = bytes_.size();
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i) value = value << 8 | static_cast<unsigned char>(bytes_[at_ + i]);
    at_ += width;
    return value;
  }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  std::string_view text(size_t size) {
    if (left() < size) {
      ok_ = false;
      return {};
    }
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  void skip(size_t size) { static_cast<void>(text(size)); }
  std::string_view rest() const { return bytes_.substr(at_); }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

struct Box {
  std::string_view type;
  std::string_view body;
};

Status damaged(std::string_view what) {
  return fail(ErrorCode::kCorruption, "its {} box is damaged", what);
}

// The next box of `reader`; nothing at the end. Errors: corruption (a size that does not fit into its parent).
Result<std::optional<Box>> next_box(BoxReader& reader, std::string_view parent) {
  if (reader.left() < 8) return std::nullopt;  // QuickTime ends some boxes in four zero bytes
  uint64_t size = reader.u32();
  const std::string_view type = reader.text(4);
  uint64_t head = 8;
  if (size == 1) {
    size = reader.number(8);
    head = 16;
  }
  if (size == 0) size = head + reader.left();
  if (!reader.ok() || size < head || size - head > reader.left()) {
    return fail(ErrorCode::kCorruption, "a box in {} is longer than that", parent);
  }
  return Box{type, reader.text(static_cast<size_t>(size - head))};
}

// Calls visit(box) for each box of `body`.
template <class Visit>
Status for_each_box(std::string_view body, std::string_view parent, const Visit& visit) {
  BoxReader reader(body);
  for (;;) {
    ASSIGN_OR_RETURN(const std::optional<Box> box, next_box(reader, parent));
    if (!box) return {};
    RETURN_IF_ERROR(visit(*box));
  }
}

// "mvhd" and "mdhd": the time scale and the duration.
Status read_clock(const Box& box, int64_t& timescale, int64_t& duration) {
  BoxReader reader(box.body);
  const uint64_t version = reader.number(1);
  reader.skip(3 + (version == 1 ? 16 : 8));
  timescale = reader.u32();
  const uint64_t ticks = reader.number(version == 1 ? 8 : 4);
  duration = static_cast<int64_t>(std::min<uint64_t>(ticks, std::numeric_limits<int64_t>::max()));
  if (!reader.ok() || timescale == 0) return damaged(box.type);
  return {};
}

Status read_runs(const Box& box, bool is_signed, std::vector<Mp4Run>& runs) {
  BoxReader reader(box.body);
  const uint64_t version = reader.number(1);
  reader.skip(3);
  const uint32_t entries = reader.u32();
  if (!reader.ok() || entries > reader.left() / 8) return damaged(box.type);
  runs.reserve(entries);
  int64_t samples = 0;
  for (uint32_t i = 0; i < entries; ++i) {
    const int64_t count = reader.u32();
    const uint32_t value = reader.u32();
    samples += count;
    if (samples > kMostSamples) return damaged(box.type);
    // Version 0 of ctts says unsigned, but writers store negative offsets in it all the same.
    const int64_t wide =
        is_signed && (version == 1 || value > 0x7FFFFFFFU) ? static_cast<int32_t>(value) : int64_t{value};
    if (count > 0) runs.push_back({count, wide});
  }
  return {};
}

Status read_sample_count(const Box& box, int64_t& samples) {
  BoxReader reader(box.body);
  reader.skip(8);
  samples = reader.u32();
  if (!reader.ok() || samples > kMostSamples) return damaged(box.type);
  return {};
}

Status read_key_samples(const Box& box, std::vector<int64_t>& keys) {
  BoxReader reader(box.body);
  reader.skip(4);
  const uint32_t entries = reader.u32();
  if (!reader.ok() || entries > reader.left() / 4) return damaged(box.type);
  keys.reserve(entries);
  for (uint32_t i = 0; i < entries; ++i) {
    const int64_t sample = int64_t{reader.u32()} - 1;
    if (sample < 0 || (!keys.empty() && sample <= keys.back())) return damaged(box.type);
    keys.push_back(sample);
  }
  return {};
}

Status read_edits(const Box& box, std::vector<Mp4Edit>& edits) {
  BoxReader reader(box.body);
  const uint64_t version = reader.number(1);
  reader.skip(3);
  const uint32_t entries = reader.u32();
  const size_t width = version == 1 ? 8 : 4;
  if (!reader.ok() || entries > reader.left() / (2 * width + 4)) return damaged(box.type);
  for (uint32_t i = 0; i < entries; ++i) {
    Mp4Edit edit;
    edit.duration = static_cast<int64_t>(reader.number(width));
    const uint64_t media = reader.number(width);
    edit.media_ticks = version == 1 ? static_cast<int64_t>(media) : static_cast<int32_t>(static_cast<uint32_t>(media));
    reader.skip(4);  // the rate
    edits.push_back(edit);
  }
  return {};
}

// What one bit stream says after another: Exp-Golomb numbers of an H.264 parameter set.
class BitReader {
 public:
  explicit BitReader(std::string_view bytes) : bytes_(bytes) {}
  uint32_t bits(int count) {
    uint32_t value = 0;
    while (count-- > 0) value = value << 1 | bit();
    return value;
  }
  uint32_t exp_golomb() {
    int zeros = 0;
    while (at_ < bytes_.size() * 8 && bit() == 0 && zeros < 31) ++zeros;
    return (1U << zeros) - 1 + bits(zeros);
  }

 private:
  uint32_t bit() {
    if (at_ >= bytes_.size() * 8) return 0;
    const auto byte = static_cast<unsigned char>(bytes_[at_ / 8]);
    return byte >> (7 - at_++ % 8) & 1U;
  }
  std::string_view bytes_;
  size_t at_ = 0;
};

constexpr std::array<int, 4> kChroma = {400, 420, 422, 444};

// avcC: profiles above High say their format in the first sequence parameter set, the others are 8 bits of 4:2:0.
void read_avc(std::string_view body, Mp4Track& track) {
  BoxReader reader(body);
  reader.skip(5);
  const uint64_t sets = reader.number(1) & 31;
  if (!reader.ok() || sets == 0) return;
  const std::string_view set = reader.text(static_cast<size_t>(reader.number(2)));
  if (!reader.ok() || set.size() < 4) return;
  track.bits = 8;
  track.chroma = 420;
  const auto profile = static_cast<unsigned char>(set[1]);
  constexpr std::array<int, 12> kWithFormat = {100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134};
  if (std::find(kWithFormat.begin(), kWithFormat.end(), profile) == kWithFormat.end()) return;
  BitReader bits(set.substr(4));
  static_cast<void>(bits.exp_golomb());  // its id
  const uint32_t chroma = bits.exp_golomb();
  if (chroma == 3) static_cast<void>(bits.bits(1));
  track.chroma = kChroma[std::min<uint32_t>(chroma, 3)];
  track.bits = 8 + static_cast<int>(std::min<uint32_t>(bits.exp_golomb(), 6));
}

void read_hevc(std::string_view body, Mp4Track& track) {
  BoxReader reader(body);
  reader.skip(16);
  track.chroma = kChroma[reader.number(1) & 3];
  track.bits = 8 + static_cast<int>(reader.number(1) & 7);
  if (!reader.ok()) track.bits = track.chroma = 0;
}

void read_av1(std::string_view body, Mp4Track& track) {
  BoxReader reader(body);
  reader.skip(2);
  const uint64_t flags = reader.number(1);
  if (!reader.ok()) return;
  track.bits = (flags & 0x40) == 0 ? 8 : (flags & 0x20) != 0 ? 12 : 10;
  track.chroma = (flags & 0x10) != 0 ? 400 : (flags & 8) == 0 ? 444 : (flags & 4) == 0 ? 422 : 420;
}

void read_vp9(std::string_view body, Mp4Track& track) {
  BoxReader reader(body);
  reader.skip(6);
  const uint64_t flags = reader.number(1);
  if (!reader.ok()) return;
  track.bits = static_cast<int>(flags >> 4);
  const uint64_t subsampling = flags >> 1 & 7;
  track.chroma = subsampling <= 1 ? 420 : subsampling == 2 ? 422 : 444;
}

// stsd: the first sample entry; of a picture its size and its decoder's configuration.
Status read_description(const Box& box, Mp4Track& track) {
  BoxReader reader(box.body);
  reader.skip(8);
  ASSIGN_OR_RETURN(const std::optional<Box> entry, next_box(reader, "stsd"));
  if (!entry) return damaged("stsd");
  track.codec = std::string(entry->type);
  if (track.kind != "vide") return {};
  BoxReader fields(entry->body);
  fields.skip(24);
  track.width = static_cast<int64_t>(fields.number(2));
  track.height = static_cast<int64_t>(fields.number(2));
  fields.skip(50);
  if (!fields.ok()) return damaged("stsd");
  return for_each_box(fields.rest(), entry->type, [&](const Box& inner) -> Status {
    if (inner.type == "avcC") read_avc(inner.body, track);
    if (inner.type == "hvcC") read_hevc(inner.body, track);
    if (inner.type == "av1C") read_av1(inner.body, track);
    if (inner.type == "vpcC") read_vp9(inner.body, track);
    return {};
  });
}

Status read_sample_table(std::string_view body, Mp4Track& track) {
  return for_each_box(body, "stbl", [&](const Box& box) -> Status {
    if (box.type == "stsd") return read_description(box, track);
    if (box.type == "stts") return read_runs(box, false, track.durations);
    if (box.type == "ctts") return read_runs(box, true, track.offsets);
    if (box.type == "stsz" || box.type == "stz2") return read_sample_count(box, track.samples);
    if (box.type == "stss") return read_key_samples(box, track.key_samples.emplace());
    return {};
  });
}

Status read_media(std::string_view body, Mp4Track& track) {
  return for_each_box(body, "mdia", [&](const Box& box) -> Status {
    if (box.type == "mdhd") return read_clock(box, track.timescale, track.duration_ticks);
    if (box.type == "hdlr") {
      BoxReader reader(box.body);
      reader.skip(8);
      track.kind = std::string(reader.text(4));
      return reader.ok() ? Status{} : damaged("hdlr");
    }
    if (box.type != "minf") return {};
    return for_each_box(box.body, "minf", [&](const Box& inner) -> Status {
      return inner.type == "stbl" ? read_sample_table(inner.body, track) : Status{};
    });
  });
}

// The tables must agree on the number of samples; otherwise a reader of one table reads past the others.
Status check_track(const Mp4Track& track) {
  if (track.timescale == 0) return fail(ErrorCode::kCorruption, "a track has no mdhd box");
  for (const auto& [runs, name] : {std::pair(&track.durations, "stts"), std::pair(&track.offsets, "ctts")}) {
    int64_t samples = 0;
    for (const Mp4Run& run : *runs) samples += run.count;
    if (samples != track.samples && !runs->empty()) {
      return fail(ErrorCode::kCorruption, "its {} box has {} samples and its stsz box {}", name, samples,
                  track.samples);
    }
  }
  if (track.samples > 0 && track.durations.empty()) return damaged("stts");
  const bool has_keys = track.key_samples && !track.key_samples->empty();
  if (has_keys && track.key_samples->back() >= track.samples) return damaged("stss");
  return {};
}

Status read_track(std::string_view body, Mp4Track& track) {
  RETURN_IF_ERROR(for_each_box(body, "trak", [&](const Box& box) -> Status {
    if (box.type == "mdia") return read_media(box.body, track);
    if (box.type != "edts") return {};
    return for_each_box(box.body, "edts", [&](const Box& inner) -> Status {
      return inner.type == "elst" ? read_edits(inner, track.edits) : Status{};
    });
  }));
  return check_track(track);
}

Status read_moov(std::string_view body, Mp4File& file) {
  return for_each_box(body, "moov", [&](const Box& box) -> Status {
    int64_t duration = 0;
    if (box.type == "mvhd") return read_clock(box, file.movie_timescale, duration);
    if (box.type == "mvex") file.fragmented = true;
    return box.type == "trak" ? read_track(box.body, file.tracks.emplace_back()) : Status{};
  });
}

// Reads a file through a window, so that a head and a small box behind it are one request. For one thread.
class TopBoxes {
 public:
  explicit TopBoxes(const RandomReader& file) : file_(file) {}

  // Valid until the next call. REQUIRES: the range lies in the file.
  Result<std::string_view> bytes(int64_t offset, int64_t size) {
    if (offset < offset_ || offset + size > offset_ + static_cast<int64_t>(window_.size())) {
      const int64_t wanted = std::max(size, offset == 0 ? kFirstRead : kLaterRead);
      window_.resize(static_cast<size_t>(std::min(file_.size() - offset, wanted)));
      offset_ = offset;
      RETURN_IF_ERROR(file_.read_at(offset, std::as_writable_bytes(std::span(window_))));
    }
    return std::string_view(window_).substr(static_cast<size_t>(offset - offset_), static_cast<size_t>(size));
  }

 private:
  const RandomReader& file_;
  std::string window_;
  int64_t offset_ = 0;
};

struct TopBox {
  std::string type;
  int64_t offset = 0, body = 0, end = 0;
};

Result<TopBox> top_box(TopBoxes& boxes, int64_t offset, int64_t file_size) {
  ASSIGN_OR_RETURN(const std::string_view head, boxes.bytes(offset, std::min<int64_t>(16, file_size - offset)));
  BoxReader reader(head);
  uint64_t size = reader.u32();
  TopBox box{std::string(reader.text(4)), offset, offset + 8, 0};
  if (size == 1) {
    size = reader.number(8);
    box.body += 8;
  }
  const int64_t left = file_size - offset;
  if (size == 0) size = static_cast<uint64_t>(left);
  if (!reader.ok() || size < static_cast<uint64_t>(box.body - offset)) {
    return fail(ErrorCode::kCorruption, "the box at byte {} has no valid head", offset);
  }
  if (size > static_cast<uint64_t>(left)) {
    return fail(ErrorCode::kCorruption, "its {} box is cut off: {} of {} bytes are there", box.type, left, size);
  }
  box.end = offset + static_cast<int64_t>(size);
  return box;
}

Result<Mp4File> read_boxes(const RandomReader& file) {
  if (file.size() == 0) return fail(ErrorCode::kCorruption, "it is empty");
  TopBoxes boxes(file);
  ASSIGN_OR_RETURN(const std::string_view head, boxes.bytes(0, std::min<int64_t>(file.size(), 64)));
  if (is_lfs_pointer(head)) {
    return fail(ErrorCode::kCorruption, "it is a Git LFS pointer and not the video (git lfs pull fetches that)");
  }
  Mp4File out{.moov_offset = -1, .mdat_offset = -1};
  for (int64_t at = 0; at + 8 <= file.size();) {
    ASSIGN_OR_RETURN(const TopBox box, top_box(boxes, at, file.size()));
    if (at == 0 && box.type != "ftyp" && box.type != "moov" && box.type != "mdat" && box.type != "free" &&
        box.type != "wide" && box.type != "skip") {
      return fail(ErrorCode::kCorruption, "it does not begin as an MP4 does");
    }
    if (box.type == "mdat" && out.mdat_offset < 0) out.mdat_offset = at;
    if (box.type == "moof") out.fragmented = true;
    if (box.type == "moov" && out.moov_offset < 0) {
      if (box.end - box.body > kMostMoov) return fail(ErrorCode::kCorruption, "its moov box is larger than 256 MiB");
      ASSIGN_OR_RETURN(const std::string_view moov, boxes.bytes(box.body, box.end - box.body));
      out.moov_offset = at;
      RETURN_IF_ERROR(read_moov(moov, out));
    }
    at = box.end;
  }
  if (out.moov_offset < 0) {
    return fail(ErrorCode::kCorruption, "it has no moov box: its writer did not finish");
  }
  const bool has_samples =
      std::any_of(out.tracks.begin(), out.tracks.end(), [](const Mp4Track& t) { return t.samples > 0; });
  if (has_samples && out.mdat_offset < 0)
    return fail(ErrorCode::kCorruption, "it has no mdat box: its frames are missing");
  return out;
}

}  // namespace

const Mp4Track* Mp4File::video() const {
  const auto found = std::find_if(tracks.begin(), tracks.end(), [](const Mp4Track& t) { return t.kind == "vide"; });
  return found == tracks.end() ? nullptr : &*found;
}

std::vector<int64_t> presentation_ticks(const Mp4Track& track) {
  int64_t zero = 0;
  for (const Mp4Edit& edit : track.edits) {
    if (edit.media_ticks < 0) continue;
    zero = edit.media_ticks;
    break;
  }
  std::vector<int64_t> ticks;
  ticks.reserve(static_cast<size_t>(track.samples));
  // Unsigned, as the values of a damaged file may add up to anything.
  uint64_t decode = -static_cast<uint64_t>(zero);
  for (const Mp4Run& run : track.durations) {
    for (int64_t i = 0; i < run.count; ++i, decode += static_cast<uint64_t>(run.value)) {
      ticks.push_back(static_cast<int64_t>(decode));
    }
  }
  size_t at = 0;
  for (const Mp4Run& run : track.offsets) {
    for (int64_t i = 0; i < run.count && at < ticks.size(); ++i, ++at) {
      ticks[at] = static_cast<int64_t>(static_cast<uint64_t>(ticks[at]) + static_cast<uint64_t>(run.value));
    }
  }
  std::sort(ticks.begin(), ticks.end());
  return ticks;
}

std::string pixel_format(const Mp4Track& track) {
  if (track.bits == 0) return {};
  const std::string depth = track.bits == 8 ? "" : std::to_string(track.bits) + "le";
  if (track.chroma == 400) return "gray" + depth;
  return "yuv" + std::to_string(track.chroma) + "p" + depth;
}

std::string codec_name(const Mp4Track& track) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kNames{{{"avc1", "h264"},
                                                                                 {"avc3", "h264"},
                                                                                 {"hvc1", "hevc"},
                                                                                 {"hev1", "hevc"},
                                                                                 {"av01", "av1"},
                                                                                 {"vp09", "vp9"},
                                                                                 {"vp08", "vp8"},
                                                                                 {"mp4v", "mpeg4"},
                                                                                 {"jpeg", "mjpeg"}}};
  for (const auto& [entry, name] : kNames) {
    if (track.codec == entry) return std::string(name);
  }
  return track.codec;
}

Result<Mp4File> read_mp4(const RandomReader& file) {
  return with_context(read_boxes(file), file.name());
}

bool is_lfs_pointer(std::string_view head) {
  return head.starts_with("version https://git-lfs");
}

}  // namespace millrace::formats
