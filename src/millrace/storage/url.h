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
  std::string key;         // empty: the root of the storage; of a path or an s3:// URL without the '/' at its end
  std::string url;         // named in messages; from url_to_show()
  bool has_slash = false;  // an s3:// URL ended in '/'

  // The location of `name` below this one: key + '/' + name.
  Location child(std::string_view name) const;
  // The key of the one object that the URL names: in S3 "dir/" is another object than "dir".
  std::string object_key() const;
  // This location, with its storage's Storage::with_stop().
  Location with_stop(const std::stop_token& stop) const;
};

// Plain paths and file:///absolute are the local file system (relative paths from the current directory, "." and ".."
// resolved by name, no percent-decoding); s3://bucket/key is S3 as `options` and the environment say (S3Options::from),
// and no request is made; http(s):// can be read (web/http_storage.h), and so can
// hf:// (hub/hub.h); mem://name/key is memory shared by this process,
// for tests. Braces are not expanded. A relative path that begins with the name of a scheme and a colon ("s3:/bucket")
// is taken for a mistyped URL. Equal options give the same storage. Errors: invalid_argument, unsupported.
[[nodiscard]] Result<Location> open_url(std::string_view url, const UrlOptions& options);
// Opens `url` with process_url_options().
[[nodiscard]] Result<Location> open_url(std::string_view url);

// While it lives, storages that its thread opens by URL have the stop token (Storage::with_stop). A verb of the CLI or
// a call of Python holds one, so that Ctrl-C ends the operation whatever a server does.
class StopScope {
 public:
  explicit StopScope(std::stop_token stop);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  std::stop_token before_;
};

// The URL as typed, for messages and results; http(s):// URLs without their secrets.
std::string url_to_show(std::string_view url);

// "shard-{00000..00009}.tar", "{a,b}/x", nested, as the webdataset package reads them (braceexpand): ranges keep zero
// padding, {0..10..2} has a step, a backslash makes the next character literal. A pattern without braces is itself.
// Errors: invalid_argument (unbalanced, more than `limit` names). REQUIRES: limit > 0.
[[nodiscard]] Result<std::vector<std::string>> expand_braces(std::string_view pattern, size_t limit = 1 << 20);

}  // namespace millrace
