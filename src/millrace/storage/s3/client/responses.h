// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses S3's answers (XML of the Amazon S3 API Reference). Functions are thread-safe. Any other body is `unavailable`:
// a device between us and the server answered.

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
// The fields of an <Error> document; empty for any other body.
ErrorResponse parse_error(std::string_view body);

// The Error of a failed answer (by its status or its body). The message gives the request, the status and the server's
// words.
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
// The ETag of CompleteMultipartUpload, CopyObject and UploadPartCopy; "" where the server omits it.
[[nodiscard]] Result<std::string> parse_etag(std::string_view body);
// Parses the body of GetObjectTagging.
[[nodiscard]] Result<ObjectTags> parse_tags(std::string_view body);
// The first key that DeleteObjects could not remove.
[[nodiscard]] Status parse_removed(std::string_view body);

// Size, version, time, metadata and headers from the headers of GET or HEAD.
[[nodiscard]] Result<ObjectInfo> parse_object(std::string key, const http::Response& response);

// With this request header set to ENABLED, S3 answers with the checksum that it keeps of the whole object.
inline constexpr const char* kChecksumMode = "x-amz-checksum-mode";
// nullopt when there is no checksum that we compute, or it is a checksum of the parts' checksums.
std::optional<ContentChecksum> checksum_of(const http::Response& response);

// For the text of an element in a request.
std::string xml_escaped(std::string_view text);

// Removes the quotes, and the W/ of a weak ETag.
std::string_view bare_etag(std::string_view etag);

}  // namespace millrace::s3
