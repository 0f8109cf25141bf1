// SPDX-License-Identifier: Apache-2.0
#pragma once

// MD5, for one use: it is what S3 answers as the ETag of a part. It finds damage; it is no defence. Thread-safe.

#include <cstddef>
#include <span>
#include <string>

namespace millrace {

// 32 lower-case hexadecimal digits. Empty where the system forbids MD5 (FIPS): then no part can be proven by it.
std::string md5_hex(std::span<const std::byte> bytes);

}  // namespace millrace
