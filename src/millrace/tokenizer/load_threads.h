// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a load does side by side: array jobs start thousands of short tasks, and half of a load waits for memory.

#include <cstddef>
#include <functional>

namespace millrace::tokenizer {

// How many threads so many tokens or merges are worth: a power of two; 1 for few, or with one processor.
size_t load_threads(size_t items);

// Calls body(0) to body(parts - 1), the first on this thread and each other on one of its own; returns when all have
// ended.
void in_parts(size_t parts, const std::function<void(size_t)>& body);

}  // namespace millrace::tokenizer
