// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts digests to and from the forms of S3's headers. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace::s3 {

std::string base64_md5(std::span<const std::byte> bytes);
// Returns the base64 text of a digest from Md5::finish().
std::string base64(std::string_view digest);
// Whether the ETag is an MD5: 32 hexadecimal digits.
bool is_md5(std::string_view etag);
// Returns the ETag of a multipart object: the MD5 of the parts' digests, and the number of parts; "" when a part's
// ETag is no MD5.
std::string multipart_etag(std::span<const std::string> part_etags);
// Returns a CRC-32C as a big-endian number in base64.
std::string base64_crc32c(uint32_t crc);
// Parses a big-endian number of `bytes` bytes (at most 8) in base64; nullopt for any other text.
std::optional<uint64_t> parse_base64_number(std::string_view text, size_t bytes);

}  // namespace millrace::s3
