// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <limits>

#include "millrace/video/ffmpeg/thread_policy.h"
#include "millrace/video/ffmpeg/writer.h"

namespace millrace::video {
namespace {

struct Choice {
  const char* codec;
  const char* encoder;
  const char* preset_name;  // what the encoder calls its preset
  const char* preset;
};
// The first that FFmpeg has is taken.
constexpr Choice kChoices[] = {{"h264", "libx264", "preset", "veryfast"},
                               {"hevc", "libx265", "preset", "veryfast"},
                               {"av1", "libsvtav1", "preset", "10"},
                               {"av1", "libaom-av1", "cpu-used", "8"}};

Result<const Choice*> choose(const std::string& codec) {
  std::vector<std::string> names;
  for (const Choice& choice : kChoices) {
    if (codec != choice.codec) continue;
    if (avcodec_find_encoder_by_name(choice.encoder) != nullptr) return &choice;
    names.emplace_back(choice.encoder);
  }
  if (names.empty()) {
    return fail(ErrorCode::kUnsupported, "{} is no codec that can be written; there are h264, hevc and av1", codec);
  }
  return fail(ErrorCode::kUnsupported, "this FFmpeg cannot encode {}: it was built without {}", codec,
              fmt::join(names, " and "));
}

class FfmpegEncoder final : public Encoder {
 public:
  explicit FfmpegEncoder(const EncodeOptions& options) : options_(options) {}
  // SVT-AV1 1.4 waits for its threads for ever where it is closed before it was told of the end of a frame or more.
  ~FfmpegEncoder() override {
    if (!is_open_ || has_ended_) return;
    if (!has_frames_) {
      const Handle<AVFrame> frame = new_frame(0);
      if (!frame || avcodec_send_frame(context_.get(), frame.get()) < 0) return;
    }
    if (avcodec_send_frame(context_.get(), nullptr) < 0) return;
    const Handle<AVPacket> packet(av_packet_alloc());
    while (packet && avcodec_receive_packet(context_.get(), packet.get()) >= 0) av_packet_unref(packet.get());
  }

  Status open() {
    ASSIGN_OR_RETURN(const Choice* const choice, choose(options_.codec));
    const AVCodec* const codec = avcodec_find_encoder_by_name(choice->encoder);
    context_.reset(avcodec_alloc_context3(codec));
    const AVPixelFormat format = av_get_pix_fmt(options_.pixel_format.c_str());
    if (format == AV_PIX_FMT_NONE || options_.width <= 0 || options_.height <= 0 || options_.width > kMaxSide ||
        options_.height > kMaxSide || options_.time_base.num <= 0 || options_.time_base.den <= 0) {
      return fail(ErrorCode::kInvalidArgument, "cannot encode {} of {} x {} in ticks of {}/{} s", options_.pixel_format,
                  options_.width, options_.height, options_.time_base.num, options_.time_base.den);
    }
    fill(format, *choice);
    AVDictionary* settings = settings_for(*choice);
    const ThreadPolicy policy;
    const int opened = avcodec_open2(context_.get(), codec, &settings);
    policy.restore();
    is_open_ = opened >= 0;
    std::string unknown;
    if (const AVDictionaryEntry* left = av_dict_get(settings, "", nullptr, AV_DICT_IGNORE_SUFFIX)) unknown = left->key;
    av_dict_free(&settings);
    if (opened < 0) return fail(ErrorCode::kUnsupported, "{}: {}", choice->encoder, ffmpeg_error(opened));
    if (!unknown.empty()) {
      return fail(ErrorCode::kInvalidArgument, "{} has no setting called {}", choice->encoder, unknown);
    }
    const Handle<AVCodecParameters> parameters(avcodec_parameters_alloc());
    avcodec_parameters_from_context(parameters.get(), context_.get());
    ASSIGN_OR_RETURN(writer_,
                     Mp4Writer::open(*parameters, context_->time_base, context_->framerate, options_.timescale));
    return {};
  }

  Status add(std::span<const std::byte> planes, int64_t pts, int64_t duration) override {
    const Handle<AVFrame> frame = new_frame(pts);
    if (!frame) return fail(ErrorCode::kResourceExhausted, "no memory for a frame");
    uint8_t* given[4] = {};
    int strides[4] = {};
    // SAFETY: uint8_t may alias any object; the planes are only read.
    const auto* bytes = reinterpret_cast<const uint8_t*>(planes.data());
    const int size =
        av_image_fill_arrays(given, strides, bytes, context_->pix_fmt, context_->width, context_->height, 1);
    if (size != static_cast<int>(planes.size())) {
      return fail(ErrorCode::kInvalidArgument, "a frame has {} bytes, not {}", size, planes.size());
    }
    av_image_copy(frame->data, frame->linesize, const_cast<const uint8_t**>(given), strides, context_->pix_fmt,
                  context_->width, context_->height);
    durations_[pts] = duration;
    has_frames_ = true;
    return encode(frame.get());
  }

  Result<std::vector<std::byte>> finish() override {
    has_ended_ = true;
    RETURN_IF_ERROR(encode(nullptr));
    return writer_->finish();
  }

 private:
  static constexpr int64_t kMaxSide = 1 << 14;

  void fill(AVPixelFormat format, const Choice& choice) {
    context_->width = static_cast<int>(options_.width);
    context_->height = static_cast<int>(options_.height);
    context_->pix_fmt = format;
    context_->time_base = to_av(options_.time_base);
    context_->framerate = options_.fps.num > 0 ? to_av(options_.fps) : av_inv_q(context_->time_base);
    context_->thread_count = options_.threads;
    // The muxer wants the parameters in front, and no names of versions.
    context_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    if (options_.gop > 0) context_->gop_size = options_.gop;
    if (std::string_view(choice.encoder) != "libsvtav1") context_->max_b_frames = options_.b_frames;
    const int space = av_color_space_from_name(options_.colour_space.c_str());
    if (space >= 0) context_->colorspace = static_cast<AVColorSpace>(space);
    context_->color_range = options_.full_range ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
  }

  AVDictionary* settings_for(const Choice& choice) const {
    AVDictionary* settings = nullptr;
    const std::string& preset = options_.preset;
    av_dict_set(&settings, choice.preset_name, preset.empty() ? choice.preset : preset.c_str(), 0);
    av_dict_set_int(&settings, "crf", options_.crf, 0);
    const std::string_view encoder = choice.encoder;
    if (encoder == "libsvtav1") {
      av_dict_set(&settings, "svtav1-params", fmt::format("lp={}", options_.threads).c_str(), 0);
    } else if (encoder == "libx264") {
      // Without it x264 0.164 with AVX-512 weighs macroblocks by memory that nobody wrote.
      av_dict_set(&settings, "x264-params", "cpu-independent=1", 0);
    } else if (encoder == "libx265") {
      // With threads of its own x265 does not always give the same bytes, nor with weighted prediction: version 3.5
      // reads references there before it wrote them.
      const bool alone = options_.threads == 1;
      const auto pools = alone ? std::string("none:no-wpp=1:frame-threads=1:weightp=0:weightb=0")
                               : fmt::format("{}", options_.threads);
      const auto params = fmt::format("log-level=none:pools={}:bframes={}", pools, options_.b_frames);
      av_dict_set(&settings, "x265-params", params.c_str(), 0);
    }
    // A list of parameters goes behind ours.
    for (const auto& [name, value] : options_.settings) {
      const AVDictionaryEntry* ours = av_dict_get(settings, name.c_str(), nullptr, 0);
      const bool appends = ours != nullptr && name.ends_with("-params");
      av_dict_set(&settings, name.c_str(), appends ? fmt::format("{}:{}", ours->value, value).c_str() : value.c_str(),
                  0);
    }
    return settings;
  }

  // With memory for its planes, which hold anything. nullptr: there is none.
  Handle<AVFrame> new_frame(int64_t pts) const {
    Handle<AVFrame> frame(av_frame_alloc());
    if (!frame) return frame;
    frame->format = context_->pix_fmt;
    frame->width = context_->width;
    frame->height = context_->height;
    frame->pts = pts;
    frame->color_range = context_->color_range;
    if (av_frame_get_buffer(frame.get(), 0) < 0) frame.reset();
    return frame;
  }

  Status encode(const AVFrame* frame) {
    if (const int sent = avcodec_send_frame(context_.get(), frame); sent < 0) {
      return fail(ErrorCode::kInternal, "{}: {}", context_->codec->name, ffmpeg_error(sent));
    }
    const Handle<AVPacket> packet(av_packet_alloc());
    for (;;) {
      const int received = avcodec_receive_packet(context_.get(), packet.get());
      if (received == AVERROR(EAGAIN) || received == AVERROR_EOF) return {};
      if (received < 0) return fail(ErrorCode::kInternal, "{}: {}", context_->codec->name, ffmpeg_error(received));
      const auto duration = durations_.extract(packet->pts);
      if (!duration.empty()) packet->duration = duration.mapped();
      RETURN_IF_ERROR(writer_->add(*packet));
    }
  }

  const EncodeOptions options_;
  Handle<AVCodecContext> context_;
  bool is_open_ = false, has_frames_ = false, has_ended_ = false;
  std::unique_ptr<Mp4Writer> writer_;
  std::map<int64_t, int64_t> durations_;  // of the frames that are in the encoder, by pts
};

}  // namespace

Result<std::unique_ptr<Encoder>> make_encoder(const EncodeOptions& options) {
  auto encoder = std::make_unique<FfmpegEncoder>(options);
  RETURN_IF_ERROR(encoder->open());
  return encoder;
}

}  // namespace millrace::video
