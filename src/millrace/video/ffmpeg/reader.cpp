// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/ffmpeg/reader.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace millrace::video {
namespace {

// Packets so near to one another are one read: a request costs as much as some hundred kilobytes.
constexpr int64_t kMaxGapBytes = 16 << 10;
constexpr int64_t kMinRunBytes = 64 << 10;
constexpr int64_t kMaxRunBytes = 4 << 20;
// swscale writes whole vectors: behind each row there must be room for one.
constexpr int64_t kVectorPixels = 32;

bool is_h264_restart(std::span<const std::byte> bytes, const AVCodecParameters& parameters) {
  const auto at = [&](size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  if (parameters.extradata_size < 5 || parameters.extradata[0] != 1) return true;  // not in the form of MP4
  const size_t prefix = (parameters.extradata[4] & 3U) + 1;
  for (size_t i = 0; i + prefix < bytes.size();) {
    size_t size = 0;
    for (size_t k = 0; k < prefix; ++k) size = size << 8 | at(i + k);
    if ((at(i + prefix) & 31U) == 5) return true;
    i += prefix + std::min(size, bytes.size());
  }
  return false;
}

}  // namespace

Status Converter::to_rgb(const AVFrame& frame, uint8_t* out, int row_bytes) {
  const bool full = frame.color_range == AVCOL_RANGE_JPEG;
  if (scaler_ == nullptr || format_ != frame.format || space_ != frame.colorspace || range_ != (full ? 1 : 0)) {
    const auto format = static_cast<AVPixelFormat>(frame.format);
    scaler_.reset(sws_getContext(frame.width, frame.height, format, frame.width, frame.height, AV_PIX_FMT_RGB24,
                                 SWS_BILINEAR, nullptr, nullptr, nullptr));
    if (scaler_ == nullptr) {
      return fail(ErrorCode::kUnsupported, "swscale cannot make RGB of {}", av_get_pix_fmt_name(format));
    }
    format_ = frame.format;
    space_ = frame.colorspace;
    range_ = full ? 1 : 0;
    sws_setColorspaceDetails(scaler_.get(), sws_getCoefficients(frame.colorspace), range_,
                             sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
  }
  uint8_t* const rows[4] = {out};
  const int strides[4] = {row_bytes};
  const int done = sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, rows, strides);
  return done == frame.height ? Status() : fail(ErrorCode::kInternal, "swscale: {}", ffmpeg_error(done));
}

Status Converter::convert(const AVFrame& frame, PixelLayout layout, std::span<std::byte> out) {
  // SAFETY: uint8_t may alias any object.
  auto* const bytes = reinterpret_cast<uint8_t*>(out.data());
  if (layout == PixelLayout::kPlanes) {
    const int copied = av_image_copy_to_buffer(bytes, static_cast<int>(out.size()), frame.data, frame.linesize,
                                               static_cast<AVPixelFormat>(frame.format), frame.width, frame.height, 1);
    return copied >= 0 ? Status() : fail(ErrorCode::kInternal, "{}", ffmpeg_error(copied));
  }
  const auto width = static_cast<size_t>(frame.width), height = static_cast<size_t>(frame.height);
  const bool exact_rows = frame.width % kVectorPixels == 0;
  if (layout == PixelLayout::kHwc && exact_rows) return to_rgb(frame, bytes, 3 * frame.width);
  const size_t stride = 3 * ((width + kVectorPixels - 1) / kVectorPixels * kVectorPixels);
  rows_.resize(stride * height + 3 * kVectorPixels);
  RETURN_IF_ERROR(to_rgb(frame, rows_.data(), static_cast<int>(stride)));
  for (size_t y = 0; y < height; ++y) {
    const uint8_t* const row = rows_.data() + y * stride;
    if (layout == PixelLayout::kHwc) {
      std::memcpy(bytes + y * 3 * width, row, 3 * width);
      continue;
    }
    for (size_t c = 0; c < 3; ++c) {
      uint8_t* const plane = bytes + (c * height + y) * width;
      for (size_t x = 0; x < width; ++x) plane[x] = row[3 * x + c];
    }
  }
  return {};
}

FfmpegVideo::FfmpegVideo(const RandomReader& file, Track track, int threads)
    : file_(file),
      index_(std::move(track.index)),
      parameters_(std::move(track.parameters)),
      threads_(std::max(threads, 1)),
      packet_(av_packet_alloc()),
      frame_(av_frame_alloc()) {
  info_.codec = avcodec_get_name(parameters_->codec_id);
  info_.width = parameters_->width;
  info_.height = parameters_->height;
  info_.streams = track.streams;
  for (size_t i = 0; i < index_->packets.size(); ++i) {
    if (index_->packets[i].key) keys_.push_back(static_cast<int64_t>(i));
  }
  can_start_.assign(keys_.size(), parameters_->codec_id == AV_CODEC_ID_H264 ? int8_t{-1} : int8_t{1});
}

Result<std::unique_ptr<FfmpegVideo>> FfmpegVideo::open(const RandomReader& file, const OpenOptions& options) {
  auto track = read_track(file, options.index, options.stop);
  if (!track) return with_context(Result<std::unique_ptr<FfmpegVideo>>(tl::unexpected(track.error())), file.name());
  std::unique_ptr<FfmpegVideo> video(new FfmpegVideo(file, std::move(*track), options.threads));
  // The first frame tells what the tables do not: how its pixels are stored.
  RETURN_IF_ERROR(video->show(0, video->index_->packet.front(), {.stop = options.stop}));
  const AVFrame& frame = *video->frame_;
  const auto or_unknown = [](const char* name) { return name == nullptr ? "unknown" : name; };
  video->info_.width = frame.width;
  video->info_.height = frame.height;
  video->info_.pixel_format = or_unknown(av_get_pix_fmt_name(static_cast<AVPixelFormat>(frame.format)));
  video->info_.colour_space = or_unknown(av_color_space_name(frame.colorspace));
  video->info_.full_range = frame.color_range == AVCOL_RANGE_JPEG;
  return video;
}

Status FfmpegVideo::open_decoder() {
  const AVCodec* const codec = avcodec_find_decoder(parameters_->codec_id);
  if (codec == nullptr) {
    return fail(ErrorCode::kUnsupported, "{}: this FFmpeg has no decoder for {}", file_.name(), info_.codec);
  }
  decoder_.reset(avcodec_alloc_context3(codec));
  if (decoder_ == nullptr) return fail(ErrorCode::kResourceExhausted, "{}: no memory", file_.name());
  int opened = avcodec_parameters_to_context(decoder_.get(), parameters_.get());
  decoder_->pkt_timebase = to_av(index_->time_base);
  decoder_->thread_count = threads_;
  // What is damaged is an error, and not patched up with what lay there before.
  decoder_->err_recognition = AV_EF_EXPLODE;
  if (opened >= 0) opened = avcodec_open2(decoder_.get(), codec, nullptr);
  if (opened >= 0) return {};
  return fail(ErrorCode::kCorruption, "{}: the decoder {} does not take it: {}", file_.name(), codec->name,
              ffmpeg_error(opened));
}

int64_t FfmpegVideo::frame_bytes(PixelLayout layout) const {
  if (layout != PixelLayout::kPlanes) return 3 * info_.width * info_.height;
  return av_image_get_buffer_size(av_get_pix_fmt(info_.pixel_format.c_str()), static_cast<int>(info_.width),
                                  static_cast<int>(info_.height), 1);
}

Status FfmpegVideo::read(std::span<const int64_t> numbers, std::span<std::byte> out, const ReadOptions& options) {
  for (const int64_t number : numbers) {
    if (number >= 0 && number < index_->frames()) continue;
    return fail(ErrorCode::kOutOfRange, "{}: there is no frame {}; it has frames 0 to {}", file_.name(), number,
                index_->frames() - 1);
  }
  const auto bytes = static_cast<size_t>(frame_bytes(options.layout));
  std::vector<size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return numbers[i]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t number = numbers[order[i]];
    const auto place = out.subspan(order[i] * bytes, bytes);
    if (i > 0 && numbers[order[i - 1]] == number) {
      std::memcpy(place.data(), out.data() + order[i - 1] * bytes, bytes);
      continue;
    }
    // All that is wanted of this run of packets is read at once.
    size_t last = i;
    while (last + 1 < order.size() && gop_of(numbers[order[last + 1]]) == gop_of(number)) ++last;
    const int64_t until = index_->packet[static_cast<size_t>(numbers[order[last]])];
    RETURN_IF_ERROR(show(number, until, options));
    RETURN_IF_ERROR(converter_.convert(*frame_, options.layout, place));
  }
  return {};
}

int64_t FfmpegVideo::gop_of(int64_t number) const {
  return std::ranges::upper_bound(keys_, index_->packet[static_cast<size_t>(number)]) - keys_.begin();
}

int64_t FfmpegVideo::frame_of(int64_t pts) const {
  const auto found = std::ranges::lower_bound(index_->pts, pts);
  return found != index_->pts.end() && *found == pts ? found - index_->pts.begin() : -1;
}

tl::unexpected<Error> FfmpegVideo::damaged(int64_t pts, std::string_view what) const {
  const int64_t number = frame_of(pts);
  const auto place = number < 0 ? std::string("a hidden frame") : fmt::format("frame {}", number);
  return fail(ErrorCode::kCorruption, "{}: {} {}", file_.name(), place, what);
}

Result<bool> FfmpegVideo::can_start_at(int64_t packet, int64_t until) {
  const auto key = std::ranges::lower_bound(keys_, packet);
  if (key == keys_.end() || *key != packet) return false;
  int8_t& known = can_start_[static_cast<size_t>(key - keys_.begin())];
  if (known < 0) {
    ASSIGN_OR_RETURN(const auto bytes, packet_bytes(packet, until));
    known = is_h264_restart(bytes, *parameters_) ? 1 : 0;
  }
  return known == 1;
}

// The last packet before the frame's that decoding can begin with. Pictures shown before a key frame and stored behind
// it need what came before the key frame.
Result<int64_t> FfmpegVideo::start_of(int64_t number, int64_t until) {
  const int64_t pts = index_->pts[static_cast<size_t>(number)];
  for (int64_t key = gop_of(number) - 1; key >= 0; --key) {
    const int64_t packet = keys_[static_cast<size_t>(key)];
    if (index_->packets[static_cast<size_t>(packet)].pts > pts) continue;
    ASSIGN_OR_RETURN(const bool can_start, can_start_at(packet, until));
    if (can_start) return packet;
  }
  return 0;
}

Status FfmpegVideo::restart_at(int64_t packet) {
  if (decoder_ == nullptr) {
    RETURN_IF_ERROR(open_decoder());
  } else {
    avcodec_flush_buffers(decoder_.get());
    // The HEVC decoder of FFmpeg 7 still gives out pictures from before the flush.
    while (avcodec_receive_frame(decoder_.get(), frame_.get()) >= 0) {
    }
  }
  started_ = next_ = packet;
  shown_ = last_ = -1;
  ended_ = false;
  return {};
}

void FfmpegVideo::rest() {
  decoder_.reset();
  av_frame_unref(frame_.get());
  started_ = shown_ = last_ = -1;
  run_ = {};
  run_begin_ = run_end_ = 0;
}

Status FfmpegVideo::show(int64_t number, int64_t until, const ReadOptions& options) {
  if (shown_ == number) return {};
  ASSIGN_OR_RETURN(const int64_t start, start_of(number, until));
  const bool is_ahead = started_ >= 0 && started_ <= start && start <= next_ && last_ < number;
  if (!is_ahead) RETURN_IF_ERROR(restart_at(start));
  const auto decode = [&]() -> Status {
    for (;;) {
      if (options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "{}: stopped", file_.name());
      if (Clock::now() > options.deadline) {
        return fail(ErrorCode::kTimeout, "{}: frame {} was not decoded in time", file_.name(), number);
      }
      ASSIGN_OR_RETURN(const bool received, receive());
      if (received && shown_ == number) return check_frame();
      if (received && shown_ < number) continue;
      if (received || ended_)
        return damaged(index_->pts[static_cast<size_t>(number)], "is missing in what was decoded");
      RETURN_IF_ERROR(send_next(until));
    }
  };
  Status status = decode();
  if (!status) started_ = shown_ = last_ = -1;  // whatever state it is in
  return status;
}

Status FfmpegVideo::send_next(int64_t until) {
  if (next_ == static_cast<int64_t>(index_->packets.size())) {
    ended_ = true;
    const int sent = avcodec_send_packet(decoder_.get(), nullptr);
    return sent >= 0 ? Status() : fail(ErrorCode::kInternal, "{}: {}", file_.name(), ffmpeg_error(sent));
  }
  const Packet& packet = index_->packets[static_cast<size_t>(next_)];
  ASSIGN_OR_RETURN(const auto bytes, packet_bytes(next_, until));
  av_packet_unref(packet_.get());
  if (av_new_packet(packet_.get(), static_cast<int>(bytes.size())) < 0) {
    return fail(ErrorCode::kResourceExhausted, "{}: no memory for a packet of {} bytes", file_.name(), bytes.size());
  }
  std::memcpy(packet_->data, bytes.data(), bytes.size());
  packet_->pts = packet.pts;
  packet_->dts = packet.dts;
  packet_->duration = packet.duration;
  packet_->flags = packet.key ? AV_PKT_FLAG_KEY : 0;
  const int sent = avcodec_send_packet(decoder_.get(), packet_.get());
  ++next_;
  return sent >= 0 ? Status() : damaged(packet.pts, "cannot be decoded: " + ffmpeg_error(sent));
}

// False: it wants another packet, or has given all.
Result<bool> FfmpegVideo::receive() {
  for (;;) {
    const int received = avcodec_receive_frame(decoder_.get(), frame_.get());
    if (received == AVERROR(EAGAIN) || received == AVERROR_EOF) return false;
    const int64_t last = index_->packets[static_cast<size_t>(std::max<int64_t>(next_ - 1, 0))].pts;
    if (received < 0) return damaged(last, "cannot be decoded: " + ffmpeg_error(received));
    shown_ = frame_of(frame_->best_effort_timestamp);
    if (shown_ < 0) continue;  // hidden
    last_ = shown_;
    const bool is_patched = frame_->decode_error_flags != 0 || (frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0;
    // Those before the first key frame may well lack what they are made from; nobody gets them.
    const bool counts = frame_->best_effort_timestamp >= index_->packets[static_cast<size_t>(started_)].pts;
    if (is_patched && counts) return damaged(frame_->best_effort_timestamp, "is damaged");
    return true;
  }
}

// All frames are as the first.
Status FfmpegVideo::check_frame() const {
  if (info_.pixel_format.empty()) return {};
  const char* const format = av_get_pix_fmt_name(static_cast<AVPixelFormat>(frame_->format));
  if (frame_->width == info_.width && frame_->height == info_.height && info_.pixel_format == format) return {};
  return fail(ErrorCode::kUnsupported, "{}: frame {} is {} of {} x {}, the first is {} of {} x {}", file_.name(),
              shown_, format, frame_->width, frame_->height, info_.pixel_format, info_.width, info_.height);
}

Result<std::span<const std::byte>> FfmpegVideo::packet_bytes(int64_t packet, int64_t until) {
  const auto& packets = index_->packets;
  if (packet < run_begin_ || packet >= run_end_) {
    int64_t begin = packets[static_cast<size_t>(packet)].offset;
    int64_t end = begin + packets[static_cast<size_t>(packet)].size_bytes, last = packet;
    for (size_t next = static_cast<size_t>(packet) + 1; next < packets.size(); ++next) {
      const Packet& more = packets[next];
      const int64_t size = more.offset + more.size_bytes - begin;
      if (more.offset < end || more.offset - end > kMaxGapBytes || size > kMaxRunBytes) break;
      if (static_cast<int64_t>(next) > until && size > kMinRunBytes) break;
      end = begin + size;
      last = static_cast<int64_t>(next);
    }
    run_.resize(static_cast<size_t>(end - begin));
    run_begin_ = run_end_ = 0;
    if (auto read = file_.read_at(begin, run_); !read) return tl::unexpected(read.error());
    run_begin_ = packet;
    run_end_ = last + 1;
    run_offset_ = begin;
  }
  const Packet& wanted = packets[static_cast<size_t>(packet)];
  return std::span<const std::byte>(run_).subspan(static_cast<size_t>(wanted.offset - run_offset_),
                                                  static_cast<size_t>(wanted.size_bytes));
}

}  // namespace millrace::video
