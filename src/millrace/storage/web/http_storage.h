// SPDX-License-Identifier: Apache-2.0
#pragma once

// Objects behind http:// and https:// URLs, for reading. Thread-safe; usable after fork.
//
//  - A key is the path in the URL as it is typed, behind the host's '/'; only bytes that no URL can have are
//    percent-encoded. A query belongs to the storage and is in no key, name or message: it may be a signature.
//  - A version is the ETag, or Last-Modified where there is none. Each read asks for it (If-Match, If-Unmodified-Since)
//    and looks at what came: an object that changed is corruption. Without either, a changed size is found.
//  - The server has to answer ranges (unsupported otherwise). Opening costs one request; redirects are followed then,
//    but never from https to http, and the reader stays where they led.
//  - What may be tried again is, with growing pauses; long reads are ranges of 8 MiB, each tried by itself.
//  - list, remove and everything that writes answer unsupported.

#include <memory>
#include <string>

#include "millrace/http/http.h"
#include "millrace/storage/storage.h"

namespace millrace {

struct HttpStorageOptions {
  http::ClientOptions client;
  int tries = 6;                               // of a request, the first included
  std::chrono::milliseconds first_pause{200};  // doubled for each further one, up to 10 s
  // Nothing is tried again after so long; what is silent for so long has failed.
  std::chrono::milliseconds timeout{120'000};

  // What MILLRACE_TIMEOUT (whole seconds) says. Errors: invalid_argument.
  [[nodiscard]] static Result<HttpStorageOptions> from_environment();
};

// The storage of everything at `origin`: "https://host" or "http://host:port". Errors: invalid_argument.
[[nodiscard]] Result<std::shared_ptr<Storage>> open_http_storage(std::string origin,
                                                                 const HttpStorageOptions& options = {});
// `storage` again, over the same connections, whose URLs end in '?' and `query`. REQUIRES: open_http_storage made it.
std::shared_ptr<Storage> with_query(const Storage& storage, std::string query);

}  // namespace millrace
