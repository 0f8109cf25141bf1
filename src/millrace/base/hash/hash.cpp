// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/hash/hash.h"

#include <fmt/format.h>
#ifdef MILLRACE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // redirects the names used here
#else
#include <xxhash.h>
#endif

#include <charconv>

namespace millrace {

uint64_t xxh3_64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}
uint64_t xxh3_64(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

Hash128 xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}
Hash128 xxh3_128(std::string_view text) {
  return xxh3_128(std::as_bytes(std::span<const char>(text)));
}

std::string to_hex(Hash128 hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

std::optional<Hash128> hash128_from_hex(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  Hash128 hash;
  for (auto [part, text] : {std::pair{&hash.high, hex.substr(0, 16)}, {&hash.low, hex.substr(16)}}) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *part, 16);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  }
  return hash;
}

struct Xxh3Stream::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { XXH3_128bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
Hash128 Xxh3Stream::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return {hash.high64, hash.low64};
}

}  // namespace millrace
