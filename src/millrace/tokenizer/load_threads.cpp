// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/load_threads.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "millrace/base/sync.h"

namespace millrace::tokenizer {

size_t load_threads(size_t items) {
  constexpr size_t kWorthwhile = 50'000;  // a few ms of work, of which a thread takes a twentieth to start
  constexpr int kMost = 4;
  return items < kWorthwhile ? 1 : std::bit_floor(static_cast<size_t>(std::min(available_cpus(), kMost)));
}

void in_parts(size_t parts, const std::function<void(size_t)>& body) {
  std::vector<Thread> threads;
  for (size_t part = 1; part < parts; ++part) threads.emplace_back("mr-load", [&body, part] { body(part); });
  body(0);
}

}  // namespace millrace::tokenizer
