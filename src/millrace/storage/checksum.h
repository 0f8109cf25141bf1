// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checksums of whole objects that a storage keeps and reports. A reader of the whole object can compare its content
// with them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace millrace {

struct ContentChecksum {
  enum class Kind {
    kCrc32c,
    kCrc64Nvme,
    kSha256,
    kGitBlob,  // Git's name of a file: the SHA-1 of "blob SIZE\0" and the content
  };
  Kind kind = Kind::kCrc64Nvme;
  std::string digest;  // lower-case hexadecimal digits, most significant first
  bool operator==(const ContentChecksum&) const = default;

  static ContentChecksum of(Kind kind, std::span<const std::byte> content);
};

const char* checksum_name(ContentChecksum::Kind kind);

// Computes the checksum of content that arrives in pieces. For one thread.
class ChecksumStream {
 public:
  // `size_bytes`: the size of the whole content. kGitBlob hashes it first.
  ChecksumStream(ContentChecksum::Kind kind, int64_t size_bytes);
  ~ChecksumStream();
  ChecksumStream(ChecksumStream&&) noexcept;
  ChecksumStream& operator=(ChecksumStream&&) noexcept;

  void update(std::span<const std::byte> bytes);
  // Returns the checksum. Call it once; no bytes may follow.
  ContentChecksum finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace
