// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/md5.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include "millrace/base/hash/md5_lanes.h"

namespace millrace {

struct Md5::State {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context{EVP_MD_CTX_new(), EVP_MD_CTX_free};
  bool good = false;

  void begin() { good = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_md5(), nullptr) == 1; }
};

Md5::Md5() : state_(std::make_unique<State>()) {
  state_->begin();
}
Md5::~Md5() = default;

void Md5::update(std::span<const std::byte> bytes) {
  state_->good = state_->good && EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1;
}

std::string Md5::finish() {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  // SAFETY: char and unsigned char may alias.
  auto* const out = reinterpret_cast<unsigned char*>(digest.data());
  if (!state_->good || EVP_DigestFinal_ex(state_->context.get(), out, &size) != 1) size = 0;
  digest.resize(size);
  state_->begin();
  return digest;
}

std::string Md5::finish_hex() {
  std::string hex;
  for (const char byte : finish()) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}

std::vector<std::string> md5_of_each(std::span<const std::span<const std::byte>> buffers) {
  std::vector<std::string> digests(buffers.size());
  Md5 md5;
  if (md5.finish().empty()) return digests;  // forbidden, so our own is, too
  std::vector<Md5Digest> found(buffers.size());
  const bool in_lanes = buffers.size() >= kFewestMd5Lanes && md5_in_lanes(buffers, found);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (in_lanes) {
      for (const std::byte byte : found[i]) digests[i] += static_cast<char>(byte);
    } else {
      md5.update(buffers[i]);
      digests[i] = md5.finish();
    }
  }
  return digests;
}

std::string md5_hex(std::span<const std::byte> bytes) {
  Md5 md5;
  md5.update(bytes);
  return md5.finish_hex();
}

}  // namespace millrace
