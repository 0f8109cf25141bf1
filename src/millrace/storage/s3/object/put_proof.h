// SPDX-License-Identifier: Apache-2.0
#pragma once

// What proves that a server stored what was sent to it: a CRC-32C that it answers, or the MD5 that its ETag is.
// Thread-safe.

#include <string>
#include <string_view>

#include "millrace/storage/s3/client/bucket.h"

namespace millrace::s3 {

// Of one PUT: of a whole object, or of a part.
struct PutProof {
  std::string crc;  // in base64; "" where checksums are not sent
  std::string md5;  // as Md5::finish(); "" where the server is known to check the CRC-32C

  // `crc32c` is that of the bytes.
  [[nodiscard]] static Result<PutProof> of(const Bucket& bucket, std::span<const std::byte> bytes, uint32_t crc32c);
  // Reads the file, where its MD5 is needed. Errors: those of FileRange::read_at.
  [[nodiscard]] static Result<PutProof> of(const Bucket& bucket, const FileRange& file, uint32_t crc32c);

  // Headers with which the server checks the bytes that come.
  void add_to(Request& request) const;
  // Holds what the server says that it stored against that. Errors: corruption.
  [[nodiscard]] Status check(const Bucket& bucket, const http::Response& response, std::string_view what) const;
};

// The same of an object that was put together from parts: `etag` is what the server says, `expected` what its parts
// make (multipart_etag). False where neither can be told: its size is to be looked at. Errors: corruption.
[[nodiscard]] Result<bool> prove_whole(const Bucket& bucket, const http::Response& response, std::string_view etag,
                                       const std::string& expected, std::string_view what);

}  // namespace millrace::s3
