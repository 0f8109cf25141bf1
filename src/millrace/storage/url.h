// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the Storage and the key of a URL or path. Thread-safe.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/storage/storage.h"
#include "millrace/storage/url_options.h"

namespace millrace {

struct Location {
  std::shared_ptr<Storage> storage;
  std::string key;         // empty: the root of the storage; a path or s3:// URL loses the '/' at its end
  std::string url;         // for messages; from url_to_show()
  bool has_slash = false;  // an s3:// URL ended in '/'

  // Returns the location of `name` below this one: key + '/' + name.
  Location child(std::string_view name) const;
  // Returns the key of the one object that the URL names. In S3, "dir/" and "dir" are different objects.
  std::string object_key() const;
  // Returns this location, with the storage from Storage::with_stop().
  Location with_stop(const std::stop_token& stop) const;
};

// Opens a URL or path. Plain paths and file:///absolute are the local file system (relative paths from the current
// directory, "." and ".." resolved by name, no percent-decoding). s3://bucket/key is S3, configured by `options` and
// the environment (S3Options::from), opened without a request. http(s):// (web/http_storage.h) and hf:// (hub/hub.h)
// can be read. mem://name/key is memory shared within this process, for tests. Braces are not expanded. A relative
// path that begins with the name of a scheme and a colon ("s3:/bucket") is treated as a mistyped URL. Equal options
// give the same storage. Errors: invalid_argument, unsupported.
[[nodiscard]] Result<Location> open_url(std::string_view url, const UrlOptions& options);
// Opens `url` with process_url_options().
[[nodiscard]] Result<Location> open_url(std::string_view url);

// While it lives, storages that its thread opens by URL have the stop token (Storage::with_stop). A CLI command or
// Python call holds a StopScope, so that Ctrl-C ends the operation even if a server does not answer.
class StopScope {
 public:
  explicit StopScope(std::stop_token stop);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  std::stop_token before_;
};

// Returns the URL as typed, for messages and results; http(s):// URLs without their secrets.
std::string url_to_show(std::string_view url);

// Expands braces as the webdataset package does (braceexpand): "shard-{00000..00009}.tar", "{a,b}/x", also nested.
// Ranges keep zero padding, {0..10..2} has a step, and a backslash makes the next character literal. A pattern without
// braces stays as it is. Errors: invalid_argument (unbalanced, more than `limit` names). REQUIRES: limit > 0.
[[nodiscard]] Result<std::vector<std::string>> expand_braces(std::string_view pattern, size_t limit = 1 << 20);

}  // namespace millrace
