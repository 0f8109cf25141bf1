// SPDX-License-Identifier: Apache-2.0
#pragma once

// What S3 answers, read (XML as in the Amazon S3 API Reference). Functions are thread-safe; a body that is no such
// answer is `unavailable`: something between us and the server spoke.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/http/http.h"
#include "millrace/storage/storage.h"

namespace millrace::s3 {

struct ErrorResponse {
  std::string code, message, region;
};
// Of an <Error> document; empty fields for anything else.
ErrorResponse parse_error(std::string_view body);

// The Error of an answer whose status is not 2xx (or whose body says so), saying what was wanted, what came back and
// the server's own words.
Error error_of(const http::Response& response, std::string_view what);

struct UploadPage {
  std::vector<ObjectInfo> uploads;  // version: the upload's id
  std::string next_key, next_id;    // empty on the last page
};
struct ListedPart {
  int number = 0;
  int64_t size = 0;
  std::string etag;
};
struct PartPage {
  std::vector<ListedPart> parts;
  std::string next_number;  // empty on the last page
};

[[nodiscard]] Result<ListPage> parse_list(std::string_view body);
[[nodiscard]] Result<ListPage> parse_buckets(std::string_view body);
[[nodiscard]] Result<UploadPage> parse_uploads(std::string_view body);
[[nodiscard]] Result<PartPage> parse_parts(std::string_view body);
[[nodiscard]] Result<std::string> parse_upload_id(std::string_view body);
// Of CompleteMultipartUpload, CopyObject and UploadPartCopy; "" where the server leaves it out.
[[nodiscard]] Result<std::string> parse_etag(std::string_view body);
// Of DeleteObjects: the first key that could not be removed.
[[nodiscard]] Status parse_removed(std::string_view body);

// Size, version, time, metadata from the headers of GET or HEAD.
[[nodiscard]] Result<ObjectInfo> parse_object(std::string key, const http::Response& response);

// A request with this header, set to ENABLED, is answered with the checksum that S3 keeps of the whole object.
inline constexpr const char* kChecksumMode = "x-amz-checksum-mode";
// Nothing where there is none that we compute, or where it is one of the parts' checksums.
std::optional<ContentChecksum> checksum_of(const http::Response& response);

// Without the quotes, and without the W/ of a weak one.
std::string_view bare_etag(std::string_view etag);

}  // namespace millrace::s3
