// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/digest.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "millrace/base/text/ascii.h"
#include "millrace/storage/md5.h"

namespace millrace::s3 {
namespace {

std::string encoded(std::span<const unsigned char> bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  // SAFETY: unsigned char and char may alias; the text has room for the closing NUL.
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace

std::string base64_md5(std::span<const std::byte> bytes) {
  Md5 md5;
  md5.update(bytes);
  return base64(md5.finish());
}

std::string base64(std::string_view digest) {
  // SAFETY: char and unsigned char may alias.
  return encoded(std::span(reinterpret_cast<const unsigned char*>(digest.data()), digest.size()));
}

bool is_md5(std::string_view etag) {
  return etag.size() == 32 && etag.find_first_not_of("0123456789abcdef") == etag.npos;
}

std::string multipart_etag(std::span<const std::string> part_etags) {
  std::string digests;
  for (const std::string& etag : part_etags) {
    if (!is_md5(etag)) return {};
    for (size_t i = 0; i < etag.size(); i += 2) digests += static_cast<char>(std::stoi(etag.substr(i, 2), nullptr, 16));
  }
  return fmt::format("{}-{}", md5_hex(std::as_bytes(std::span<const char>(digests))), part_etags.size());
}

std::string base64_crc32c(uint32_t crc) {
  const std::array<unsigned char, 4> big_endian{static_cast<unsigned char>(crc >> 24),
                                                static_cast<unsigned char>(crc >> 16),
                                                static_cast<unsigned char>(crc >> 8), static_cast<unsigned char>(crc)};
  return encoded(big_endian);
}

std::optional<uint64_t> parse_base64_number(std::string_view text, size_t bytes) {
  std::array<unsigned char, 12> decoded{};
  if (text.size() != (bytes + 2) / 3 * 4 || text.size() / 4 * 3 > decoded.size()) return std::nullopt;
  // SAFETY: char and unsigned char may alias.
  const auto* const from = reinterpret_cast<const unsigned char*>(text.data());
  if (EVP_DecodeBlock(decoded.data(), from, static_cast<int>(text.size())) < 0) return std::nullopt;
  uint64_t number = 0;
  for (const unsigned char byte : std::span(decoded).first(bytes)) number = number << 8 | byte;
  return number;
}

}  // namespace millrace::s3
