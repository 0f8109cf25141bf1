// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/ffmpeg/index.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace millrace::video {
namespace {

constexpr std::string_view kPointerMark = "version https://git-lfs";
// The largest reorder delay of H.264 and HEVC, in pictures.
constexpr size_t kMaxReorder = 16;

// Refuses an empty file and the pointer that a checkout without Git LFS has in place of a video.
Status refuse_pointer(const RandomReader& file) {
  if (file.size() == 0) return fail(ErrorCode::kCorruption, "the file is empty");
  std::array<char, kPointerMark.size()> mark{};
  if (file.size() < static_cast<int64_t>(mark.size())) return {};
  RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(mark))));
  if (std::string_view(mark.data(), mark.size()) != kPointerMark) return {};
  return fail(ErrorCode::kCorruption, "a Git LFS pointer, not the video: get its content with `git lfs pull`");
}

class Demuxer {
 public:
  Demuxer(const RandomReader& file, std::stop_token stop) : file_(file), input_(file, std::move(stop)) {}
  ~Demuxer() { avformat_close_input(&format_); }
  Demuxer(const Demuxer&) = delete;
  Demuxer& operator=(const Demuxer&) = delete;

  Status open() {
    format_ = avformat_alloc_context();
    if (format_ == nullptr) return fail(ErrorCode::kResourceExhausted, "no memory");
    format_->pb = input_.context();
    // Takes what the tables say; does not let FFmpeg guess from the pictures.
    format_->flags |= AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_NOPARSE | AVFMT_FLAG_NOFILLIN;
    const int opened = avformat_open_input(&format_, "", av_find_input_format("mov"), nullptr);
    if (opened < 0) return failed("not an MP4 or MOV file, or one whose tables are cut off or damaged", opened);
    for (unsigned i = 0; i < format_->nb_streams; ++i) {
      AVStream& stream = *format_->streams[i];
      const bool is_video =
          stream.codecpar->codec_type == AVMEDIA_TYPE_VIDEO && (stream.disposition & AV_DISPOSITION_ATTACHED_PIC) == 0;
      if (is_video && stream_ == nullptr) {
        stream_ = &stream;
      } else {
        stream.discard = AVDISCARD_ALL;
      }
    }
    if (format_->nb_streams == 0) {
      return fail(ErrorCode::kCorruption,
                  "it has no tables of its content: it is cut off, or its writer did not finish");
    }
    if (stream_ == nullptr) return fail(ErrorCode::kCorruption, "it has no video track");
    if (stream_->time_base.num != 1 || stream_->time_base.den <= 0 || stream_->codecpar->width <= 0 ||
        stream_->codecpar->height <= 0) {
      return fail(ErrorCode::kCorruption, "its video track has no time base or no size");
    }
    return {};
  }

  Result<FrameIndex> scan() {
    RETURN_IF_ERROR(blank_pictures());
    FrameIndex index;
    index.time_base = to_rational(stream_->time_base);
    const Handle<AVPacket> packet(av_packet_alloc());
    for (;;) {
      const int read = av_read_frame(format_, packet.get());
      if (read == AVERROR_EOF) break;
      if (read < 0) return failed("its tables point to no readable packet", read);
      const Status added = packet->stream_index == stream_->index ? add(*packet, index) : Status();
      av_packet_unref(packet.get());
      RETURN_IF_ERROR(added);
    }
    if (input_.error) return tl::unexpected(*input_.error);
    return index;
  }

  AVStream& stream() { return *stream_; }
  int64_t streams() const { return format_->nb_streams; }

 private:
  tl::unexpected<Error> failed(std::string_view what, int code) const {
    if (input_.error) return tl::unexpected(*input_.error);
    return fail(ErrorCode::kCorruption, "{}: {}", what, ffmpeg_error(code));
  }

  // Makes the demuxer see zeros in place of packets, which are read when frames are decoded.
  Status blank_pictures() {
    std::vector<ReaderInput::Range> ranges;
    for (int i = 0; i < avformat_index_get_entries_count(stream_); ++i) {
      const AVIndexEntry* entry = avformat_index_get_entry(stream_, i);
      if (entry->size < 0 || entry->pos < 0 || entry->pos > file_.size() - entry->size) {
        return fail(ErrorCode::kCorruption, "it is cut off: picture {} is past its end at byte {}", i, file_.size());
      }
      ranges.push_back({entry->pos, entry->pos + entry->size});
    }
    input_.blank(std::move(ranges));
    return {};
  }

  Status add(const AVPacket& packet, FrameIndex& index) const {
    const size_t number = index.packets.size();
    if (packet.pts == AV_NOPTS_VALUE || packet.dts == AV_NOPTS_VALUE || packet.pos < 0) {
      return fail(ErrorCode::kCorruption, "picture {} has no timestamp or no file offset", number);
    }
    if ((packet.flags & AV_PKT_FLAG_CORRUPT) != 0 || packet.pos > file_.size() - packet.size) {
      return fail(ErrorCode::kCorruption, "it is cut off: picture {} is past its end", number);
    }
    for (int i = 0; i < packet.side_data_elems; ++i) {
      if (packet.side_data[i].type == AV_PKT_DATA_NEW_EXTRADATA) {
        return fail(ErrorCode::kUnsupported, "the parameters of its codec change at picture {}", number);
      }
    }
    index.packets.push_back({.offset = packet.pos,
                             .size_bytes = packet.size,
                             .pts = packet.pts,
                             .dts = packet.dts,
                             .duration = packet.duration,
                             .key = (packet.flags & AV_PKT_FLAG_KEY) != 0,
                             .hidden = (packet.flags & AV_PKT_FLAG_DISCARD) != 0});
    return {};
  }

  const RandomReader& file_;
  ReaderInput input_;
  AVFormatContext* format_ = nullptr;
  AVStream* stream_ = nullptr;
};

int64_t reorder_depth(const std::vector<Packet>& packets) {
  int64_t depth = 0;
  for (size_t i = 0; i < packets.size(); ++i) {
    const auto begin = packets.begin() + static_cast<std::ptrdiff_t>(i - std::min(i, kMaxReorder));
    const auto here = packets.begin() + static_cast<std::ptrdiff_t>(i);
    depth = std::max<int64_t>(depth, std::count_if(begin, here, [&](const Packet& p) { return p.pts > here->pts; }));
  }
  return depth;
}

Rational reduced(int64_t num, int64_t den) {
  const int64_t divisor = std::max<int64_t>(std::gcd(num, den), 1);
  return {num / divisor, den / divisor};
}

void measure_steps(FrameIndex& index) {
  index.fps = {0, 1};
  if (index.pts.size() < 2) return;
  index.step = index.pts[1] - index.pts[0];
  for (size_t i = 1; i < index.pts.size(); ++i) {
    if (index.pts[i] - index.pts[i - 1] != index.step) index.step = 0;
  }
  const int64_t ticks = index.step > 0 ? index.step : index.pts.back() - index.pts.front();
  const int64_t steps = index.step > 0 ? 1 : index.frames() - 1;
  index.fps = reduced(steps * index.time_base.den, ticks * index.time_base.num);
}

// Frames in the order of presentation.
Status order_frames(FrameIndex& index) {
  for (size_t i = 0; i < index.packets.size(); ++i) {
    if (!index.packets[i].hidden) index.packet.push_back(static_cast<int64_t>(i));
  }
  const auto pts_of = [&](int64_t packet) { return index.packets[static_cast<size_t>(packet)].pts; };
  std::ranges::stable_sort(index.packet, {}, pts_of);
  for (const int64_t packet : index.packet) {
    if (!index.pts.empty() && index.pts.back() == pts_of(packet)) {
      return fail(ErrorCode::kCorruption, "frames {} and {} are to be shown at the same time", index.frames() - 1,
                  index.frames());
    }
    index.pts.push_back(pts_of(packet));
  }
  if (index.pts.empty()) return fail(ErrorCode::kCorruption, "it has no frames");
  // Bounds times so that no sum or product of them overflows.
  constexpr int64_t kMost = int64_t{1} << 40;
  if (index.pts.front() < -kMost || index.pts.back() > kMost) {
    return fail(ErrorCode::kCorruption, "its timestamps are out of range");
  }
  return {};
}

}  // namespace

Result<Track> read_track(const RandomReader& file, std::shared_ptr<const FrameIndex> index, std::stop_token stop) {
  RETURN_IF_ERROR(refuse_pointer(file));
  Demuxer demuxer(file, std::move(stop));
  RETURN_IF_ERROR(demuxer.open());
  if (index == nullptr) {
    ASSIGN_OR_RETURN(FrameIndex scanned, demuxer.scan());
    RETURN_IF_ERROR(order_frames(scanned));
    scanned.reorder_depth = reorder_depth(scanned.packets);
    measure_steps(scanned);
    index = std::make_shared<const FrameIndex>(std::move(scanned));
  }
  Track track{std::move(index), Handle<AVCodecParameters>(avcodec_parameters_alloc()), demuxer.streams()};
  const int copied = avcodec_parameters_copy(track.parameters.get(), demuxer.stream().codecpar);
  if (copied < 0) return fail(ErrorCode::kResourceExhausted, "{}", ffmpeg_error(copied));
  track.parameters->video_delay = static_cast<int>(track.index->reorder_depth);
  return track;
}

}  // namespace millrace::video
