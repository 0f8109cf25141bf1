// SPDX-License-Identifier: Apache-2.0
#pragma once

// CRC-64/NVME (NVM Command Set Specification 1.0, 5.2.1.3.4), which S3 stores for whole objects. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

// Extends `crc`, the checksum of the bytes before `bytes`, by `bytes`. Start with 0.
uint64_t crc64nvme(std::span<const std::byte> bytes, uint64_t crc = 0);

}  // namespace millrace
