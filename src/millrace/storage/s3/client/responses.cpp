// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/responses.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <pugixml.hpp>

#include "millrace/http/numbers.h"
#include "millrace/http/uri_encode.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/object/object_metadata.h"

namespace millrace::s3 {
namespace {

constexpr size_t kQuotedBytes = 300;  // of an unexpected answer, in an error: some four lines of a terminal

// The root element, if it has this name. No known server uses a namespace prefix.
Result<pugi::xml_node> parse_root(std::string_view body, const char* name, pugi::xml_document& document) {
  const auto parsed = document.load_buffer(body.data(), body.size(), pugi::parse_default, pugi::encoding_utf8);
  const pugi::xml_node root = document.child(name);
  if (parsed && root) return root;
  return fail(ErrorCode::kUnavailable, "the server's answer is not a {}: \"{}\"", name, body.substr(0, kQuotedBytes));
}

template <class Int>
Result<Int> number_in(const pugi::xml_node& node, const char* name) {
  const std::string_view text = node.child_value(name);
  if (const auto value = http::whole_number<Int>(text)) return *value;
  return fail(ErrorCode::kUnavailable, "the server answered {} \"{}\", not a number", name, text);
}

bool is_url_encoded(const pugi::xml_node& root) {
  return std::string_view(root.child_value("EncodingType")) == "url";
}

// encoding-type=url encodes keys as forms do.
std::string key_in(const pugi::xml_node& node, const char* name, bool encoded) {
  const char* text = node.child_value(name);
  return encoded ? http::form_decode(text) : text;
}

using http::Time;

// Parses "2026-11-21T11:33:55.123Z"; returns the epoch for any other text.
Time parse_iso_time(const char* text) {
  std::tm parts{};
  const char* rest = ::strptime(text, "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return {};
  int64_t ns = 0;
  if (*rest == '.') {
    int64_t unit = 100'000'000;
    for (++rest; *rest >= '0' && *rest <= '9'; ++rest, unit /= 10) ns += (*rest - '0') * unit;
  }
  const Time whole = http::time_of(::timegm(&parts));
  return whole == Time() ? whole : whole + std::chrono::nanoseconds(ns);
}

ErrorCode code_of(int status, std::string_view code) {
  if (code == "QuotaExceeded") return ErrorCode::kResourceExhausted;
  if (code == "BadDigest" || code == "XAmzContentChecksumMismatch") return ErrorCode::kCorruption;
  switch (status) {
    case 400:
      return ErrorCode::kInvalidArgument;
    case 401:
    case 403:
      return ErrorCode::kPermissionDenied;
    case 404:
      return ErrorCode::kNotFound;
    case 409:
    case 412:
      return ErrorCode::kAlreadyExists;
    case 416:
      return ErrorCode::kOutOfRange;
    case 501:
      return ErrorCode::kUnsupported;
    case 507:
      return ErrorCode::kResourceExhausted;
    default:
      return ErrorCode::kUnavailable;
  }
}

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) < ' ')
          out += fmt::format("&#{};", static_cast<int>(c));
        else
          out += c;
    }
  }
  return out;
}

std::string_view bare_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.starts_with('"')) etag.remove_prefix(1);
  if (etag.ends_with('"')) etag.remove_suffix(1);
  return etag;
}

ErrorResponse parse_error(std::string_view body) {
  pugi::xml_document document;
  if (body.empty() || !document.load_buffer(body.data(), body.size())) return {};
  const pugi::xml_node error = document.child("Error");
  return {error.child_value("Code"), error.child_value("Message"), error.child_value("Region")};
}

Error error_of(const http::Response& response, std::string_view what) {
  const ErrorResponse answer = parse_error(response.body);
  std::string said = fmt::format("{}: the server answered {}", what, response.status);
  if (!answer.code.empty()) said += " " + answer.code;
  if (!answer.message.empty() && answer.message != answer.code) said += ": " + answer.message;
  if (const auto wait = response.header("retry-after"); !wait.empty()) {
    said += fmt::format(" (Retry-After: {})", wait.substr(0, kQuotedBytes));
  }
  return Error(code_of(response.status, answer.code), std::move(said));
}

Result<ListPage> parse_list(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const pugi::xml_node root, parse_root(body, "ListBucketResult", document));
  const bool encoded = is_url_encoded(root);
  ListPage page;
  for (const pugi::xml_node node : root.children()) {
    if (std::strcmp(node.name(), "Contents") == 0) {
      ObjectInfo& object = page.objects.emplace_back();
      object.key = key_in(node, "Key", encoded);
      ASSIGN_OR_RETURN(object.size, number_in<int64_t>(node, "Size"));
      object.version = bare_etag(node.child_value("ETag"));
      object.modified = parse_iso_time(node.child_value("LastModified"));
    } else if (std::strcmp(node.name(), "CommonPrefixes") == 0) {
      page.prefixes.push_back(key_in(node, "Prefix", encoded));
    }
  }
  if (std::string_view(root.child_value("IsTruncated")) == "true") {
    page.next_page_token = root.child_value("NextContinuationToken");
    if (page.next_page_token.empty()) {
      return fail(ErrorCode::kUnavailable, "the server said that the listing continues, but not where");
    }
  }
  return page;
}

Result<ListPage> parse_buckets(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const pugi::xml_node root, parse_root(body, "ListAllMyBucketsResult", document));
  ListPage page;
  for (const pugi::xml_node node : root.child("Buckets").children("Bucket")) {
    ObjectInfo& bucket = page.objects.emplace_back();
    bucket.key = node.child_value("Name");
    bucket.modified = parse_iso_time(node.child_value("CreationDate"));
  }
  page.next_page_token = root.child_value("ContinuationToken");
  return page;
}

Result<UploadPage> parse_uploads(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const pugi::xml_node root, parse_root(body, "ListMultipartUploadsResult", document));
  const bool encoded = is_url_encoded(root);
  UploadPage page;
  for (const pugi::xml_node node : root.children("Upload")) {
    ObjectInfo& upload = page.uploads.emplace_back();
    upload.key = key_in(node, "Key", encoded);
    upload.version = node.child_value("UploadId");
    upload.modified = parse_iso_time(node.child_value("Initiated"));
  }
  if (std::string_view(root.child_value("IsTruncated")) == "true") {
    page.next_key = key_in(root, "NextKeyMarker", encoded);
    page.next_id = root.child_value("NextUploadIdMarker");
  }
  return page;
}

Result<PartPage> parse_parts(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const pugi::xml_node root, parse_root(body, "ListPartsResult", document));
  PartPage page;
  for (const pugi::xml_node node : root.children("Part")) {
    ListedPart& part = page.parts.emplace_back();
    ASSIGN_OR_RETURN(part.number, number_in<int>(node, "PartNumber"));
    ASSIGN_OR_RETURN(part.size, number_in<int64_t>(node, "Size"));
    part.etag = bare_etag(node.child_value("ETag"));
  }
  if (std::string_view(root.child_value("IsTruncated")) == "true")
    page.next_number = root.child_value("NextPartNumberMarker");
  return page;
}

Result<std::string> parse_upload_id(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const pugi::xml_node root, parse_root(body, "InitiateMultipartUploadResult", document));
  std::string id = root.child_value("UploadId");
  if (id.empty()) return fail(ErrorCode::kUnavailable, "the server began an upload without an id");
  return id;
}

Result<std::string> parse_etag(std::string_view body) {
  pugi::xml_document document;
  if (!document.load_buffer(body.data(), body.size()) || document.child("Error")) {
    return fail(ErrorCode::kUnavailable, "the server answered \"{}\"", body.substr(0, kQuotedBytes));
  }
  return std::string(bare_etag(document.document_element().child_value("ETag")));
}

Status parse_removed(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const pugi::xml_node root, parse_root(body, "DeleteResult", document));
  const pugi::xml_node error = root.child("Error");
  if (!error) return {};
  const std::string_view code = error.child_value("Code");
  return fail(code == "AccessDenied" ? ErrorCode::kPermissionDenied : ErrorCode::kUnavailable, "remove {}: {} {}",
              error.child_value("Key"), code, error.child_value("Message"));
}

Result<ObjectTags> parse_tags(std::string_view body) {
  pugi::xml_document document;
  ASSIGN_OR_RETURN(const pugi::xml_node root, parse_root(body, "Tagging", document));
  ObjectTags tags;
  for (const pugi::xml_node& tag : root.child("TagSet").children("Tag")) {
    tags[tag.child_value("Key")] = tag.child_value("Value");
  }
  return tags;
}

Result<ObjectInfo> parse_object(std::string key, const http::Response& response) {
  ObjectInfo object;
  object.key = std::move(key);
  auto size = response.content_range().total;
  if (!size) size = http::whole_number<int64_t>(response.header("content-length"));
  if (!size) return fail(ErrorCode::kUnavailable, "{}: the server did not say its size", object.key);
  object.size = *size;
  object.version = bare_etag(response.header("etag"));
  object.modified = http::parse_time(response.header("last-modified"));
  for (const auto& [name, value] : response.headers) {
    if (name.starts_with(kMetadataPrefix)) object.metadata[name.substr(kMetadataPrefix.size())] = value;
  }
  ObjectHeaders headers;
  for (const ObjectHeaderField& field : kObjectHeaderFields) headers.*field.value = response.header(field.name);
  object.headers = std::make_shared<const ObjectHeaders>(std::move(headers));
  object.posix = take_posix(object.metadata);
  return object;
}

std::optional<ContentChecksum> checksum_of(const http::Response& response) {
  using Kind = ContentChecksum::Kind;
  struct Header {
    const char* name;
    Kind kind;
    size_t bytes;
  };
  constexpr Header kHeaders[] = {{"x-amz-checksum-crc64nvme", Kind::kCrc64Nvme, 8},
                                 {"x-amz-checksum-crc32c", Kind::kCrc32c, 4}};
  if (response.header("x-amz-checksum-type") == "COMPOSITE") return std::nullopt;
  for (const Header& header : kHeaders) {
    const auto value = parse_base64_number(response.header(header.name), header.bytes);
    if (value) return ContentChecksum{header.kind, fmt::format("{:0{}x}", *value, 2 * header.bytes)};
  }
  return std::nullopt;
}

}  // namespace millrace::s3
