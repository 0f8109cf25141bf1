// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checksums of whole objects that a storage keeps itself and tells: whoever reads all of one can hold it against them.

#include <cstdint>
#include <span>

#include "millrace/base/crc32c.h"
#include "millrace/base/crc64nvme.h"

namespace millrace {

struct ContentChecksum {
  enum class Kind { kCrc32c, kCrc64Nvme } kind = Kind::kCrc64Nvme;
  uint64_t value = 0;
  bool operator==(const ContentChecksum&) const = default;

  // The checksum of the same kind of what this is the checksum of, followed by `bytes`.
  ContentChecksum followed_by(std::span<const std::byte> bytes) const {
    const bool narrow = kind == Kind::kCrc32c;
    return {kind, narrow ? crc32c(bytes, static_cast<uint32_t>(value)) : crc64nvme(bytes, value)};
  }
  // Of nothing.
  static ContentChecksum begin(Kind kind) { return {kind, 0}; }
};

constexpr const char* checksum_name(ContentChecksum::Kind kind) {
  return kind == ContentChecksum::Kind::kCrc32c ? "CRC-32C" : "CRC-64/NVME";
}

}  // namespace millrace
