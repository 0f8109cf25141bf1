// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes MD5, which S3 returns as the ETag of a part. It detects damage, not forgery. Thread-safe.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace {

// The MD5 of content that arrives in pieces. Belongs to one thread.
class Md5 {
 public:
  Md5();
  ~Md5();
  void update(std::span<const std::byte> bytes);
  // Returns the 16 bytes and starts again. Empty if the system forbids MD5 (FIPS); MD5 then proves nothing.
  std::string finish();
  // Like finish(), in the form of md5_hex().
  std::string finish_hex();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// Returns the MD5 of each buffer, as Md5::finish() does. For 16 buffers of equal length it takes a seventh of the
// time, if the processor has AVX2.
std::vector<std::string> md5_of_each(std::span<const std::span<const std::byte>> buffers);

// Returns 32 lower-case hexadecimal digits; empty if the system forbids MD5.
std::string md5_hex(std::span<const std::byte> bytes);

}  // namespace millrace
