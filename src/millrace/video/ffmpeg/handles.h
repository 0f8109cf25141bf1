// SPDX-License-Identifier: Apache-2.0
#pragma once

// Wraps FFmpeg's objects in owners and its error codes in texts, and lets FFmpeg read a RandomReader and write memory.

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/video/video.h"

namespace millrace::video {

struct FreeHandle {
  void operator()(AVCodecContext* handle) const { avcodec_free_context(&handle); }
  void operator()(AVCodecParameters* handle) const { avcodec_parameters_free(&handle); }
  void operator()(AVPacket* handle) const { av_packet_free(&handle); }
  void operator()(AVFrame* handle) const { av_frame_free(&handle); }
  void operator()(SwsContext* handle) const { sws_freeContext(handle); }
};
template <class T>
using Handle = std::unique_ptr<T, FreeHandle>;

// Returns FFmpeg's text for its error code, with the last line that FFmpeg logged on this thread since the last call.
std::string ffmpeg_error(int code);

// Diverts FFmpeg's log lines from the terminal into error messages. Takes effect once per process.
void keep_ffmpeg_quiet();

inline Rational to_rational(AVRational r) {
  return {r.num, r.den};
}
inline AVRational to_av(Rational r) {
  return {static_cast<int>(r.num), static_cast<int>(r.den)};
}

// A RandomReader as FFmpeg's input. Blanked ranges read as zeros without a read of the file, so FFmpeg can scan a
// file's tables without reading its pictures.
class ReaderInput {
 public:
  explicit ReaderInput(const RandomReader& file, std::stop_token stop = {});
  ~ReaderInput();
  ReaderInput(const ReaderInput&) = delete;
  ReaderInput& operator=(const ReaderInput&) = delete;

  struct Range {
    int64_t begin = 0, end = 0;
  };
  void blank(std::vector<Range> ranges);  // any order

  AVIOContext* context() { return context_; }
  // The error of the last failed read, which FFmpeg would lose.
  std::optional<Error> error;

 private:
  static int read(void* self, uint8_t* out, int size);
  static int64_t seek(void* self, int64_t offset, int whence);
  int read_some(uint8_t* out, int64_t size);

  const RandomReader& file_;
  const std::stop_token stop_;
  int64_t at_ = 0;
  std::vector<Range> blank_;  // sorted
  AVIOContext* context_ = nullptr;
};

// Memory as FFmpeg's output. FFmpeg may read it again while it moves the tables to the front.
class MemoryOutput {
 public:
  MemoryOutput();
  ~MemoryOutput();
  MemoryOutput(const MemoryOutput&) = delete;
  MemoryOutput& operator=(const MemoryOutput&) = delete;

  AVIOContext* context() { return context_; }
  // Opens a reader of the same bytes; the caller closes it with close_reader.
  AVIOContext* open_reader();
  static void close_reader(AVIOContext* reader);
  // Allocates memory for `bytes` at once. Without it, growing copies the content again and again.
  void reserve(size_t bytes) { bytes_.reserve(bytes); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  struct Cursor {
    std::vector<std::byte>* bytes;
    size_t at = 0;
  };
  static int read(void* cursor, uint8_t* out, int size);
  // FFmpeg 7 passes the bytes as const, older versions do not.
  template <class Byte>
  static int write(void* cursor, Byte* data, int size);
  static int64_t seek(void* cursor, int64_t offset, int whence);

  std::vector<std::byte> bytes_;
  Cursor cursor_{&bytes_};
  AVIOContext* context_ = nullptr;
};

}  // namespace millrace::video
