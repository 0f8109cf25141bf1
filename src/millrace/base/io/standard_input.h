// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads standard input until it ends or a stop is requested.

#include <cstddef>
#include <memory>
#include <span>
#include <stop_token>
#include <utility>

#include "millrace/base/status.h"
#include "millrace/base/thread/stop_descriptor.h"

namespace millrace {

// For one thread.
class StandardInput {
 public:
  // Error: resource_exhausted (no descriptor is left).
  [[nodiscard]] static Result<StandardInput> open(const std::stop_token& stop);

  // Waits for bytes, reads at most out.size() of them and returns how many it read; 0 at the end of the input.
  // Errors: cancelled, those of the system.
  [[nodiscard]] Result<size_t> read(std::span<std::byte> out) const;

 private:
  explicit StandardInput(std::unique_ptr<StopDescriptor> stop) : stop_(std::move(stop)) {}

  std::unique_ptr<StopDescriptor> stop_;
};

}  // namespace millrace
