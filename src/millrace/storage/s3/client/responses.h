// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses S3's answers (XML of the Amazon S3 API Reference). Functions are thread-safe. Any other body gives the error
// `unavailable`, because a device between us and the server answered.

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
// Parses the fields of an <Error> document; empty for any other body.
ErrorResponse parse_error(std::string_view body);

// Returns the Error for a failed answer, from its status or its body. The message contains the request, the status and
// the server's message.
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
// Parses the ETag in an answer of CompleteMultipartUpload, CopyObject or UploadPartCopy; "" if the server omits it.
[[nodiscard]] Result<std::string> parse_etag(std::string_view body);
// Parses the body of GetObjectTagging.
[[nodiscard]] Result<ObjectTags> parse_tags(std::string_view body);
// Returns the error of the first key that DeleteObjects could not remove.
[[nodiscard]] Status parse_removed(std::string_view body);

// Parses size, version, time, metadata and headers from the headers of GET or HEAD.
[[nodiscard]] Result<ObjectInfo> parse_object(std::string key, const http::Response& response);

// When this request header is ENABLED, S3 answers with its stored checksum of the whole object.
inline constexpr const char* kChecksumMode = "x-amz-checksum-mode";
// Returns the checksum in an answer. nullopt when there is none of a supported kind, or it is a checksum of the parts'
// checksums.
std::optional<ContentChecksum> checksum_of(const http::Response& response);

// Escapes the text of an element in a request.
std::string xml_escaped(std::string_view text);

// Removes the quotes, and the W/ of a weak ETag.
std::string_view bare_etag(std::string_view etag);

}  // namespace millrace::s3
