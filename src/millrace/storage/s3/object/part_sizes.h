// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the parts of an upload begin. S3 takes 10,000 of one object: of an object whose size is known all are equally
// long, and of one that just grows the parts grow with it, twice as long after each thousand.

#include <cstdint>

namespace millrace::s3 {

inline constexpr int64_t kMostParts = 10'000;

class PartSizes {
 public:
  // `grows`: nobody knows how long the object will be.
  PartSizes(int64_t first_bytes, bool grows) : first_bytes_(first_bytes), grows_(grows) {}

  int64_t first_bytes() const { return first_bytes_; }
  // Numbers begin with 1. REQUIRES: number >= 1, offset >= 0.
  int64_t start_of(int64_t number) const;
  // The part that holds this byte.
  int64_t number_at(int64_t offset) const;
  int64_t size_at(int64_t offset) const;
  bool is_start(int64_t offset) const { return start_of(number_at(offset)) == offset; }

 private:
  int64_t first_bytes_;
  bool grows_;
};

}  // namespace millrace::s3
