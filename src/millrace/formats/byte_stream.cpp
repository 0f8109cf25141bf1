// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/byte_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <vector>

namespace millrace::formats {
namespace {

constexpr size_t kPackedPiece = 256 << 10;  // read from a packed file at once
// A frame may ask for a window of this much memory (zstd's own --long=27 and what its decoder takes by default).
constexpr int kMaxWindowLog = 27;

// A file front to back; what every stream stands on.
class FileCursor {
 public:
  explicit FileCursor(const RandomReader& file) : file_(file) {}

  Result<size_t> read(std::span<std::byte> out) {
    const auto size = static_cast<size_t>(std::min(file_.size() - at_, static_cast<int64_t>(out.size())));
    if (size > 0) RETURN_IF_ERROR(file_.read_at(at_, out.first(size)));
    at_ += static_cast<int64_t>(size);
    return size;
  }
  void move_to(int64_t offset) { at_ = offset; }
  int64_t at() const { return at_; }
  std::string_view name() const { return file_.name(); }

 private:
  const RandomReader& file_;
  int64_t at_ = 0;
};

class PlainStream final : public ByteStream {
 public:
  PlainStream(const RandomReader& file, int64_t begin) : file_(file) { file_.move_to(begin); }
  std::string_view name() const override { return file_.name(); }
  Result<size_t> read(std::span<std::byte> out) override { return file_.read(out); }
  int64_t file_bytes() const override { return file_.at(); }

 private:
  FileCursor file_;
};

// Common to gzip and zstd: packed pieces in, unpacked bytes out. `Codec` has
//   Status unpack(std::span<const std::byte>& in, std::span<std::byte>& out), which moves both on, and
//   bool between() const: no frame has begun that has not ended.
template <class Codec>
class UnpackedStream final : public ByteStream {
 public:
  explicit UnpackedStream(const RandomReader& file) : file_(file), packed_(kPackedPiece) {}

  std::string_view name() const override { return file_.name(); }
  int64_t file_bytes() const override { return file_.at() - static_cast<int64_t>(left_.size()); }

  Result<size_t> read(std::span<std::byte> out) override {
    std::span<std::byte> room = out;
    while (!room.empty()) {
      if (left_.empty()) {
        ASSIGN_OR_RETURN(const size_t size, file_.read(packed_));
        if (size == 0) {
          const size_t before = room.size();
          if (!codec_.between()) RETURN_IF_ERROR(unpack(room));  // what the codec still holds
          if (room.size() == before) break;
          continue;
        }
        left_ = std::span(packed_).first(size);
      }
      RETURN_IF_ERROR(unpack(room));
    }
    if (!room.empty() && !codec_.between()) {
      return fail(ErrorCode::kCorruption, "{}: its {} data is cut at byte {}, its end", name(), Codec::kName,
                  file_bytes());
    }
    return out.size() - room.size();
  }

 private:
  Status unpack(std::span<std::byte>& room) {
    auto done = codec_.unpack(left_, room);
    if (done) return {};
    return fail(ErrorCode::kCorruption, "{}: its {} data is damaged at about byte {}: {}", name(), Codec::kName,
                file_bytes(), done.error().message());
  }

  FileCursor file_;
  std::vector<std::byte> packed_;
  std::span<const std::byte> left_;  // of packed_
  Codec codec_;
};

class Gzip {
 public:
  static constexpr std::string_view kName = "gzip";
  Gzip() { inflateInit2(&state_, 16 + MAX_WBITS); }  // 16: a gzip header, and its checksum is verified
  ~Gzip() { inflateEnd(&state_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  bool between() const { return !inside_; }

  Status unpack(std::span<const std::byte>& in, std::span<std::byte>& out) {
    if (!inside_) {
      while (!in.empty() && in.front() == std::byte{0}) in = in.subspan(1);  // padding, as gzip itself takes it
      if (in.empty()) return {};
      inflateReset(&state_);
      inside_ = true;
    }
    // SAFETY: zlib reads and writes plain bytes and does not change its input.
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    state_.avail_in = static_cast<uInt>(in.size());
    state_.next_out = reinterpret_cast<Bytef*>(out.data());
    const auto room = static_cast<uInt>(std::min<size_t>(out.size(), 1 << 30));
    state_.avail_out = room;
    const int code = inflate(&state_, Z_NO_FLUSH);
    in = in.subspan(in.size() - state_.avail_in);
    out = out.subspan(room - state_.avail_out);
    if (code == Z_STREAM_END) inside_ = false;
    if (code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR) return {};
    return fail(ErrorCode::kCorruption, "{}", state_.msg != nullptr ? state_.msg : zError(code));
  }

 private:
  z_stream state_{};
  bool inside_ = false;
};

class Zstd {
 public:
  static constexpr std::string_view kName = "zstd";
  Zstd() : state_(ZSTD_createDCtx()) { ZSTD_DCtx_setParameter(state_, ZSTD_d_windowLogMax, kMaxWindowLog); }
  ~Zstd() { ZSTD_freeDCtx(state_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  bool between() const { return !inside_; }

  Status unpack(std::span<const std::byte>& in, std::span<std::byte>& out) {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const size_t left = ZSTD_decompressStream(state_, &output, &input);
    if (ZSTD_isError(left) != 0) return fail(ErrorCode::kCorruption, "{}", ZSTD_getErrorName(left));
    if (input.pos > 0 || output.pos > 0) inside_ = left != 0;
    in = in.subspan(input.pos);
    out = out.subspan(output.pos);
    return {};
  }

 private:
  ZSTD_DCtx* state_;
  bool inside_ = false;
};

bool is_gzip(std::span<const std::byte> head) {
  return head.size() >= 3 && head[0] == std::byte{0x1F} && head[1] == std::byte{0x8B} && head[2] == std::byte{8};
}

// A frame, or one of the sixteen kinds of frame that readers must skip.
bool is_zstd(std::span<const std::byte> head) {
  if (head.size() < 4 || head[2] != (head[1] == std::byte{0xB5} ? std::byte{0x2F} : std::byte{0x4D})) return false;
  if (head[1] == std::byte{0xB5}) return head[0] == std::byte{0x28} && head[3] == std::byte{0xFD};
  return (head[0] & std::byte{0xF0}) == std::byte{0x50} && head[1] == std::byte{0x2A} && head[3] == std::byte{0x18};
}

Status pass_over(ByteStream& stream, int64_t bytes) {
  std::vector<std::byte> scratch(static_cast<size_t>(std::min<int64_t>(bytes, kPackedPiece)));
  for (int64_t left = bytes; left > 0;) {
    const auto piece = std::span(scratch).first(static_cast<size_t>(std::min<int64_t>(left, kPackedPiece)));
    ASSIGN_OR_RETURN(const size_t size, stream.read(piece));
    left -= static_cast<int64_t>(size);
    if (size == 0) return fail(ErrorCode::kOutOfRange, "{}: it ends before byte {}", stream.name(), bytes);
  }
  return {};
}

}  // namespace

Result<bool> is_packed(const RandomReader& file) {
  std::array<std::byte, 4> bytes{};
  ASSIGN_OR_RETURN(const size_t size, FileCursor(file).read(bytes));
  const auto head = std::span(bytes).first(size);
  return is_gzip(head) || is_zstd(head);
}

Result<std::unique_ptr<ByteStream>> open_stream(const RandomReader& file, int64_t begin) {
  std::array<std::byte, 4> bytes{};
  ASSIGN_OR_RETURN(const size_t size, FileCursor(file).read(bytes));
  const auto head = std::span(bytes).first(size);
  std::unique_ptr<ByteStream> stream;
  if (is_gzip(head)) {
    stream = std::make_unique<UnpackedStream<Gzip>>(file);
  } else if (is_zstd(head)) {
    stream = std::make_unique<UnpackedStream<Zstd>>(file);
  } else {
    if (begin > file.size()) return fail(ErrorCode::kOutOfRange, "{}: it ends before byte {}", file.name(), begin);
    return std::make_unique<PlainStream>(file, begin);
  }
  RETURN_IF_ERROR(pass_over(*stream, begin));
  return stream;
}

}  // namespace millrace::formats
