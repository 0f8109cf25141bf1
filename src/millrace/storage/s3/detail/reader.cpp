// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/s3/detail/bucket.h"

namespace millrace::s3 {
namespace {

// A long range is asked for in pieces, since one connection is slower than the link.
constexpr int64_t kPieceBytes = 8 << 20;

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

Status check_range_answer(const Result<Answer>& answer, const S3Reader& reader, int64_t offset, size_t size) {
  const auto what = [&] {
    return fmt::format("read {} [{}, {})", reader.name(), offset, offset + static_cast<int64_t>(size));
  };
  if (!answer) return with_context(Status(tl::unexpected(answer.error())), what());
  const http::Response& response = answer->response;
  if (response.status == 412 || response.status == 404) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: version {} is no longer there", what(),
                reader.version());
  }
  if (response.status == 416) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: it is shorter now", what());
  }
  if (!is_success(response)) return tl::unexpected(error_of(response, what()));
  // A server that ignores Range sends everything: `out` would hold the wrong bytes.
  const bool whole = offset == 0 && static_cast<int64_t>(size) == reader.size();
  if (response.status != 206 && !whole) {
    return fail(ErrorCode::kUnsupported, "{}: the server does not serve ranges", what());
  }
  if (response.received_bytes != static_cast<int64_t>(size)) {
    return fail(ErrorCode::kUnavailable, "{}: {} bytes came", what(), response.received_bytes);
  }
  const std::string_view etag = bare_etag(response.header("etag"));
  if (!reader.version().empty() && !etag.empty() && etag != reader.version()) {
    return fail(ErrorCode::kCorruption, "{}: changed while reading: version {} came, not {}", what(), etag,
                reader.version());
  }
  return {};
}

}  // namespace

S3Reader::S3Reader(std::shared_ptr<const Bucket> bucket, std::string key, int64_t size, std::string version)
    : bucket_(std::move(bucket)),
      key_(std::move(key)),
      url_(bucket_->url(key_)),
      size_(size),
      version_(std::move(version)) {}

void S3Reader::start_read(int64_t offset, std::span<std::byte> out, std::stop_token stop, Clock::time_point deadline,
                          OnDone done) const {
  if (auto valid = check_read_range(*this, offset, std::ssize(out)); !valid || out.empty()) return done(valid);
  const auto count = static_cast<size_t>((std::ssize(out) + kPieceBytes - 1) / kPieceBytes);
  const auto pieces = std::make_shared<Pieces>(count, std::move(done));
  for (size_t i = 0; i < count; ++i) {
    const auto begin = i * static_cast<size_t>(kPieceBytes);
    const auto piece = out.subspan(begin, std::min(static_cast<size_t>(kPieceBytes), out.size() - begin));
    const int64_t at = offset + static_cast<int64_t>(begin);
    Request request = bucket_->request(http::Method::kGet, key_);
    request.out = piece;
    request.headers.emplace_back("range", fmt::format("bytes={}-{}", at, at + std::ssize(piece) - 1));
    if (!version_.empty()) request.headers.emplace_back("if-match", fmt::format("\"{}\"", version_));
    request.stop = stop;
    request.deadline = deadline;
    bucket_->service->start(std::move(request), [this, pieces, at, size = piece.size()](Result<Answer> answer) {
      pieces->end(check_range_answer(answer, *this, at, size));
    });
  }
}

Status S3Reader::read_at(int64_t offset, std::span<std::byte> out) const {
  Mutex mutex;
  CondVar changed;
  std::optional<Status> result;
  start_read(offset, out, {}, Clock::time_point::max(), [&](Status status) {
    MutexLock lock(mutex);
    result.emplace(std::move(status));
    changed.notify_one();  // under the lock: whoever waits drops it
  });
  MutexLock lock(mutex);
  while (!result) changed.wait(mutex);
  return std::move(*result);
}

}  // namespace millrace::s3
