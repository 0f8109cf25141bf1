// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/ranged_read.h"

#include <algorithm>

namespace millrace::s3 {
namespace {

// A long range is read in pieces, because one connection is slower than the link (50 to 100 MB/s at S3). While few
// requests are under way, pieces are smaller, because memory for answers is the limit: 20 pieces of 2 MiB fill the 40
// MiB of a copy. With 30 ms and 80 MiB/s a connection, 1 GiB took 1.6 s so and 3.6 s with 8 MiB.
constexpr int64_t kPieceBytes = 8 << 20;
constexpr int64_t kLeastPieceBytes = 2 << 20;
constexpr int kEnoughRequests = 20;
constexpr int kTriesOfContent = 3;  // when the content does not match its checksum

// The right number of bytes may come from another range, or from an object that was replaced.
Status check_range(const http::Response& response, const PinnedObject& object, int64_t offset, size_t size,
                   std::string_view what) {
  const auto [first, last, total] = response.content_range();
  if (!first || !last || !total) {
    return fail(ErrorCode::kUnsupported, "{}: the server does not say which bytes it sent (Content-Range is \"{}\")",
                what, response.header("content-range"));
  }
  if (*first != offset || *last != offset + static_cast<int64_t>(size) - 1) {
    return fail(ErrorCode::kCorruption, "{}: the bytes [{}, {}) came", what, *first, *last + 1);
  }
  if (*total != object.size) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: it has {} bytes now, not {}", what, *total,
                object.size);
  }
  return {};
}

Status check_answer(const Result<Answer>& answer, const PinnedObject& object, int64_t offset, size_t size) {
  const auto what = [&] {
    return fmt::format("read {} [{}, {})", object.url, offset, offset + static_cast<int64_t>(size));
  };
  if (!answer) return with_context(Status(tl::unexpected(answer.error())), what());
  const http::Response& response = answer->response;
  if (response.status == 412 || response.status == 404) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: version {} is no longer there", what(),
                object.version);
  }
  if (response.status == 416) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: it is shorter now", what());
  }
  if (!is_success(response)) return tl::unexpected(error_of(response, what()));
  // A server that ignores Range sends the whole object: `out` would hold the wrong bytes.
  const bool whole = offset == 0 && static_cast<int64_t>(size) == object.size;
  if (response.status != 206 && !whole) {
    return fail(ErrorCode::kUnsupported, "{}: the server does not serve ranges", what());
  }
  if (response.status == 206) RETURN_IF_ERROR(check_range(response, object, offset, size, what()));
  if (response.received_bytes != static_cast<int64_t>(size)) {
    return fail(ErrorCode::kUnavailable, "{}: {} bytes arrived", what(), response.received_bytes);
  }
  if (object.version.empty()) return {};
  const std::string_view etag = bare_etag(response.header("etag"));
  if (etag.empty()) {
    return fail(ErrorCode::kUnsupported, "{}: the server does not say of which version (ETag) its bytes are", what());
  }
  if (etag != object.version) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: version {} came, not {}", what(), etag,
                object.version);
  }
  return {};
}

// Only whole objects have a checksum.
bool is_checkable(const PinnedObject& object, int64_t size) {
  return object.check && !object.version.empty() && size == object.size;
}

// Compares the bytes with the checksum that the server keeps of the whole object.
Status check_content(const Answer& answer, const PinnedObject& object, std::span<const std::byte> content) {
  const auto told = checksum_of(answer.response);
  if (!told) return {};
  const auto came = ContentChecksum::of(told->kind, content);
  if (came == *told) return {};
  return fail(ErrorCode::kCorruption, "read {}: the bytes have {} {}, but the server keeps {}", object.url,
              checksum_name(told->kind), came.digest, told->digest);
}

// One request of a read.
struct Piece {
  Service& service;
  std::shared_ptr<const PinnedObject> object;
  std::shared_ptr<PiecesUnderWay> pieces;
  int64_t offset = 0;
  std::span<std::byte> out;
  std::stop_token stop;
  Clock::time_point deadline;
};

// Asks for a piece. What comes damaged is asked for again, kTriesOfContent times in all.
void start_piece(const Piece& piece, int tries = 1) {
  const PinnedObject& object = *piece.object;
  const bool is_checked = is_checkable(object, std::ssize(piece.out));
  Request request{.bucket = object.bucket, .key = object.key};
  request.out = piece.out;
  if (is_checked) {
    request.headers.emplace_back(kChecksumMode, "ENABLED");
  } else {
    const int64_t last = piece.offset + std::ssize(piece.out) - 1;
    request.headers.emplace_back("range", fmt::format("bytes={}-{}", piece.offset, last));
  }
  if (!object.version.empty()) request.headers.emplace_back("if-match", fmt::format("\"{}\"", object.version));
  request.stop = piece.stop;
  request.deadline = piece.deadline;
  piece.service.start(std::move(request), [piece, tries, is_checked](const Result<Answer>& answer) {
    Status status = check_answer(answer, *piece.object, piece.offset, piece.out.size());
    if (status && is_checked) status = check_content(*answer, *piece.object, piece.out);
    const bool is_damage = !status && status.error().code() == ErrorCode::kCorruption && is_checked;
    if (is_damage && tries < kTriesOfContent && !piece.stop.stop_requested()) return start_piece(piece, tries + 1);
    piece.pieces->end(std::move(status));
  });
}

int64_t pieces_of(int64_t size, int64_t piece_bytes) {
  return (size + piece_bytes - 1) / piece_bytes;
}

int64_t piece_bytes_of(const Service& service, const PinnedObject& object, int64_t size) {
  if (size <= kLeastPieceBytes || (size <= kPieceBytes && is_checkable(object, size))) return kPieceBytes;
  const int missing = service.missing_requests(kEnoughRequests);
  int64_t bytes = kPieceBytes;
  while (bytes > kLeastPieceBytes && pieces_of(size, bytes) < missing) bytes /= 2;
  return bytes;
}

}  // namespace

void start_ranges(Service& service, const std::shared_ptr<const PinnedObject>& object, int64_t offset,
                  std::span<std::byte> out, const std::stop_token& stop, Clock::time_point deadline, OnDone done) {
  const int64_t size = std::ssize(out), piece_bytes = piece_bytes_of(service, *object, size);
  const auto pieces = std::make_shared<PiecesUnderWay>(std::move(done));
  pieces->begin(static_cast<size_t>(pieces_of(size, piece_bytes)));
  for (int64_t begin = 0; begin < size; begin += piece_bytes) {
    const auto piece =
        out.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(piece_bytes, size - begin)));
    start_piece({service, object, pieces, offset + begin, piece, stop, deadline});
  }
}

}  // namespace millrace::s3
