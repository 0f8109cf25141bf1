// SPDX-License-Identifier: Apache-2.0
#pragma once

// Implements Storage::submit. Readers and writers that need no thread start their operations themselves; an Executor
// runs the blocking calls of the others. A wrapper uses the same functions; operations that it does not wrap run as
// without it. Thread-safe.

#include <memory>
#include <span>
#include <vector>

#include "millrace/base/thread/executor.h"
#include "millrace/storage/storage.h"

namespace millrace {

// Whether an operation on `target` may start. Errors: cancelled, timeout (the deadline).
[[nodiscard]] Status check_may_begin(std::string_view target, const std::stop_token& stop, Clock::time_point deadline);

// An operation that pushes exactly one completion, even when it is destroyed before it ran (cancelled). For one
// thread.
class PendingOperation {
 public:
  PendingOperation(const Operation& operation, CompletionQueue& queue) : operation_(operation), queue_(queue) {}
  ~PendingOperation();
  PendingOperation(const PendingOperation&) = delete;
  PendingOperation& operator=(const PendingOperation&) = delete;

  const Operation& operation() const { return operation_; }
  // Whether the operation may start; see check_may_begin() above. A started operation runs to its end.
  [[nodiscard]] Status check_may_begin();
  void run();
  // Pushes the completion. The waiting thread may then destroy the reader or writer at once. REQUIRES: not ended yet.
  void end(Status status);

 private:
  std::string_view target() const;

  const Operation operation_;
  CompletionQueue& queue_;
  bool begun_ = false;
  bool ended_ = false;
};

using PendingOperations = std::vector<std::unique_ptr<PendingOperation>>;
PendingOperations pending_operations(std::span<const Operation> operations, CompletionQueue& queue);

// Returns true when the reader needs no thread and has started the operation.
[[nodiscard]] bool start_read(const std::shared_ptr<PendingOperation>& pending);
void run_on(Executor& executor, std::shared_ptr<PendingOperation> pending);
void start_operations(Executor& executor, PendingOperations pending);
void submit_operations(Executor& executor, std::span<const Operation> operations, CompletionQueue& queue);

}  // namespace millrace
