// SPDX-License-Identifier: Apache-2.0
#pragma once

// Common code of the readers of services (S3, the web, the Hub). A read is one or more requests and ends by a
// callback. Thread-safe.

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/thread/per_process.h"
#include "millrace/storage/detail/read_ahead.h"
#include "millrace/storage/storage.h"

namespace millrace {

class ServiceReader : public RandomReader {
 public:
  using Done = ReadAhead::Done;

  int64_t size() const final { return size_; }
  // Serves small sequential reads from read-ahead.
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] bool start_read(int64_t offset, std::span<std::byte> out, const std::stop_token& stop,
                                Clock::time_point deadline, Done done) const final;

 protected:
  // `start` is never called for an empty read. `stop` applies to reads without their own token.
  ServiceReader(int64_t size, ReadAhead::Start start, std::stop_token stop);

 private:
  const int64_t size_;
  const ReadAhead::Start start_;
  const std::stop_token stop_;
  const PerProcess<ReadAhead> ahead_;
};

// Implements Storage::submit of the read-only storage `name`. Operations start in the order of submission, regardless
// of their priority.
void submit_reads(std::span<const Operation> operations, CompletionQueue& queue, std::string_view name);

// The unfinished pieces of one read. The last piece to end calls `done` with the first error.
class PiecesUnderWay {
 public:
  explicit PiecesUnderWay(ServiceReader::Done done) : done_(std::move(done)) {}
  // Call once, before any end().
  void begin(size_t count) {
    MutexLock lock(mutex_);
    left_ = count;
  }
  // Ends a piece. Returns true when it was the last.
  bool end(Status status) {
    {
      MutexLock lock(mutex_);
      if (!status && first_) first_ = std::move(status);
      if (--left_ > 0) return false;
      status = std::move(first_);
    }
    done_(std::move(status));
    return true;
  }

 private:
  const ServiceReader::Done done_;
  Mutex mutex_;
  size_t left_ GUARDED_BY(mutex_) = 0;
  Status first_ GUARDED_BY(mutex_);
};

// One read from the web or the Hub in pieces, each with its own request. It lives until its last piece has ended.
class ReadInPieces : public std::enable_shared_from_this<ReadInPieces> {
 public:
  static constexpr int64_t kPieceBytes = 8 << 20;  // the same as S3's (ranged_read.cpp)

  virtual ~ReadInPieces() = default;
  void start(int64_t offset, std::span<std::byte> out);

 protected:
  struct Piece {
    int64_t offset = 0;
    std::span<std::byte> out;
    int tries = 0;
    int relocations = 0;  // requests repeated because the content had moved
    std::string range_header() const;
  };

  ReadInPieces(const std::stop_token& stop, Clock::time_point deadline, ServiceReader::Done done);
  // Requests a piece. The piece ends by end().
  virtual void begin_piece(Piece& piece) = 0;
  void end(Status status);

  const Clock::time_point deadline_;
  std::stop_source stop_;  // requested by the caller's token, and after the first error

 private:
  const std::stop_callback<std::function<void()>> stop_with_caller_;
  std::vector<Piece> pieces_;
  PiecesUnderWay under_way_;
};

}  // namespace millrace
