// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage::submit for backends that serve operations with threads: an Executor runs the blocking calls of the reader or
// writer. Thread-safe.

#include <memory>
#include <span>

#include "millrace/base/thread/executor.h"
#include "millrace/storage/storage.h"

namespace millrace {

// An operation that pushes exactly one completion, also when it is destroyed before it ran (cancelled). For one thread.
class PendingOperation {
 public:
  PendingOperation(const Operation& operation, CompletionQueue& queue) : operation_(operation), queue_(queue) {}
  ~PendingOperation();
  PendingOperation(const PendingOperation&) = delete;
  PendingOperation& operator=(const PendingOperation&) = delete;

  const Operation& operation() const { return operation_; }
  // Whether the operation may start. Once it has started, it runs to its end. Errors: cancelled, timeout (the
  // deadline).
  [[nodiscard]] Status check_may_begin();
  void run();
  // REQUIRES: not ended yet. The waiting thread may destroy the reader or writer at once.
  void end(Status status);

 private:
  std::string_view target() const;

  const Operation operation_;
  CompletionQueue& queue_;
  bool begun_ = false;
  bool ended_ = false;
};

void run_on(Executor& executor, std::unique_ptr<PendingOperation> pending);
void submit_operations(Executor& executor, std::span<const Operation> operations, CompletionQueue& queue);

}  // namespace millrace
