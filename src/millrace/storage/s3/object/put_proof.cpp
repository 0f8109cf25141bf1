// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/put_proof.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/text/ascii.h"
#include "millrace/storage/md5.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/client/responses.h"

namespace millrace::s3 {
namespace {

constexpr int64_t kHashedAtOnce = 1 << 20;  // stays in a core's cache

Result<std::string> md5_of(const FileRange& file) {
  std::vector<std::byte> piece(static_cast<size_t>(std::min(file.size(), kHashedAtOnce)));
  Md5 md5;
  for (int64_t at = 0; at < file.size(); at += std::ssize(piece)) {
    const auto out = std::span(piece).first(static_cast<size_t>(std::min(std::ssize(piece), file.size() - at)));
    RETURN_IF_ERROR(file.read_at(at, out));
    md5.update(out);
  }
  return md5.finish();
}

// The object is encrypted with keys of KMS or the customer: its ETag is not an MD5.
bool is_encrypted(const http::Response& response) {
  const std::string_view by = response.header("x-amz-server-side-encryption");
  return (!by.empty() && by != "AES256") || !response.header("x-amz-server-side-encryption-customer-algorithm").empty();
}

}  // namespace

PutProof PutProof::of(const Bucket& bucket, std::span<const std::byte> bytes) {
  return of_each(bucket, {&bytes, 1}).front();
}

std::vector<PutProof> PutProof::of_each(const Bucket& bucket, std::span<const std::span<const std::byte>> parts) {
  std::vector<PutProof> proofs(parts.size());
  if (bucket.checksums) {
    for (size_t i = 0; i < parts.size(); ++i) proofs[i].crc = base64_crc32c(crc32c(parts[i]));
  }
  if (bucket.state->checks_crc) return proofs;
  std::vector<std::string> digests = md5_of_each(parts);
  for (size_t i = 0; i < parts.size(); ++i) proofs[i].md5 = std::move(digests[i]);
  return proofs;
}

Result<PutProof> PutProof::of(const Bucket& bucket, const FileRange& file, uint32_t crc32c) {
  PutProof proof{.crc = bucket.checksums ? base64_crc32c(crc32c) : "", .md5 = {}};
  if (bucket.state->checks_crc) return proof;
  ASSIGN_OR_RETURN(proof.md5, md5_of(file));
  return proof;
}

void PutProof::add_to(Request& request) const {
  if (!crc.empty()) request.headers.emplace_back("x-amz-checksum-crc32c", crc);
  if (!md5.empty()) request.headers.emplace_back("content-md5", base64(md5));
}

Status PutProof::check(const Bucket& bucket, const http::Response& response, std::string_view what) const {
  const std::string_view said = response.header("x-amz-checksum-crc32c"), etag = bare_etag(response.header("etag"));
  if (!crc.empty() && !said.empty()) {
    if (said != crc) {
      return fail(ErrorCode::kCorruption, "{}: the server stored something else: its CRC-32C is {}, not {}", what, said,
                  crc);
    }
    bucket.state->checks_crc = true;
    return {};
  }
  const bool is_proof = !md5.empty() && bucket.etag_is_md5 && is_md5(etag) && !is_encrypted(response);
  if (!is_proof || etag == hex(md5)) return {};
  return fail(ErrorCode::kCorruption,
              "{}: the server stored something else: its ETag is {}, and the MD5 of what was sent {} (a server whose "
              "ETags are no MD5 needs MILLRACE_S3_ETAG_IS_MD5=0)",
              what, etag, hex(md5));
}

Result<bool> prove_whole(const Bucket& bucket, const http::Response& response, std::string_view etag,
                         const std::string& expected, std::string_view what) {
  if (!etag.empty() && etag == expected) return true;
  const size_t dash = etag.find('-');
  const bool is_proof = bucket.etag_is_md5 && !expected.empty() && dash != etag.npos && is_md5(etag.substr(0, dash)) &&
                        !is_encrypted(response);
  if (!is_proof) return false;
  return fail(ErrorCode::kCorruption, "{}: the server put something else together: its ETag is {}, not {}", what, etag,
              expected);
}

}  // namespace millrace::s3
