// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/md5.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <array>

namespace millrace {

std::string md5_hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_md5(), nullptr) != 1) return {};
  std::string hex;
  for (const unsigned char byte : std::span(digest).first(size)) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace millrace
