// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/detail/service_reader.h"

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

void ServiceReader::start_read(int64_t offset, std::span<std::byte> out, const std::stop_token& stop,
                               Clock::time_point deadline, Done done) const {
  Status fine = check_read_range(*this, offset, std::ssize(out));
  if (!fine || out.empty()) return done(std::move(fine));
  start_(offset, out, stop.stop_possible() ? stop : stop_, deadline, std::move(done));
}

const ServiceReader* service_reader_of(const Operation& operation) {
  const auto* read = std::get_if<Operation::Read>(&operation.what);
  return read != nullptr ? dynamic_cast<const ServiceReader*>(read->reader) : nullptr;
}

void submit_reads(std::span<const Operation> operations, CompletionQueue& queue, std::string_view name) {
  for (const Operation& operation : operations) {
    const auto pending = std::make_shared<PendingOperation>(operation, queue);
    const ServiceReader* reader = service_reader_of(operation);
    if (reader == nullptr) {
      pending->end(fail(ErrorCode::kInvalidArgument, "operation {}: needs a reader of {}", operation.tag, name));
    } else if (Status may_begin = pending->check_may_begin(); !may_begin) {
      pending->end(std::move(may_begin));
    } else {
      const auto& read = std::get<Operation::Read>(operation.what);
      reader->start_read(read.offset, read.out, operation.stop, operation.deadline,
                         [pending](Status status) { pending->end(std::move(status)); });
    }
  }
}

}  // namespace millrace
