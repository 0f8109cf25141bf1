// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads objects at http:// and https:// URLs. Thread-safe; usable after fork.
//
//  - A key is the path in the URL as it is typed, after the host's '/'; only bytes that no URL can have are
//    percent-encoded. A query belongs to the storage. It is in no key, name or message, because it may be a signature.
//  - A version is the ETag, or Last-Modified if there is no ETag. Each read requests that version (If-Match,
//    If-Unmodified-Since) and checks the answer: a changed object is corruption. If the server sends neither header,
//    only a changed size is detected.
//  - The server must answer ranges (unsupported otherwise). Opening costs one request and follows redirects, but never
//    from https to http. The reader stays at the final URL.
//  - Temporary failures are retried with growing pauses. Long reads are ranges of 8 MiB, each retried separately.
//  - list, remove and all writes answer unsupported.

#include <memory>
#include <string>

#include "millrace/http/http.h"
#include "millrace/storage/storage.h"
#include "millrace/storage/web/retry.h"

namespace millrace {

struct HttpStorageOptions : web::RetryPolicy {
  http::ClientOptions client;

  // Takes the timeout from RetryPolicy::set_timeout. Errors: invalid_argument.
  [[nodiscard]] static Result<HttpStorageOptions> from(const UrlOptions& options);
};

class HttpStorage : public Storage {
 public:
  // Returns a storage that uses the same connections and appends '?' and `query` to its URLs.
  virtual std::shared_ptr<Storage> with_query(std::string query) const = 0;
};

// Opens the storage of all objects at `origin`: "https://host" or "http://host:port". Errors: invalid_argument.
[[nodiscard]] Result<std::shared_ptr<HttpStorage>> open_http_storage(std::string origin,
                                                                     const HttpStorageOptions& options = {});

}  // namespace millrace
