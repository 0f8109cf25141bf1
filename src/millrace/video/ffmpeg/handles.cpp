// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/ffmpeg/handles.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace millrace::video {
namespace {

// Large enough that the tables of a file in an object store take few requests.
constexpr int kInputBufferBytes = 128 << 10;
constexpr int kOutputBufferBytes = 64 << 10;

thread_local std::string last_line;

void keep_line(void*, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR) return;
  char line[256];
  std::vsnprintf(line, sizeof(line), format, arguments);
  last_line = line;
  while (!last_line.empty() && (last_line.back() == '\n' || last_line.back() == '.')) last_line.pop_back();
}

AVIOContext* new_context(int buffer_bytes, bool writes, void* opaque, int (*read)(void*, uint8_t*, int),
                         decltype(AVIOContext::write_packet) write, int64_t (*seek)(void*, int64_t, int)) {
  auto* const buffer = static_cast<uint8_t*>(av_malloc(static_cast<size_t>(buffer_bytes)));
  if (buffer == nullptr) throw std::bad_alloc();
  AVIOContext* const context = avio_alloc_context(buffer, buffer_bytes, writes ? 1 : 0, opaque, read, write, seek);
  if (context == nullptr) throw std::bad_alloc();
  return context;
}

void free_context(AVIOContext* context) {
  av_freep(&context->buffer);
  avio_context_free(&context);
}

int64_t place(int64_t offset, int whence, int64_t at, int64_t size) {
  switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE:
      return size;
    case SEEK_SET:
      return offset;
    case SEEK_CUR:
      return at + offset;
    case SEEK_END:
      return size + offset;
    default:
      return -1;
  }
}

}  // namespace

void keep_ffmpeg_quiet() {
  static const bool done = [] {
    ::setenv("SVT_LOG", "1", /*overwrite=*/0);  // errors only: SVT-AV1 prints a banner past FFmpeg's log
    av_log_set_callback(keep_line);
    return true;
  }();
  static_cast<void>(done);
}

std::string ffmpeg_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof(text));
  std::string message = text;
  if (!last_line.empty()) message += " (" + std::exchange(last_line, {}) + ")";
  return message;
}

ReaderInput::ReaderInput(const RandomReader& file, std::stop_token stop)
    : file_(file),
      stop_(std::move(stop)),
      context_(new_context(kInputBufferBytes, false, this, &ReaderInput::read, nullptr, &ReaderInput::seek)) {}

ReaderInput::~ReaderInput() {
  free_context(context_);
}

void ReaderInput::blank(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  blank_ = std::move(ranges);
}

// Up to the next place where blank and real bytes meet.
int ReaderInput::read_some(uint8_t* out, int64_t size) {
  auto next = std::upper_bound(blank_.begin(), blank_.end(), at_,
                               [](int64_t at, const Range& range) { return at < range.begin; });
  if (next != blank_.begin() && std::prev(next)->end > at_) {
    size = std::min(size, std::prev(next)->end - at_);
    std::memset(out, 0, static_cast<size_t>(size));
  } else {
    if (next != blank_.end()) size = std::min(size, next->begin - at_);
    // SAFETY: std::byte may alias any object.
    const auto bytes = std::span(reinterpret_cast<std::byte*>(out), static_cast<size_t>(size));
    if (auto status = file_.read_at(at_, bytes); !status) {
      error = std::move(status).error();
      return AVERROR(EIO);
    }
  }
  at_ += size;
  return static_cast<int>(size);
}

int ReaderInput::read(void* self, uint8_t* out, int size) {
  auto& input = *static_cast<ReaderInput*>(self);
  if (input.stop_.stop_requested()) {
    input.error = Error(ErrorCode::kCancelled, "stopped while a video was being opened");
    return AVERROR_EXIT;
  }
  const int64_t left = input.file_.size() - input.at_;
  if (left <= 0) return AVERROR_EOF;
  return input.read_some(out, std::min<int64_t>(size, left));
}

int64_t ReaderInput::seek(void* self, int64_t offset, int whence) {
  auto& input = *static_cast<ReaderInput*>(self);
  const int64_t at = place(offset, whence, input.at_, input.file_.size());
  if (at < 0) return AVERROR(EINVAL);
  if ((whence & ~AVSEEK_FORCE) != AVSEEK_SIZE) input.at_ = at;
  return at;
}

template <class Byte>
int MemoryOutput::write(void* opaque, Byte* data, int size) {
  auto& cursor = *static_cast<Cursor*>(opaque);
  const size_t end = cursor.at + static_cast<size_t>(size);
  if (end > cursor.bytes->size()) cursor.bytes->resize(end);
  std::memcpy(cursor.bytes->data() + cursor.at, data, static_cast<size_t>(size));
  cursor.at = end;
  return size;
}

MemoryOutput::MemoryOutput()
    : context_(new_context(kOutputBufferBytes, true, &cursor_, nullptr, &MemoryOutput::write, &MemoryOutput::seek)) {}

MemoryOutput::~MemoryOutput() {
  free_context(context_);
}

AVIOContext* MemoryOutput::open_reader() {
  auto cursor = std::make_unique<Cursor>(Cursor{&bytes_});
  return new_context(kOutputBufferBytes, false, cursor.release(), &MemoryOutput::read, nullptr, &MemoryOutput::seek);
}

void MemoryOutput::close_reader(AVIOContext* reader) {
  const std::unique_ptr<Cursor> cursor(static_cast<Cursor*>(reader->opaque));
  free_context(reader);
}

int MemoryOutput::read(void* opaque, uint8_t* out, int size) {
  auto& cursor = *static_cast<Cursor*>(opaque);
  const size_t left = cursor.bytes->size() - std::min(cursor.at, cursor.bytes->size());
  const size_t count = std::min(static_cast<size_t>(size), left);
  if (count == 0) return AVERROR_EOF;
  std::memcpy(out, cursor.bytes->data() + cursor.at, count);
  cursor.at += count;
  return static_cast<int>(count);
}

int64_t MemoryOutput::seek(void* opaque, int64_t offset, int whence) {
  auto& cursor = *static_cast<Cursor*>(opaque);
  const int64_t at = place(offset, whence, static_cast<int64_t>(cursor.at), static_cast<int64_t>(cursor.bytes->size()));
  if (at < 0) return AVERROR(EINVAL);
  if ((whence & ~AVSEEK_FORCE) != AVSEEK_SIZE) cursor.at = static_cast<size_t>(at);
  return at;
}

}  // namespace millrace::video
