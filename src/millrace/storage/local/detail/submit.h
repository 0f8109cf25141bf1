// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: implements Storage::submit. Transfers that wait only for the disk go to the rings. All other
// operations go to the executor, including transfers that a ring did not complete, so that one place handles short
// transfers and errors.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "millrace/storage/local/detail/files.h"
#include "millrace/storage/submit.h"

namespace millrace::local {

// Operations that are submitted to the rings together. For one thread.
class RingBatch {
 public:
  // REQUIRES: `context` outlives it.
  explicit RingBatch(const Context& context) : state_(context.state->get()), may_serve_(context.rings) {}
  // Takes the operation if `transfer` is set. `ended` is called when all bytes were moved, and returns the result of
  // the operation.
  void add(std::unique_ptr<PendingOperation>& operation, const std::optional<Transfer>& transfer,
           std::function<Status()> ended);
  void submit();

 private:
  ProcessState& state_;
  bool may_serve_;
  std::vector<std::unique_ptr<RingTask>> tasks_;
};

void submit_local(const Context& context, std::span<const Operation> operations, CompletionQueue& queue);

}  // namespace millrace::local
