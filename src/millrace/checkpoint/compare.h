// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compares two steps tensor by tensor, in bounded memory. Functions block; thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint {

struct TensorDifference {
  enum class Kind {
    kEqual,    // bit by bit
    kChanged,  // same dtype and shape
    kOther,    // another dtype or shape
    kOnlyA,
    kOnlyB,
  };
  Kind kind = Kind::kEqual;
  std::string name;
  const StoredTensor* a = nullptr;  // null for kOnlyB; lives as long as the checkpoint
  const StoredTensor* b = nullptr;
  int64_t changed = 0;  // kChanged: elements whose bits differ
  // Euclidean norms of the values; kEqual and kChanged only, for dtypes whose numbers a double can hold.
  struct Norms {
    double a = 0, b = 0;
    double difference = 0;  // norm of b - a
  };
  std::optional<Norms> norms;
};

struct CompareOptions {
  int64_t buffer_bytes = int64_t{256} << 20;  // memory that the comparison takes
  int threads = 0;
};
// Calls `found` for each tensor of `a` or `b`, by name. Verifies every byte. Errors: those of Checkpoint::load.
[[nodiscard]] Status compare_checkpoints(const Checkpoint& a, const Checkpoint& b, const CompareOptions& options,
                                         const std::function<void(const TensorDifference&)>& found,
                                         std::stop_token stop = {}, Progress* progress = nullptr);

}  // namespace millrace::checkpoint
