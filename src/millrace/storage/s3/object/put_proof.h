// SPDX-License-Identifier: Apache-2.0
#pragma once

// Proves that a server stored the bytes that were sent, by the CRC-32C in its answer, or by its ETag as an MD5.
// Thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/s3/client/bucket.h"

namespace millrace::s3 {

// The proof of one PUT of a whole object or of a part.
struct PutProof {
  std::string crc;  // in base64; "" when checksums are off
  std::string md5;  // from Md5::finish(); "" when the server is known to check the CRC-32C

  static PutProof of(const Bucket& bucket, std::span<const std::byte> bytes);
  // Computes the proofs of several parts, which costs less than one by one (md5_of_each).
  static std::vector<PutProof> of_each(const Bucket& bucket, std::span<const std::span<const std::byte>> parts);
  // `crc32c` is the checksum of the file. Reads the file if its MD5 is needed. Errors: those of FileRange::read_at.
  [[nodiscard]] static Result<PutProof> of(const Bucket& bucket, const FileRange& file, uint32_t crc32c);

  // Adds the headers with which the server checks the bytes that it receives.
  void add_to(Request& request) const;
  // Compares the server's answer with the proof. Errors: corruption.
  [[nodiscard]] Status check(const Bucket& bucket, const http::Response& response, std::string_view what) const;
};

// Checks an object that was assembled from parts. `etag` is the server's ETag, `expected` the ETag computed from the
// parts (multipart_etag). Returns false when the two cannot be compared; the caller then checks the size. Errors:
// corruption.
[[nodiscard]] Result<bool> prove_whole(const Bucket& bucket, const http::Response& response, std::string_view etag,
                                       const std::string& expected, std::string_view what);

}  // namespace millrace::s3
