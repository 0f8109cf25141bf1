// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/submit.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace millrace {
namespace {

Status perform(const Operation::Read& read) {
  return read.reader->read_at(read.offset, read.out);
}

Status perform(const Operation::Write& write) {
  return write.writer->write_at(write.offset, write.data);
}

// For storages that cannot send files: reads into memory and writes.
Status perform(const Operation::Send& send) {
  std::vector<std::byte> content(static_cast<size_t>(send.file->size()));
  RETURN_IF_ERROR(send.file->read_at(0, content));
  RETURN_IF_ERROR(send.writer->write_at(send.offset, content));
  if (send.progress != nullptr) send.progress->add(send.file->size(), 0);
  return {};
}

// Null for a read.
Writer* writer_of(const Operation& operation) {
  if (const auto* write = std::get_if<Operation::Write>(&operation.what)) return write->writer;
  const auto* send = std::get_if<Operation::Send>(&operation.what);
  return send != nullptr ? send->writer : nullptr;
}

}  // namespace

Status check_may_begin(std::string_view target, const std::stop_token& stop, Clock::time_point deadline) {
  if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "{}: stopped before it began", target);
  if (Clock::now() < deadline) return {};
  return fail(ErrorCode::kTimeout, "{}: the deadline passed before it began", target);
}

Status perform_operation(const Operation& operation) {
  return std::visit([](const auto& what) { return perform(what); }, operation.what);
}

PendingOperation::~PendingOperation() {
  if (!ended_) end(fail(ErrorCode::kCancelled, "{}: the storage was closed", target()));
}

std::string_view PendingOperation::target() const {
  const auto* read = std::get_if<Operation::Read>(&operation_.what);
  return read != nullptr ? read->reader->name() : "write";
}

void PendingOperation::end(Status status) {
  ended_ = true;
  queue_.push(Completion{operation_.tag, std::move(status)});
}

Status PendingOperation::check_may_begin() {
  if (!begun_) RETURN_IF_ERROR(millrace::check_may_begin(target(), operation_.stop, operation_.deadline));
  begun_ = true;
  return {};
}

void PendingOperation::run() {
  Status status = check_may_begin();
  end(status ? perform_operation(operation_) : std::move(status));
}

PendingOperations pending_operations(std::span<const Operation> operations, CompletionQueue& queue) {
  PendingOperations pending;
  pending.reserve(operations.size());
  for (const Operation& operation : operations) pending.push_back(std::make_unique<PendingOperation>(operation, queue));
  return pending;
}

bool start_read(const std::shared_ptr<PendingOperation>& pending) {
  const Operation& operation = pending->operation();
  const auto* read = std::get_if<Operation::Read>(&operation.what);
  return read != nullptr && read->reader->start_read(read->offset, read->out, operation.stop, operation.deadline,
                                                     [pending](Status status) { pending->end(std::move(status)); });
}

void run_on(Executor& executor, std::shared_ptr<PendingOperation> pending) {
  const int priority = pending->operation().priority;
  executor.submit([shared = std::move(pending)] { shared->run(); }, priority);
}

void start_operations(Executor& executor, PendingOperations pending) {
  // The writes of one writer that follow each other go to it together.
  for (auto at = pending.begin(); at != pending.end();) {
    Writer* const writer = writer_of((*at)->operation());
    const auto end =
        std::find_if(at, pending.end(), [writer](const auto& one) { return writer_of(one->operation()) != writer; });
    PendingOperations group(std::make_move_iterator(at), std::make_move_iterator(end));
    at = end;
    if (writer != nullptr) writer->start_writes(group);
    for (auto& left : group) {
      std::shared_ptr<PendingOperation> one = std::move(left);
      if (!start_read(one)) run_on(executor, std::move(one));
    }
  }
}

void submit_operations(Executor& executor, std::span<const Operation> operations, CompletionQueue& queue) {
  start_operations(executor, pending_operations(operations, queue));
}

}  // namespace millrace
