// SPDX-License-Identifier: Apache-2.0
#pragma once

// CRC-32C (Castagnoli, RFC 3720 B.4), the checksum that object stores accept with an upload. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

// Returns the checksum of some bytes followed by `bytes`. `crc` is the checksum of the bytes before; 0: there are
// none.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace millrace
