// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/submit.h"

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

}  // namespace

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
  if (begun_) return {};
  if (operation_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "{}: stopped before it began", target());
  if (Clock::now() >= operation_.deadline) {
    return fail(ErrorCode::kTimeout, "{}: the deadline passed before it began", target());
  }
  begun_ = true;
  return {};
}

void PendingOperation::run() {
  Status status = check_may_begin();
  end(status ? perform_operation(operation_) : std::move(status));
}

void run_on(Executor& executor, std::unique_ptr<PendingOperation> pending) {
  const int priority = pending->operation().priority;
  executor.submit([shared = std::shared_ptr(std::move(pending))] { shared->run(); }, priority);
}

void submit_operations(Executor& executor, std::span<const Operation> operations, CompletionQueue& queue) {
  for (const Operation& operation : operations) {
    run_on(executor, std::make_unique<PendingOperation>(operation, queue));
  }
}

}  // namespace millrace
