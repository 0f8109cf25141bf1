// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes an MP4 with one video track to memory, with its tables at the front.

#include "millrace/video/encode.h"
#include "millrace/video/ffmpeg/handles.h"

namespace millrace::video {

class Mp4Writer {
 public:
  // `timescale` 0: FFmpeg's choice for this time base.
  [[nodiscard]] static Result<std::unique_ptr<Mp4Writer>> open(const AVCodecParameters& parameters,
                                                               AVRational time_base, AVRational fps, int64_t timescale);
  ~Mp4Writer();
  Mp4Writer(const Mp4Writer&) = delete;
  Mp4Writer& operator=(const Mp4Writer&) = delete;

  // Reserves memory for about `bytes` bytes of packets.
  void expect(int64_t bytes) { output_.reserve(static_cast<size_t>(bytes)); }
  // Adds a packet, in decode order; its times are in the time base given to open(). Takes over the data of `packet`.
  [[nodiscard]] Status add(AVPacket& packet);
  [[nodiscard]] Result<std::vector<std::byte>> finish();

 private:
  Mp4Writer() = default;
  static int open_io(AVFormatContext* format, AVIOContext** io, const char* url, int flags, AVDictionary** options);
  static int close_io(AVFormatContext* format, AVIOContext* io);
  [[nodiscard]] Status start(const AVCodecParameters& parameters, AVRational fps, int64_t timescale);

  MemoryOutput output_;
  AVFormatContext* format_ = nullptr;
  AVRational time_base_{};
};

[[nodiscard]] Result<std::unique_ptr<Encoder>> make_encoder(const EncodeOptions& options);

}  // namespace millrace::video
