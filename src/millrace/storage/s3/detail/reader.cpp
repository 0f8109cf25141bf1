// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/s3/detail/bucket.h"

namespace millrace::s3 {
namespace {

// A long range is asked for in pieces, since one connection is slower than the link.
constexpr int64_t kPieceBytes = 8 << 20;
constexpr int kTriesOfContent = 3;  // where what comes is not what its checksum says

// The pieces of one read; the last to end answers.
struct Pieces {
  Pieces(size_t count, OnDone when_done) : left(count), done(std::move(when_done)) {}
  void end(Status status) {
    bool last = false;
    {
      MutexLock lock(mutex);
      if (!status && first) first = std::move(status);
      last = --left == 0;
    }
    if (last) done(std::move(first));
  }
  Mutex mutex;
  size_t left;
  Status first;
  const OnDone done;
};

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
  // A server that ignores Range sends everything: `out` would hold the wrong bytes.
  const bool whole = offset == 0 && static_cast<int64_t>(size) == object.size;
  if (response.status != 206 && !whole) {
    return fail(ErrorCode::kUnsupported, "{}: the server does not serve ranges", what());
  }
  if (response.received_bytes != static_cast<int64_t>(size)) {
    return fail(ErrorCode::kUnavailable, "{}: {} bytes came", what(), response.received_bytes);
  }
  const std::string_view etag = bare_etag(response.header("etag"));
  if (!object.version.empty() && !etag.empty() && etag != object.version) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: version {} came, not {}", what(), etag,
                object.version);
  }
  return {};
}

// What the server keeps of the whole object, against what came.
Status check_content(const Answer& answer, const PinnedObject& object, std::span<const std::byte> content) {
  const auto told = checksum_of(answer.response);
  if (!told) return {};
  const auto came = ContentChecksum::begin(told->kind).followed_by(content);
  if (came == *told) return {};
  return fail(ErrorCode::kCorruption, "read {}: what came has the {} {:x}, and the server keeps {:x}", object.url,
              checksum_name(told->kind), came.value, told->value);
}

// One request of a read, asked again where what came is not what the server says it sent.
struct Piece : std::enable_shared_from_this<Piece> {
  Service& service;
  const std::shared_ptr<const PinnedObject> object;
  const std::shared_ptr<Pieces> pieces;
  const int64_t offset;
  const std::span<std::byte> out;
  const std::stop_token stop;
  const Clock::time_point deadline;
  int tries = 0;

  Piece(Service& service_, std::shared_ptr<const PinnedObject> object_, std::shared_ptr<Pieces> pieces_,
        int64_t offset_, std::span<std::byte> out_, std::stop_token stop_, Clock::time_point deadline_)
      : service(service_),
        object(std::move(object_)),
        pieces(std::move(pieces_)),
        offset(offset_),
        out(out_),
        stop(std::move(stop_)),
        deadline(deadline_) {}

  // A checksum comes with whole objects only.
  bool is_checked() const {
    return object->check && !object->version.empty() && offset == 0 && std::ssize(out) == object->size;
  }

  void start() {
    ++tries;
    Request request{.bucket = object->bucket, .key = object->key};
    request.out = out;
    if (is_checked()) {
      request.headers.emplace_back(kChecksumMode, "ENABLED");
    } else {
      request.headers.emplace_back("range", fmt::format("bytes={}-{}", offset, offset + std::ssize(out) - 1));
    }
    if (!object->version.empty()) request.headers.emplace_back("if-match", fmt::format("\"{}\"", object->version));
    request.stop = stop;
    request.deadline = deadline;
    service.start(std::move(request),
                  [self = shared_from_this()](const Result<Answer>& answer) { self->take(answer); });
  }

  void take(const Result<Answer>& answer) {
    Status status = check_answer(answer, *object, offset, out.size());
    if (status && is_checked()) {
      status = check_content(*answer, *object, out);
      if (!status && tries < kTriesOfContent && !stop.stop_requested()) return start();
    }
    pieces->end(std::move(status));
  }
};

void start_ranges(Service& service, const std::shared_ptr<const PinnedObject>& object, int64_t offset,
                  std::span<std::byte> out, const std::stop_token& stop, Clock::time_point deadline, OnDone done) {
  const auto count = static_cast<size_t>((std::ssize(out) + kPieceBytes - 1) / kPieceBytes);
  const auto pieces = std::make_shared<Pieces>(count, std::move(done));
  for (size_t i = 0; i < count; ++i) {
    const auto begin = i * static_cast<size_t>(kPieceBytes);
    const auto piece = out.subspan(begin, std::min(static_cast<size_t>(kPieceBytes), out.size() - begin));
    std::make_shared<Piece>(service, object, pieces, offset + static_cast<int64_t>(begin), piece, stop, deadline)
        ->start();
  }
}

}  // namespace

S3Reader::S3Reader(std::shared_ptr<const Bucket> bucket, std::string key, int64_t size, std::string version)
    : service_(bucket->service),
      object_(std::make_shared<PinnedObject>(
          PinnedObject{bucket->bucket, key, bucket->url(key), size, std::move(version), bucket->check_reads})),
      ahead_([service = service_, object = object_] {
        return std::make_unique<ReadAhead>(
            object->size, [service, object](int64_t offset, std::span<std::byte> out, const std::stop_token& stop,
                                            ReadAhead::Done done) {
              start_ranges(*service, object, offset, out, stop, Clock::time_point::max(), std::move(done));
            });
      }) {}

void S3Reader::start_read(int64_t offset, std::span<std::byte> out, std::stop_token stop, Clock::time_point deadline,
                          OnDone done) const {
  if (auto valid = check_read_range(*this, offset, std::ssize(out)); !valid || out.empty()) return done(valid);
  start_ranges(*service_, object_, offset, out, stop, deadline, std::move(done));
}

Status S3Reader::read_at(int64_t offset, std::span<std::byte> out) const {
  RETURN_IF_ERROR(check_read_range(*this, offset, std::ssize(out)));
  return out.empty() ? Status() : ahead_.get().read(offset, out);
}

}  // namespace millrace::s3
