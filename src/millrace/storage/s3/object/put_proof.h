// SPDX-License-Identifier: Apache-2.0
#pragma once

// Proves that a server stored what was sent: by the CRC-32C that it answers, or by its ETag as an MD5. Thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/s3/client/bucket.h"

namespace millrace::s3 {

// The proof of one PUT: of a whole object, or of a part.
struct PutProof {
  std::string crc;  // in base64; "" when checksums are off
  std::string md5;  // from Md5::finish(); "" when the server is known to check the CRC-32C

  static PutProof of(const Bucket& bucket, std::span<const std::byte> bytes);
  // The proofs of several parts; together they cost less than one by one (md5_of_each).
  static std::vector<PutProof> of_each(const Bucket& bucket, std::span<const std::span<const std::byte>> parts);
  // `crc32c` is that of the file. Reads the file if its MD5 is needed. Errors: those of FileRange::read_at.
  [[nodiscard]] static Result<PutProof> of(const Bucket& bucket, const FileRange& file, uint32_t crc32c);

  // Headers with which the server checks the bytes that it receives.
  void add_to(Request& request) const;
  // Compares the server's answer with the proof. Errors: corruption.
  [[nodiscard]] Status check(const Bucket& bucket, const http::Response& response, std::string_view what) const;
};

// Checks an object that was assembled from parts. `etag` is the server's, `expected` the one of its parts
// (multipart_etag). False when the two cannot be compared; the caller then checks the size. Errors: corruption.
[[nodiscard]] Result<bool> prove_whole(const Bucket& bucket, const http::Response& response, std::string_view etag,
                                       const std::string& expected, std::string_view what);

}  // namespace millrace::s3
