// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/file/load_threads.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"

namespace millrace::tokenizer {

size_t load_threads(size_t items) {
  constexpr size_t kWorthwhile = 50'000;  // a few ms of work, of which a thread takes a twentieth to start
  constexpr int kMost = 4;
  return items < kWorthwhile ? 1 : std::bit_floor(static_cast<size_t>(std::min(available_cpus(), kMost)));
}

void in_parts(size_t parts, const std::function<void(size_t)>& body) {
  Executor executor(std::max(1, static_cast<int>(parts) - 1), "mr-load");
  parallel_for(executor, static_cast<int64_t>(parts), [&](int64_t part) { body(static_cast<size_t>(part)); });
}

void both(size_t items, const std::function<void()>& first, const std::function<void()>& second) {
  if (load_threads(items) > 1) return in_parts(2, [&](size_t part) { part == 0 ? first() : second(); });
  first();
  second();
}

}  // namespace millrace::tokenizer
