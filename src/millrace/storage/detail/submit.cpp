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

class PendingOperation {
 public:
  PendingOperation(const Operation& operation, CompletionQueue& queue) : operation_(operation), queue_(queue) {}
  PendingOperation(const PendingOperation&) = delete;
  PendingOperation& operator=(const PendingOperation&) = delete;
  ~PendingOperation() {
    if (!ended_) end(fail(ErrorCode::kCancelled, "{}: the storage was closed", target()));
  }

  void run() { end(perform()); }

 private:
  std::string_view target() const { return operation_.reader != nullptr ? operation_.reader->name() : "write"; }

  void end(Status status) {
    ended_ = true;
    queue_.push(Completion{operation_.tag, std::move(status)});
  }

  Status perform() const {
    if (operation_.stop.stop_requested()) return fail(ErrorCode::kCancelled, "{}: stopped before it began", target());
    if (Clock::now() >= operation_.deadline) {
      return fail(ErrorCode::kTimeout, "{}: the deadline passed before it began", target());
    }
    if ((operation_.reader == nullptr) == (operation_.writer == nullptr)) {
      return fail(ErrorCode::kInvalidArgument, "operation {}: needs either a reader or a writer", operation_.tag);
    }
    if (operation_.reader != nullptr) return operation_.reader->read_at(operation_.offset, operation_.out);
    if (operation_.file != nullptr) {
      RETURN_IF_ERROR(write_file(*operation_.writer, operation_.offset, *operation_.file));
      if (operation_.file_progress != nullptr) operation_.file_progress->add(operation_.file->size(), 0);
      return {};
    }
    return operation_.writer->write_at(operation_.offset, operation_.data);
  }

  const Operation operation_;
  CompletionQueue& queue_;
  bool ended_ = false;
};

}  // namespace

void submit_operations(Executor& executor, std::span<const Operation> operations, CompletionQueue& queue) {
  for (const Operation& operation : operations) {
    auto pending = std::make_shared<PendingOperation>(operation, queue);
    executor.submit([pending = std::move(pending)] { pending->run(); }, operation.priority);
  }
}

}  // namespace millrace
