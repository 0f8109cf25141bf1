// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/detail/digest.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "millrace/base/crc32c.h"

namespace millrace::s3 {
namespace {

using Md5 = std::array<unsigned char, 16>;

Md5 md5(std::span<const std::byte> bytes) {
  Md5 digest{};
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_md5(), nullptr);
  return digest;
}

std::string hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string base64(std::span<const unsigned char> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  // SAFETY: unsigned char and char may alias; the text has room for the closing NUL.
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace

std::string hex_md5(std::span<const std::byte> bytes) {
  return hex(md5(bytes));
}

std::string base64_md5(std::span<const std::byte> bytes) {
  return base64(md5(bytes));
}

std::string multipart_etag(std::span<const std::string> part_etags) {
  std::string digests;
  for (const std::string& etag : part_etags) {
    if (etag.size() != 32 || etag.find_first_not_of("0123456789abcdef") != etag.npos) return {};
    for (size_t i = 0; i < etag.size(); i += 2) digests += static_cast<char>(std::stoi(etag.substr(i, 2), nullptr, 16));
  }
  return fmt::format("{}-{}", hex_md5(std::as_bytes(std::span<const char>(digests))), part_etags.size());
}

std::string base64_crc32c(std::span<const std::byte> bytes) {
  const uint32_t crc = crc32c(bytes);
  const std::array<unsigned char, 4> big_endian{static_cast<unsigned char>(crc >> 24),
                                                static_cast<unsigned char>(crc >> 16),
                                                static_cast<unsigned char>(crc >> 8), static_cast<unsigned char>(crc)};
  return base64(big_endian);
}

}  // namespace millrace::s3
