// SPDX-License-Identifier: Apache-2.0
#pragma once

// MD5, for one use: it is what S3 answers as the ETag of a part. It finds damage; it is no defence. Thread-safe.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace millrace {

// Of content that comes piece by piece. Belongs to one thread.
class Md5 {
 public:
  Md5();
  ~Md5();
  void update(std::span<const std::byte> bytes);
  // The 16 bytes, and a new beginning. Empty where the system forbids MD5 (FIPS): then nothing can be proven by it.
  std::string finish();
  // As md5_hex().
  std::string finish_hex();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// 32 lower-case hexadecimal digits; empty as above.
std::string md5_hex(std::span<const std::byte> bytes);

}  // namespace millrace
