// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a load does side by side: array jobs start thousands of short tasks, and half of a load waits for memory.

#include <cstddef>
#include <functional>

namespace millrace::tokenizer {

// How many threads so many tokens or merges are worth: a power of two; 1 for few, or with one processor.
size_t load_threads(size_t items);

// No fewer tokens or merges than a file of so many bytes is likely to hold: they take up 20 to 30 bytes of most files.
constexpr size_t likely_count(size_t file_bytes) {
  return file_bytes / 16;
}

// Calls body(0) to body(parts - 1) on so many threads, of which this is one; returns when all have ended.
void in_parts(size_t parts, const std::function<void(size_t)>& body);

// Calls both, side by side when so many items are worth a thread, else `first` before `second`.
void both(size_t items, const std::function<void()>& first, const std::function<void()>& second);

}  // namespace millrace::tokenizer
