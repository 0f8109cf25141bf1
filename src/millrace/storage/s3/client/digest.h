// SPDX-License-Identifier: Apache-2.0
#pragma once

// Digests as S3's headers carry them. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace::s3 {

std::string base64_md5(std::span<const std::byte> bytes);
// The base64 text of a digest of Md5::finish().
std::string base64(std::string_view digest);
// 32 hexadecimal digits.
bool is_md5(std::string_view etag);
// The ETag of a multipart object: MD5 of the parts' digests, and their number; "" when a part's ETag is no MD5.
std::string multipart_etag(std::span<const std::string> part_etags);
// A CRC-32C, big-endian, in base64.
std::string base64_crc32c(uint32_t crc);
// Parses a big-endian number of `bytes` bytes (at most 8) in base64; nullopt for any other text.
std::optional<uint64_t> parse_base64_number(std::string_view text, size_t bytes);

}  // namespace millrace::s3
