// SPDX-License-Identifier: Apache-2.0
#pragma once

// The metadata that an object store keeps with an object: headers for HTTP clients, and tags. Values and pure
// functions, thread-safe.

#include <map>
#include <string>
#include <string_view>

namespace millrace {

// The values of the headers in a response; empty: not set.
struct ObjectHeaders {
  std::string content_type;
  std::string content_encoding;
  std::string content_language;
  std::string content_disposition;
  std::string cache_control;
  std::string expires;  // an HTTP date: "Tue, 01 Jan 2030 00:00:00 GMT"

  bool operator==(const ObjectHeaders&) const = default;
};

struct ObjectHeaderField {
  std::string_view name;  // name of the HTTP header, in lower case
  std::string ObjectHeaders::* value;
};
inline constexpr ObjectHeaderField kObjectHeaderFields[] = {
    {"content-type", &ObjectHeaders::content_type},
    {"content-encoding", &ObjectHeaders::content_encoding},
    {"content-language", &ObjectHeaders::content_language},
    {"content-disposition", &ObjectHeaders::content_disposition},
    {"cache-control", &ObjectHeaders::cache_control},
    {"expires", &ObjectHeaders::expires},
};

using ObjectTags = std::map<std::string, std::string>;

// Guesses the content type from the ending of a file name, as Python's mimetypes (and so `aws s3 cp`) does without
// system tables: "a.json" is application/json, "a.tar.gz" application/x-tar. Empty if the ending is unknown.
std::string_view guess_content_type(std::string_view name);

}  // namespace millrace
