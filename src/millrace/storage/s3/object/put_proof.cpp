// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/object/put_proof.h"

#include <algorithm>
#include <vector>

#include "millrace/storage/md5.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/client/responses.h"

namespace millrace::s3 {
namespace {

constexpr int64_t kHashedAtOnce = 1 << 20;

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

// Then an ETag may be anything: with keys of KMS or of the customer's.
bool is_encrypted(const http::Response& response) {
  const std::string_view by = response.header("x-amz-server-side-encryption");
  return (!by.empty() && by != "AES256") || !response.header("x-amz-server-side-encryption-customer-algorithm").empty();
}

std::string crc_text(const Bucket& bucket, uint32_t crc32c) {
  return bucket.checksums ? base64_crc32c(crc32c) : "";
}

}  // namespace

Result<PutProof> PutProof::of(const Bucket& bucket, std::span<const std::byte> bytes, uint32_t crc32c) {
  PutProof proof{.crc = crc_text(bucket, crc32c), .md5 = {}};
  if (bucket.state->checks_crc) return proof;
  Md5 md5;
  md5.update(bytes);
  proof.md5 = md5.finish();
  return proof;
}

Result<PutProof> PutProof::of(const Bucket& bucket, const FileRange& file, uint32_t crc32c) {
  PutProof proof{.crc = crc_text(bucket, crc32c), .md5 = {}};
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
