// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/checksum.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <array>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/hash/crc64nvme.h"
#include "millrace/base/io/io.h"
#include "millrace/base/text/ascii.h"

namespace millrace {
namespace {

using Kind = ContentChecksum::Kind;

}  // namespace

struct ChecksumStream::State {
  Kind kind;
  uint64_t crc = 0;
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{nullptr, EVP_MD_CTX_free};
};

const char* checksum_name(Kind kind) {
  switch (kind) {
    case Kind::kCrc32c:
      return "CRC-32C";
    case Kind::kSha256:
      return "SHA-256";
    case Kind::kGitBlob:
      return "Git SHA-1";
    case Kind::kCrc64Nvme:
      break;
  }
  return "CRC-64/NVME";
}

ChecksumStream::ChecksumStream(Kind kind, int64_t size_bytes) : state_(std::make_unique<State>()) {
  state_->kind = kind;
  if (kind != Kind::kSha256 && kind != Kind::kGitBlob) return;
  state_->context.reset(EVP_MD_CTX_new());
  EVP_DigestInit_ex(state_->context.get(), kind == Kind::kSha256 ? EVP_sha256() : EVP_sha1(), nullptr);
  if (kind == Kind::kGitBlob) {
    const std::string head = fmt::format("blob {}", size_bytes);
    update(as_bytes(std::string_view(head.c_str(), head.size() + 1)));
  }
}
ChecksumStream::~ChecksumStream() = default;
ChecksumStream::ChecksumStream(ChecksumStream&&) noexcept = default;
ChecksumStream& ChecksumStream::operator=(ChecksumStream&&) noexcept = default;

void ChecksumStream::update(std::span<const std::byte> bytes) {
  if (state_->context) {
    EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size());
  } else if (state_->kind == Kind::kCrc32c) {
    state_->crc = crc32c(bytes, static_cast<uint32_t>(state_->crc));
  } else {
    state_->crc = crc64nvme(bytes, state_->crc);
  }
}

ContentChecksum ChecksumStream::finish() {
  if (!state_->context)
    return {state_->kind, fmt::format("{:0{}x}", state_->crc, state_->kind == Kind::kCrc32c ? 8 : 16)};
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size);
  // SAFETY: bytes as characters.
  return {state_->kind, hex({reinterpret_cast<const char*>(digest.data()), size})};
}

ContentChecksum ContentChecksum::of(Kind kind, std::span<const std::byte> content) {
  ChecksumStream stream(kind, std::ssize(content));
  stream.update(content);
  return stream.finish();
}

}  // namespace millrace
