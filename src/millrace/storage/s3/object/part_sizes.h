// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes where the parts of an upload begin. S3 allows 10,000 parts per object. An object of known size has equal
// parts. For an object of unknown size, the size of the parts doubles after each thousand parts.

#include <cstdint>

namespace millrace::s3 {

inline constexpr int64_t kMostParts = 10'000;

class PartSizes {
 public:
  // `grows`: the final size is unknown.
  PartSizes(int64_t first_bytes, bool grows) : first_bytes_(first_bytes), grows_(grows) {}

  int64_t first_bytes() const { return first_bytes_; }
  // Returns the offset at which a part begins. Part numbers begin with 1. REQUIRES: number >= 1, offset >= 0.
  int64_t start_of(int64_t number) const;
  // Returns the part that contains this byte.
  int64_t number_at(int64_t offset) const;
  int64_t size_at(int64_t offset) const;
  bool is_start(int64_t offset) const { return start_of(number_at(offset)) == offset; }

 private:
  int64_t first_bytes_;
  bool grows_;
};

}  // namespace millrace::s3
