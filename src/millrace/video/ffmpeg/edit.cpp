// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/ffmpeg/edit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "millrace/base/thread/executor.h"
#include "millrace/video/ffmpeg/reader.h"
#include "millrace/video/ffmpeg/writer.h"

namespace millrace::video {
namespace {

using Bytes = std::vector<std::byte>;

// Frames [begin, begin + count) of `video`, which the result shows from its frame `at` and tick `tick` on.
struct Piece {
  FfmpegVideo* video = nullptr;
  int64_t begin = 0, count = 0;
  int64_t at = 0, tick = 0;
};

Status copy_packet(FfmpegVideo& source, int64_t number, int64_t shift, Mp4Writer& writer) {
  const Packet& packet = source.index()->packets[static_cast<size_t>(number)];
  ASSIGN_OR_RETURN(const auto bytes, source.packet_bytes(number, number));
  const Handle<AVPacket> copy(av_packet_alloc());
  if (av_new_packet(copy.get(), static_cast<int>(bytes.size())) < 0) {
    return fail(ErrorCode::kResourceExhausted, "no memory for a packet of {} bytes", bytes.size());
  }
  std::memcpy(copy->data, bytes.data(), bytes.size());
  copy->pts = packet.pts + shift;
  copy->dts = packet.dts + shift;
  copy->duration = packet.duration;
  copy->flags = packet.key ? AV_PKT_FLAG_KEY : 0;
  return writer.add(*copy);
}

Result<std::unique_ptr<Mp4Writer>> writer_like(const FfmpegVideo& video) {
  const FrameIndex& index = *video.index();
  const Rational fps =
      index.fps.num > 0 && index.fps.num <= INT32_MAX && index.fps.den <= INT32_MAX ? index.fps : Rational{};
  return Mp4Writer::open(video.parameters(), to_av(index.time_base), to_av(fps), index.time_base.den);
}

Status stopped(const std::stop_token& stop) {
  return stop.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : Status();
}

// ---- the result against its source

bool same_time(int64_t a, Rational unit_a, int64_t b, Rational unit_b) {
  return static_cast<__int128>(a) * unit_a.num * unit_b.den == static_cast<__int128>(b) * unit_b.num * unit_a.den;
}

Status check_times(const FrameIndex& result, const Piece& piece) {
  const FrameIndex& source = *piece.video->index();
  const int64_t first = source.pts[static_cast<size_t>(piece.begin)];
  for (int64_t i = 0; i < piece.count; ++i) {
    const int64_t wanted = source.pts[static_cast<size_t>(piece.begin + i)] - first + piece.tick;
    const int64_t given = result.pts[static_cast<size_t>(piece.at + i)];
    if (same_time(wanted, source.time_base, given, result.time_base)) continue;
    return fail(ErrorCode::kInternal, "frame {} of the result begins at tick {}, not {}", piece.at + i, given, wanted);
  }
  return {};
}

// First, last, and some by chance.
std::vector<int64_t> chosen_frames(int64_t count, const CheckOptions& options) {
  std::vector<int64_t> chosen = {0, count - 1};
  std::mt19937_64 random(options.seed);
  for (int i = 0; i < options.random_frames; ++i) {
    chosen.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(count)));
  }
  std::ranges::sort(chosen);
  const auto repeated = std::ranges::unique(chosen);
  chosen.erase(repeated.begin(), repeated.end());
  return chosen;
}

Status check_pictures(Video& result, const Piece& piece, const CheckOptions& options, const std::stop_token& stop) {
  const ReadOptions planes{.layout = PixelLayout::kPlanes, .stop = stop};
  Bytes wanted(static_cast<size_t>(piece.video->frame_bytes(planes.layout)));
  Bytes given(static_cast<size_t>(result.frame_bytes(planes.layout)));
  for (const int64_t i : chosen_frames(piece.count, options)) {
    const int64_t there = piece.begin + i, here = piece.at + i;
    RETURN_IF_ERROR(piece.video->read({&there, 1}, wanted, planes));
    RETURN_IF_ERROR(with_context(result.read({&here, 1}, given, planes), "the result"));
    if (given == wanted) continue;
    return fail(ErrorCode::kInternal, "frame {} of the result is not frame {} of {}", here, there, piece.video->name());
  }
  return {};
}

Result<std::unique_ptr<FfmpegVideo>> open_result(const RandomReader& file, int64_t frames, std::stop_token stop) {
  ASSIGN_OR_RETURN(auto result, FfmpegVideo::open(file, {.stop = std::move(stop)}));
  const FrameIndex& index = *result->index();
  if (index.frames() == frames && index.packets.size() == index.pts.size() && index.packets.front().key) return result;
  return fail(ErrorCode::kInternal, "the result has {} frames in {} packets, not {}", index.frames(),
              index.packets.size(), frames);
}

Status check_copy(std::span<const std::byte> bytes, std::span<const Piece> pieces, const CheckOptions& options,
                  const std::stop_token& stop) {
  const MemoryReader file(bytes, "the result");
  // Pieces of one video stay together, since it is for one thread at a time.
  std::map<FfmpegVideo*, std::vector<const Piece*>> by_video;
  for (const Piece& piece : pieces) by_video[piece.video].push_back(&piece);
  std::vector<std::vector<const Piece*>> groups;
  for (auto& [video, group] : by_video) groups.push_back(std::move(group));
  std::ranges::sort(groups, {}, [](const auto& group) { return group.front()->at; });
  const auto count = std::ssize(groups);
  const int64_t lanes = std::min<int64_t>(options.threads > 0 ? options.threads : available_cpus(), count);
  const auto check = [&](int64_t lane) -> Status {
    ASSIGN_OR_RETURN(const auto result, open_result(file, pieces.back().at + pieces.back().count, stop));
    for (int64_t i = lane; i < count; i += lanes) {
      for (const Piece* piece : groups[static_cast<size_t>(i)]) {
        RETURN_IF_ERROR(check_times(*result->index(), *piece));
        RETURN_IF_ERROR(check_pictures(*result, *piece, options, stop));
      }
      if (count > 1) groups[static_cast<size_t>(i)].front()->video->rest();
    }
    return {};
  };
  // This thread is one of them.
  return lanes == 1 ? check(0) : parallel_try(lanes, static_cast<int>(lanes) - 1, "mr-video", check);
}

double psnr_db(std::span<const std::byte> a, std::span<const std::byte> b) {
  int64_t squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int difference = std::to_integer<int>(a[i]) - std::to_integer<int>(b[i]);
    squares += difference * difference;
  }
  constexpr double kEqual = 100;  // dB, so that it stays a number
  if (squares == 0) return kEqual;
  return std::min(kEqual,
                  10 * std::log10(255.0 * 255.0 * static_cast<double>(a.size()) / static_cast<double>(squares)));
}

// Every frame; answers the worst PSNR.
Result<double> check_encoded(std::span<const std::byte> bytes, const Piece& piece, double least_db,
                             const std::stop_token& stop) {
  const MemoryReader file(bytes, "the result");
  ASSIGN_OR_RETURN(const auto result, open_result(file, piece.count, stop));
  RETURN_IF_ERROR(check_times(*result->index(), piece));
  const ReadOptions planes{.layout = PixelLayout::kPlanes, .stop = stop};
  Bytes wanted(static_cast<size_t>(piece.video->frame_bytes(planes.layout))), given(wanted.size());
  if (result->frame_bytes(planes.layout) != piece.video->frame_bytes(planes.layout)) {
    return fail(ErrorCode::kUnsupported, "the frames are encoded as {}, not {}: PSNR has no meaning",
                result->info().pixel_format, piece.video->info().pixel_format);
  }
  double worst = 100;
  for (int64_t i = 0; i < piece.count; ++i) {
    const int64_t there = piece.begin + i;
    RETURN_IF_ERROR(piece.video->read({&there, 1}, wanted, planes));
    RETURN_IF_ERROR(result->read({&i, 1}, given, planes));
    worst = std::min(worst, psnr_db(wanted, given));
  }
  if (worst >= least_db) return worst;
  return fail(ErrorCode::kUnsupported,
              "an encoded frame has a PSNR of {:.1f} dB, less than {:.1f}: a smaller crf helps", worst, least_db);
}

// ---- cut

// The packets to copy, in order; a message where copying would not be exact.
Result<std::vector<int64_t>> packets_of(FfmpegVideo& source, int64_t begin, int64_t end) {
  const FrameIndex& index = *source.index();
  const auto inexact = [](std::string_view why) { return fail(ErrorCode::kUnsupported, "{}", why); };
  const int64_t first = index.packet[static_cast<size_t>(begin)];
  ASSIGN_OR_RETURN(const bool can_start, source.can_start_at(first, first));
  if (!can_start) return inexact("it does not begin with a frame that decoding can start from");
  const int64_t first_pts = index.pts[static_cast<size_t>(begin)];
  const int64_t last_pts = index.pts[static_cast<size_t>(end - 1)];
  std::vector<int64_t> kept;
  for (int64_t i = first; static_cast<int64_t>(kept.size()) < end - begin; ++i) {
    if (i == static_cast<int64_t>(index.packets.size())) return inexact("its packets are not together");
    const Packet& packet = index.packets[static_cast<size_t>(i)];
    const bool leading = packet.pts < first_pts;
    if (packet.hidden || packet.pts > last_pts || (leading && source.parameters().codec_id == AV_CODEC_ID_H264)) {
      return inexact("other frames are needed to decode it");
    }
    if (!leading) kept.push_back(i);
  }
  return kept;
}

Result<Bytes> copied_cut(FfmpegVideo& source, int64_t begin, int64_t end, const CutOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> packets, packets_of(source, begin, end));
  ASSIGN_OR_RETURN(const auto writer, writer_like(source));
  const int64_t shift = -source.index()->pts[static_cast<size_t>(begin)];
  for (const int64_t packet : packets) {
    RETURN_IF_ERROR(stopped(options.stop));
    RETURN_IF_ERROR(copy_packet(source, packet, shift, *writer));
  }
  ASSIGN_OR_RETURN(Bytes bytes, writer->finish());
  const Piece piece{&source, begin, end - begin};
  RETURN_IF_ERROR(check_copy(bytes, std::span(&piece, 1), options.check, options.stop));
  return bytes;
}

int64_t ticks_of(const FrameIndex& index, int64_t frame) {
  if (frame + 1 < index.frames()) {
    return index.pts[static_cast<size_t>(frame + 1)] - index.pts[static_cast<size_t>(frame)];
  }
  return index.step > 0 ? index.step
                        : index.packets[static_cast<size_t>(index.packet[static_cast<size_t>(frame)])].duration;
}

Result<Bytes> encoded_cut(FfmpegVideo& source, int64_t begin, int64_t end, const CutOptions& options,
                          double& worst_db) {
  const FrameIndex& index = *source.index();
  const AVPixFmtDescriptor* const pixels = av_pix_fmt_desc_get(av_get_pix_fmt(source.info().pixel_format.c_str()));
  if (pixels == nullptr || pixels->comp[0].depth != 8) {
    return fail(ErrorCode::kUnsupported, "{} frames are not encoded: PSNR is measured of 8 bits only",
                source.info().pixel_format);
  }
  ASSIGN_OR_RETURN(const auto encoder,
                   make_encoder(options.encode ? *options.encode : cut_encoding(source.info(), index)));
  const ReadOptions planes{.layout = PixelLayout::kPlanes, .stop = options.stop};
  Bytes frame(static_cast<size_t>(source.frame_bytes(planes.layout)));
  for (int64_t i = begin; i < end; ++i) {
    RETURN_IF_ERROR(source.read({&i, 1}, frame, planes));
    const int64_t pts = index.pts[static_cast<size_t>(i)] - index.pts[static_cast<size_t>(begin)];
    RETURN_IF_ERROR(encoder->add(frame, pts, ticks_of(index, i)));
  }
  ASSIGN_OR_RETURN(Bytes bytes, encoder->finish());
  ASSIGN_OR_RETURN(worst_db, check_encoded(bytes, {&source, begin, end - begin}, options.min_psnr_db, options.stop));
  return bytes;
}

// ---- join

bool has_same_extradata(const AVCodecParameters& a, const AVCodecParameters& b) {
  return a.extradata_size == b.extradata_size &&
         (a.extradata_size == 0 || std::memcmp(a.extradata, b.extradata, static_cast<size_t>(a.extradata_size)) == 0);
}

int64_t delay_of(const FrameIndex& index) {
  return index.packets.front().pts - index.packets.front().dts;
}

// Empty: packets of `part` may follow those of `first`.
std::string other_kind(const FfmpegVideo& first, const FfmpegVideo& part) {
  const VideoInfo &a = first.info(), &b = part.info();
  const FrameIndex &i = *first.index(), &j = *part.index();
  if (a.codec != b.codec) return fmt::format("codec {}, not {}", b.codec, a.codec);
  if (a.width != b.width || a.height != b.height) {
    return fmt::format("size {} x {}, not {} x {}", b.width, b.height, a.width, a.height);
  }
  if (a.pixel_format != b.pixel_format) return fmt::format("pixel format {}, not {}", b.pixel_format, a.pixel_format);
  if (a.colour_space != b.colour_space || a.full_range != b.full_range) return "another colour space";
  if (!(i.time_base == j.time_base)) return fmt::format("time base 1/{}, not 1/{}", j.time_base.den, i.time_base.den);
  if (delay_of(i) != delay_of(j)) {
    return fmt::format("a delay of {} ticks for B-frames, not {}", delay_of(j), delay_of(i));
  }
  // AV1 repeats them in every key packet.
  const AVCodecID codec = part.parameters().codec_id;
  const bool in_front_only = codec != AV_CODEC_ID_AV1;
  if (in_front_only && !has_same_extradata(first.parameters(), part.parameters())) return "other codec parameters";
  return {};
}

Result<std::string> why_not(const FfmpegVideo& first, FfmpegVideo& part) {
  std::string differs = other_kind(first, part);
  if (!differs.empty()) return differs;
  const FrameIndex& index = *part.index();
  ASSIGN_OR_RETURN(const bool can_start, part.can_start_at(0, 0));
  if (!can_start) return "no key frame at its beginning";
  if (index.packets.size() != index.pts.size()) return "frames hidden by an edit list";
  if (index.packet.front() != 0) return "frames before its first key frame";
  return std::string();
}

Status check_part(const FfmpegVideo& first, FfmpegVideo& part) {
  ASSIGN_OR_RETURN(const std::string why, why_not(first, part));
  if (why.empty()) return {};
  return fail(ErrorCode::kUnsupported, "{} cannot be joined without encoding: it has {}", part.name(), why);
}

// What the tables of an MP4 take, generously: sizes, offsets and times of each packet, and the boxes around them.
constexpr int64_t kTableBytes = 64 << 10, kTableBytesOfPacket = 32;

// From the first frame's beginning to the last one's end.
int64_t ticks_in(const FrameIndex& index) {
  return index.pts.back() - index.pts.front() + ticks_of(index, index.frames() - 1);
}

Result<Bytes> joined(std::span<const Piece> pieces, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto writer, writer_like(*pieces.front().video));
  int64_t expected = kTableBytes;
  for (const Piece& piece : pieces) {
    for (const Packet& packet : piece.video->index()->packets) expected += packet.size_bytes + kTableBytesOfPacket;
  }
  writer->expect(expected);
  for (const Piece& piece : pieces) {
    const FrameIndex& index = *piece.video->index();
    for (size_t i = 0; i < index.packets.size(); ++i) {
      RETURN_IF_ERROR(stopped(stop));
      RETURN_IF_ERROR(copy_packet(*piece.video, static_cast<int64_t>(i), piece.tick - index.pts.front(), *writer));
    }
  }
  return writer->finish();
}

}  // namespace

Result<CutReport> cut(Video& source, int64_t begin, int64_t end, ByteSink& out, const CutOptions& options) {
  // SAFETY: only this library makes Videos.
  auto& video = static_cast<FfmpegVideo&>(source);
  if (begin < 0 || begin >= end || end > video.index()->frames()) {
    return fail(ErrorCode::kOutOfRange, "{}: there are no frames [{}, {}); it has {}", video.name(), begin, end,
                video.index()->frames());
  }
  CutReport report{.frames = end - begin};
  Result<Bytes> bytes = options.must_encode ? fail(ErrorCode::kUnsupported, "encoding was asked for")
                                            : copied_cut(video, begin, end, options);
  report.copied = bytes.has_value();
  if (!bytes && bytes.error().code() == ErrorCode::kUnsupported && options.may_encode) {
    bytes = encoded_cut(video, begin, end, options, report.min_psnr_db);
  }
  if (!bytes) {
    return tl::unexpected(bytes.error().add_context(fmt::format("{}: frames [{}, {})", video.name(), begin, end)));
  }
  RETURN_IF_ERROR(out.append(*bytes));
  return report;
}

Result<std::string> difference(Video& first, Video& part) {
  // SAFETY: only this library makes Videos.
  return why_not(static_cast<FfmpegVideo&>(first), static_cast<FfmpegVideo&>(part));
}

Result<JoinReport> join(std::span<Video* const> parts, ByteSink& out, const JoinOptions& options) {
  if (parts.empty()) return fail(ErrorCode::kInvalidArgument, "there is no video to join");
  JoinReport report;
  std::vector<Piece> pieces;
  int64_t tick = 0;
  for (Video* const part : parts) {
    // SAFETY: only this library makes Videos.
    auto& video = static_cast<FfmpegVideo&>(*part);
    RETURN_IF_ERROR(check_part(pieces.empty() ? video : *pieces.front().video, video));
    report.begins.push_back(report.frames);
    pieces.push_back({&video, 0, video.index()->frames(), report.frames, tick});
    report.frames += pieces.back().count;
    tick += ticks_in(*video.index());
  }
  ASSIGN_OR_RETURN(const Bytes bytes, joined(pieces, options.stop));
  RETURN_IF_ERROR(check_copy(bytes, pieces, options.check, options.stop));
  RETURN_IF_ERROR(out.append(bytes));
  return report;
}

}  // namespace millrace::video
