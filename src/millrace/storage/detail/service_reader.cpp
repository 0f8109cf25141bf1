// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/detail/service_reader.h"

#include <algorithm>
#include <utility>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/submit.h"

namespace millrace {

ServiceReader::ServiceReader(int64_t size, ReadAhead::Start start, std::stop_token stop)
    : size_(size),
      start_(std::move(start)),
      stop_(std::move(stop)),
      ahead_([size, begin = start_, own = stop_] { return std::make_unique<ReadAhead>(size, begin, own); }) {}

Status ServiceReader::read_at(int64_t offset, std::span<std::byte> out) const {
  RETURN_IF_ERROR(check_read_range(*this, offset, std::ssize(out)));
  return out.empty() ? Status() : ahead_.get().read(offset, out);
}

bool ServiceReader::start_read(int64_t offset, std::span<std::byte> out, const std::stop_token& stop,
                               Clock::time_point deadline, Done done) const {
  Status fine = check_may_begin(name(), stop, deadline);
  if (fine) fine = check_read_range(*this, offset, std::ssize(out));
  if (!fine || out.empty()) {
    done(std::move(fine));
  } else {
    start_(offset, out, stop.stop_possible() ? stop : stop_, deadline, std::move(done));
  }
  return true;
}

void submit_reads(std::span<const Operation> operations, CompletionQueue& queue, std::string_view name) {
  for (const Operation& operation : operations) {
    const auto pending = std::make_shared<PendingOperation>(operation, queue);
    if (start_read(pending)) continue;
    pending->end(fail(ErrorCode::kInvalidArgument, "operation {}: needs a reader of {}", operation.tag, name));
  }
}

ReadInPieces::ReadInPieces(const std::stop_token& stop, Clock::time_point deadline, ServiceReader::Done done)
    : deadline_(deadline), stop_with_caller_(stop, [this] { stop_.request_stop(); }), under_way_(std::move(done)) {}

void ReadInPieces::start(int64_t offset, std::span<std::byte> out) {
  for (size_t begin = 0; begin < out.size(); begin += kPieceBytes) {
    const std::span<std::byte> part = out.subspan(begin, std::min<size_t>(out.size() - begin, kPieceBytes));
    pieces_.push_back(Piece{offset + static_cast<int64_t>(begin), part});
  }
  under_way_.begin(pieces_.size());
  for (Piece& piece : pieces_) begin_piece(piece);
}

std::string ReadInPieces::Piece::range_header() const {
  return fmt::format("Range: bytes={}-{}", offset, offset + std::ssize(out) - 1);
}

void ReadInPieces::end(Status status) {
  const bool failed = !status;
  if (!under_way_.end(std::move(status)) && failed) stop_.request_stop();  // the other pieces are useless now
}

}  // namespace millrace
