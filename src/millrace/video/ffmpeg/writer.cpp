// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/ffmpeg/writer.h"

namespace millrace::video {

Result<std::unique_ptr<Mp4Writer>> Mp4Writer::open(const AVCodecParameters& parameters, AVRational time_base,
                                                   AVRational fps, int64_t timescale) {
  std::unique_ptr<Mp4Writer> writer(new Mp4Writer());
  writer->time_base_ = time_base;
  RETURN_IF_ERROR(writer->start(parameters, fps, timescale));
  return writer;
}

Mp4Writer::~Mp4Writer() {
  avformat_free_context(format_);
}

// The muxer opens what it wrote once more, to move it behind the tables.
int Mp4Writer::open_io(AVFormatContext* format, AVIOContext** io, const char*, int flags, AVDictionary**) {
  if ((flags & AVIO_FLAG_WRITE) != 0) return AVERROR(ENOSYS);
  *io = static_cast<Mp4Writer*>(format->opaque)->output_.open_reader();
  return 0;
}

int Mp4Writer::close_io(AVFormatContext*, AVIOContext* io) {
  if (io != nullptr) MemoryOutput::close_reader(io);
  return 0;
}

Status Mp4Writer::start(const AVCodecParameters& parameters, AVRational fps, int64_t timescale) {
  const auto check = [](int code) {
    return code >= 0 ? Status() : fail(ErrorCode::kUnsupported, "the MP4 cannot be begun: {}", ffmpeg_error(code));
  };
  RETURN_IF_ERROR(check(avformat_alloc_output_context2(&format_, nullptr, "mp4", "memory.mp4")));
  format_->opaque = this;
  format_->io_open = &Mp4Writer::open_io;
  format_->io_close2 = &Mp4Writer::close_io;
  format_->pb = output_.context();
  // No version and no time of writing: equal frames give equal bytes.
  format_->flags |= AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_BITEXACT;
  AVStream* const stream = avformat_new_stream(format_, nullptr);
  if (stream == nullptr) return fail(ErrorCode::kResourceExhausted, "no memory");
  RETURN_IF_ERROR(check(avcodec_parameters_copy(stream->codecpar, &parameters)));
  stream->codecpar->codec_tag = 0;
  stream->time_base = time_base_;
  stream->avg_frame_rate = fps;
  AVDictionary* settings = nullptr;
  av_dict_set(&settings, "movflags", "+faststart", 0);
  if (timescale > 0) av_dict_set_int(&settings, "video_track_timescale", timescale, 0);
  const int begun = avformat_write_header(format_, &settings);
  av_dict_free(&settings);
  return check(begun);
}

Status Mp4Writer::add(AVPacket& packet) {
  packet.stream_index = 0;
  packet.pos = -1;
  av_packet_rescale_ts(&packet, time_base_, format_->streams[0]->time_base);
  const int64_t dts = packet.dts;
  const int written = av_interleaved_write_frame(format_, &packet);
  if (written >= 0) return {};
  return fail(ErrorCode::kUnsupported, "the MP4 does not take a packet at tick {}: {}", dts, ffmpeg_error(written));
}

Result<std::vector<std::byte>> Mp4Writer::finish() {
  const int ended = av_write_trailer(format_);
  if (ended < 0) return fail(ErrorCode::kInternal, "the MP4 cannot be ended: {}", ffmpeg_error(ended));
  avio_flush(format_->pb);
  return output_.take();
}

}  // namespace millrace::video
