// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs parts of a load in parallel: array jobs start thousands of short tasks, and half of a load waits for memory.

#include <cstddef>
#include <functional>

namespace millrace::tokenizer {

// Returns the number of threads that is worth it for this many tokens or merges: a power of two; 1 for few items or
// one processor.
size_t load_threads(size_t items);

// Returns an upper estimate of the tokens or merges in a file: each takes 20 to 30 bytes in most files.
constexpr size_t likely_count(size_t file_bytes) {
  return file_bytes / 16;
}

// Calls body(0) to body(parts - 1), each on a separate thread; one runs on this thread. Returns when all have ended.
void in_parts(size_t parts, const std::function<void(size_t)>& body);

// Calls both: in parallel if `items` are worth a thread, otherwise `first` before `second`.
void both(size_t items, const std::function<void()>& first, const std::function<void()>& second);

}  // namespace millrace::tokenizer
