// SPDX-License-Identifier: Apache-2.0
#pragma once

// How backends that serve operations with threads implement Storage::submit: the blocking calls of the reader or
// writer, run on an Executor. Thread-safe.

#include <span>

#include "millrace/base/executor.h"
#include "millrace/storage/storage.h"

namespace millrace {

// Each operation ends with one completion, also when the executor drops it unstarted (cancelled).
void submit_operations(Executor& executor, std::span<const Operation> operations, CompletionQueue& queue);

}  // namespace millrace
