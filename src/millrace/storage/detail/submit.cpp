// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/detail/submit.h"

#include <utility>
#include <vector>

namespace millrace {
namespace {

// For storages that send no files themselves.
Status write_file(Writer& writer, int64_t offset, const FileRange& file) {
  std::vector<std::byte> content(static_cast<size_t>(file.size()));
  RETURN_IF_ERROR(file.read_at(0, content));
  return writer.write_at(offset, content);
}

}  // namespace

PendingOperation::~PendingOperation() {
  if (!ended_) end(fail(ErrorCode::kCancelled, "{}: the storage was closed", target()));
}

std::string_view PendingOperation::target() const {
  return operation_.reader != nullptr ? operation_.reader->name() : "write";
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
  if ((operation_.reader == nullptr) == (operation_.writer == nullptr)) {
    return fail(ErrorCode::kInvalidArgument, "operation {}: needs either a reader or a writer", operation_.tag);
  }
  begun_ = true;
  return {};
}

Status PendingOperation::perform() {
  RETURN_IF_ERROR(check_may_begin());
  if (operation_.reader != nullptr) return operation_.reader->read_at(operation_.offset, operation_.out);
  if (operation_.file != nullptr) {
    RETURN_IF_ERROR(write_file(*operation_.writer, operation_.offset, *operation_.file));
    if (operation_.file_progress != nullptr) operation_.file_progress->add(operation_.file->size(), 0);
    return {};
  }
  return operation_.writer->write_at(operation_.offset, operation_.data);
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
