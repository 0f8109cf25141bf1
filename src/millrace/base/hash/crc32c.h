// SPDX-License-Identifier: Apache-2.0
#pragma once

// CRC-32C (Castagnoli, RFC 3720 B.4), the checksum that object stores take with an upload. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

// The checksum of the bytes that `crc` is the checksum of, followed by `bytes`. Start with 0.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace millrace
