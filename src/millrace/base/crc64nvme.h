// SPDX-License-Identifier: Apache-2.0
#pragma once

// CRC-64/NVME (NVM Command Set Specification 1.0, 5.2.1.3.4), which S3 keeps of whole objects. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

// The checksum of what `crc` is the checksum of, followed by `bytes`; 0 is the checksum of nothing.
uint64_t crc64nvme(std::span<const std::byte> bytes, uint64_t crc = 0);

}  // namespace millrace
