// SPDX-License-Identifier: Apache-2.0
#pragma once

// Implements Video by FFmpeg: reads packets by the index, decodes and converts them.

#include "millrace/video/ffmpeg/index.h"

namespace millrace::video {

// Converts decoded frames to a PixelLayout. For one thread.
class Converter {
 public:
  // Writes the frame to `out` in `layout`.
  [[nodiscard]] Status convert(const AVFrame& frame, PixelLayout layout, std::span<std::byte> out);

 private:
  [[nodiscard]] Status to_rgb(const AVFrame& frame, uint8_t* out, int row_bytes);

  Handle<SwsContext> scaler_;
  int format_ = -1, space_ = -1, range_ = -1;
  std::vector<uint8_t> rows_;  // RGB with a gap after each row
};

class FfmpegVideo final : public Video {
 public:
  [[nodiscard]] static Result<std::unique_ptr<FfmpegVideo>> open(const RandomReader& file, const OpenOptions& options);

  std::string_view name() const override { return file_.name(); }
  const VideoInfo& info() const override { return info_; }
  const std::shared_ptr<const FrameIndex>& index() const override { return index_; }
  int64_t frame_bytes(PixelLayout layout) const override;
  [[nodiscard]] Status read(std::span<const int64_t> numbers, std::span<std::byte> out,
                            const ReadOptions& options) override;
  void rest() override;

  // The next three methods are for cuts and joins.
  const AVCodecParameters& parameters() const { return *parameters_; }
  // Returns whether decoding may begin with this packet: a key frame; in H.264, one that resets all references (IDR).
  // `until`: the last packet that will be asked for soon.
  [[nodiscard]] Result<bool> can_start_at(int64_t packet, int64_t until);
  // Reads a packet. The bytes are valid until the next call.
  [[nodiscard]] Result<std::span<const std::byte>> packet_bytes(int64_t packet, int64_t until);

 private:
  FfmpegVideo(const RandomReader& file, Track track, int threads);
  [[nodiscard]] Status open_decoder();
  // Decodes a frame into frame_. `until`: as in packet_bytes().
  [[nodiscard]] Status show(int64_t number, int64_t until, const ReadOptions& options);
  [[nodiscard]] Result<int64_t> start_of(int64_t number, int64_t until);
  [[nodiscard]] Status restart_at(int64_t packet);
  [[nodiscard]] Status send_next(int64_t until);
  [[nodiscard]] Result<bool> receive();
  [[nodiscard]] Status check_frame() const;
  int64_t frame_of(int64_t pts) const;  // -1: none
  int64_t gop_of(int64_t number) const;
  tl::unexpected<Error> damaged(int64_t pts, std::string_view what) const;

  const RandomReader& file_;
  const std::shared_ptr<const FrameIndex> index_;
  const Handle<AVCodecParameters> parameters_;
  const int threads_;
  VideoInfo info_;
  std::vector<int64_t> keys_;      // packets of key frames
  std::vector<int8_t> can_start_;  // of each key: 1, 0, or -1: not known yet

  Handle<AVCodecContext> decoder_;
  Handle<AVPacket> packet_;
  Handle<AVFrame> frame_;
  Converter converter_;
  int64_t shown_ = -1;    // the frame in frame_; -1: none
  int64_t last_ = -1;     // the last frame that the decoder has returned since its start
  int64_t started_ = -1;  // the packet that the decoder started with; -1: it must be restarted
  int64_t next_ = 0;      // the next packet for the decoder
  bool ended_ = false;    // the decoder was told that no more packets come

  std::vector<std::byte> run_;  // the bytes of packets [run_begin_, run_end_) of the file
  int64_t run_begin_ = 0, run_end_ = 0, run_offset_ = 0;
};

}  // namespace millrace::video
