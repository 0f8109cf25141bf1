// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a load does side by side: array jobs start thousands of short tasks, and half of a load waits for memory.

#include <cstddef>
#include <functional>

namespace millrace::tokenizer {

// The number of threads that pays for a number of tokens or merges: a power of two; 1 for few, or with one processor.
size_t load_threads(size_t items);

// An upper estimate of the tokens or merges in a file of `bytes`: each takes 20 to 30 bytes in most files.
constexpr size_t likely_count(size_t file_bytes) {
  return file_bytes / 16;
}

// Calls body(0) to body(parts - 1), each on its thread, one of them on this one; returns when all have ended.
void in_parts(size_t parts, const std::function<void(size_t)>& body);

// Calls both: at the same time when `items` are worth a thread, else `first` before `second`.
void both(size_t items, const std::function<void()>& first, const std::function<void()>& second);

}  // namespace millrace::tokenizer
