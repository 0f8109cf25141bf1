// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/ranged_read.h"

#include <algorithm>
#include <cstring>

#include "millrace/base/metrics.h"
#include "millrace/storage/s3/client/request_hedger.h"

namespace millrace::s3 {
namespace {

// A long range is read in pieces, because one connection is slower than the link (50 to 100 MB/s at S3). While few
// requests are under way, pieces are smaller, because memory for answers is the limit: 20 pieces of 2 MiB fill the 40
// MiB of a copy. With 30 ms and 80 MiB/s a connection, 1 GiB took 1.6 s so and 3.6 s with 8 MiB.
constexpr int64_t kPieceBytes = 8 << 20;
constexpr int64_t kLeastPieceBytes = 2 << 20;
constexpr int kEnoughRequests = 20;
constexpr int kTriesOfContent = 3;  // when the content does not match its checksum

// The pieces of one read. The last piece to end calls `done`.
struct Pieces {
  Pieces(int64_t count, OnDone when_done) : left(count), done(std::move(when_done)) {}
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
  int64_t left;
  Status first;
  const OnDone done;
};

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

// One request of a read, and a second one for the same bytes when the first lags. The first writes into the caller's
// memory, the second into its own. So the caller gets no answer before the first has ended.
class Piece : public std::enable_shared_from_this<Piece> {
 public:
  struct Asked {
    Service& service;
    std::shared_ptr<const PinnedObject> object;
    std::shared_ptr<Pieces> pieces;
    int64_t offset = 0;
    std::span<std::byte> out;
    std::stop_token stop;
    Clock::time_point deadline;
    int tries = 1;
  };
  explicit Piece(Asked asked) : asked_(std::move(asked)), late_(asked_.service.hedger()) {}

  void start() {
    std::optional<Clock::duration> patience;
    if (late_ != nullptr) patience = late_->patience(std::ssize(asked_.out));
    if (patience) caller_stop_.emplace(asked_.stop, [this] { stop_both(); });
    send(asked_.out, patience ? first_stop_.get_token() : asked_.stop, &Piece::first_ended);
    if (!patience) return;
    late_->watch(*patience, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->start_second();
    });
  }

 private:
  bool is_checked() const { return is_checkable(*asked_.object, std::ssize(asked_.out)); }

  void send(std::span<std::byte> out, std::stop_token stop, void (Piece::*ended)(const Result<Answer>&)) {
    const PinnedObject& object = *asked_.object;
    Request request{.bucket = object.bucket, .key = object.key};
    request.out = out;
    if (is_checked()) {
      request.headers.emplace_back(kChecksumMode, "ENABLED");
    } else {
      const int64_t last = asked_.offset + std::ssize(out) - 1;
      request.headers.emplace_back("range", fmt::format("bytes={}-{}", asked_.offset, last));
    }
    if (!object.version.empty()) request.headers.emplace_back("if-match", fmt::format("\"{}\"", object.version));
    request.stop = std::move(stop);
    request.deadline = asked_.deadline;
    asked_.service.start(std::move(request), [self = shared_from_this(), ended](const Result<Answer>& answer) {
      ((*self).*ended)(answer);
    });
  }

  Status judge(const Result<Answer>& answer, std::span<const std::byte> content) const {
    RETURN_IF_ERROR(check_answer(answer, *asked_.object, asked_.offset, content.size()));
    return is_checked() ? check_content(*answer, *asked_.object, content) : Status();
  }

  void start_second() {
    const int64_t bytes = std::ssize(asked_.out);
    {
      MutexLock lock(mutex_);
      if (first_ || asked_.stop.stop_requested() || !late_->take(bytes)) return;
      second_bytes_.resize(static_cast<size_t>(bytes));
      second_under_way_ = true;
    }
    process_metrics().add(Metric::kHedges, 1);
    send(second_bytes_, second_stop_.get_token(), &Piece::second_ended);
  }

  void first_ended(const Result<Answer>& answer) {
    Status status = judge(answer, asked_.out);
    if (late_ != nullptr && status) late_->ended(std::ssize(asked_.out), Clock::now() - begun_);
    bool take_second = false;
    {
      MutexLock lock(mutex_);
      take_second = !status && second_is_good_;
      first_ = status;
      if (!status && second_under_way_) return;  // the second may succeed
    }
    second_stop_.request_stop();
    if (take_second) std::memcpy(asked_.out.data(), second_bytes_.data(), second_bytes_.size());
    end(take_second ? Status() : std::move(status));
  }

  void second_ended(const Result<Answer>& answer) {
    const Status status = judge(answer, second_bytes_);
    std::optional<Status> first;
    {
      MutexLock lock(mutex_);
      second_under_way_ = false;
      second_is_good_ = status.has_value();
      first = first_;
    }
    late_->give_back(std::ssize(second_bytes_));
    if (!first) {
      if (status) first_stop_.request_stop();  // its end ends both
    } else if (!*first) {                      // a success has ended both already
      if (status) std::memcpy(asked_.out.data(), second_bytes_.data(), second_bytes_.size());
      end(status ? Status() : *first);
    }
  }

  void stop_both() {
    first_stop_.request_stop();
    second_stop_.request_stop();
  }

  void end(const Status& status) {
    const bool is_damage = !status && status.error().code() == ErrorCode::kCorruption && is_checked();
    if (is_damage && asked_.tries < kTriesOfContent && !asked_.stop.stop_requested()) {
      Asked again = asked_;
      ++again.tries;
      return std::make_shared<Piece>(std::move(again))->start();
    }
    asked_.pieces->end(status);
  }

  const Asked asked_;
  const std::shared_ptr<RequestHedger> late_;
  const Clock::time_point begun_ = Clock::now();
  std::stop_source first_stop_, second_stop_;
  std::optional<std::stop_callback<std::function<void()>>> caller_stop_;
  Mutex mutex_;
  std::optional<Status> first_ GUARDED_BY(mutex_);  // how it ended
  bool second_under_way_ GUARDED_BY(mutex_) = false;
  bool second_is_good_ GUARDED_BY(mutex_) = false;
  std::vector<std::byte> second_bytes_;
};

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
  const auto pieces = std::make_shared<Pieces>(pieces_of(size, piece_bytes), std::move(done));
  for (int64_t begin = 0; begin < size; begin += piece_bytes) {
    const auto piece =
        out.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(piece_bytes, size - begin)));
    std::make_shared<Piece>(Piece::Asked{service, object, pieces, offset + begin, piece, stop, deadline})->start();
  }
}

}  // namespace millrace::s3
