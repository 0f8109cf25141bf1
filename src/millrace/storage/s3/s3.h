// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Storage over one S3 bucket, on AWS or a compatible server (docs/s3.md). Keys are S3's. A version is the ETag:
// equal content may have an equal version, and a replaced object can no longer be read (If-Match fails). A write of
// more than one part is a multipart upload, which S3 keeps when its process dies. `list_uploads` lists the uploads of
// all other processes; it cannot know which of these processes are alive.

#include <cstdint>
#include <memory>
#include <string>

#include "millrace/storage/storage.h"
#include "millrace/storage/url_options.h"

namespace millrace {

struct S3Options {
  std::string endpoint_url;  // "http://127.0.0.1:9000"; empty: AWS
  std::string region;        // empty: "us-east-1", corrected by the server's answer
  std::string ca_file;       // PEM; empty: the system's
  bool anonymous = false;    // sign nothing
  bool path_style = true;    // endpoint/bucket/key; else bucket.endpoint/key, which AWS uses if possible
  bool checksums = true;     // CRC-32C with every upload
  bool check_reads = true;   // request the server's checksums and compare them
  bool etag_is_md5 = true;   // the ETag of an unencrypted PUT is its MD5, and so proves the content
  int max_tries = 10;
  // A failed request is tried again until this time after its start. A request that is silent for this long fails.
  std::chrono::milliseconds timeout{120'000};
  int max_under_way = 128;         // requests at once
  int threads = 1;                 // threads of the transport
  double requests_per_second = 0;  // 0: no limit
  double bytes_per_second = 0;     // rate of bodies, sent and received together; 0: no limit
  bool operator==(const S3Options&) const = default;

  // Settings that `options` do not set come from the environment and the profile files: docs/s3.md lists them. Errors:
  // invalid_argument.
  [[nodiscard]] static Result<S3Options> from(const UrlOptions& options);
};

// Opens a bucket without a request. Errors: invalid_argument (a name that no bucket can have, an endpoint that is no
// URL).
[[nodiscard]] Result<std::shared_ptr<Storage>> open_s3_storage(const std::string& bucket, const S3Options& options);

// Lists the caller's buckets by name, with `key` and `modified` of each. Errors: permission_denied.
[[nodiscard]] Result<std::vector<ObjectInfo>> list_s3_buckets(const S3Options& options);

// Creates the bucket if it is missing. Errors: already_exists (another account owns it), permission_denied.
[[nodiscard]] Status make_s3_bucket(const std::string& bucket, const S3Options& options);

}  // namespace millrace
