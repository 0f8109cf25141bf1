// SPDX-License-Identifier: Apache-2.0
#pragma once

// Objects behind http:// and https:// URLs, for reading. Thread-safe; usable after fork.
//
//  - A key is the path in the URL as it is typed, behind the host's '/'; only bytes that no URL can have are
//    percent-encoded. A query belongs to the storage. It is in no key, name or message, because it may be a signature.
//  - A version is the ETag, or Last-Modified where there is none. Each read asks for it (If-Match, If-Unmodified-Since)
//    and checks the answer: a changed object is corruption. Without either, only a changed size is found.
//  - The server must answer ranges (unsupported otherwise). Opening costs one request and follows redirects, but never
//    from https to http. The reader stays at the final URL.
//  - Failures that may pass are tried again with growing pauses. Long reads are ranges of 8 MiB, each retried by
//    itself.
//  - list, remove and all writes answer unsupported.

#include <memory>
#include <string>

#include "millrace/http/http.h"
#include "millrace/storage/storage.h"
#include "millrace/storage/web/retry.h"

namespace millrace {

struct HttpStorageOptions : web::RetryPolicy {
  http::ClientOptions client;

  // As RetryPolicy::set_timeout. Errors: invalid_argument.
  [[nodiscard]] static Result<HttpStorageOptions> from(const UrlOptions& options);
};

class HttpStorage : public Storage {
 public:
  // The same storage, over the same connections, with '?' and `query` at the end of its URLs.
  virtual std::shared_ptr<Storage> with_query(std::string query) const = 0;
};

// The storage of everything at `origin`: "https://host" or "http://host:port". Errors: invalid_argument.
[[nodiscard]] Result<std::shared_ptr<HttpStorage>> open_http_storage(std::string origin,
                                                                     const HttpStorageOptions& options = {});

}  // namespace millrace
