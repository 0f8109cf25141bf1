// SPDX-License-Identifier: Apache-2.0
#pragma once

// Content hashes: XXH3 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md), which runs at memory speed.
// They detect damage, not an attacker. Functions are thread-safe; a stream belongs to one thread.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Hash128&) const = default;
};

uint64_t xxh3_64(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t xxh3_64(std::string_view text, uint64_t seed = 0);
Hash128 xxh3_128(std::span<const std::byte> bytes);
Hash128 xxh3_128(std::string_view text);

// Returns 32 lower-case hexadecimal digits, the canonical (big-endian) form of xxhsum -H2.
std::string to_hex(Hash128 hash);
// Parses a hash; nullopt when `hex` is not exactly 32 hexadecimal digits.
std::optional<Hash128> hash128_from_hex(std::string_view hex);

// xxh3_128() of bytes that arrive in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void update(std::span<const std::byte> bytes);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
