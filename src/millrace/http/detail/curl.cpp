// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/curl_library.h"

namespace millrace::http {
namespace {

Result<Curl> start_curl() {
  ASSIGN_OR_RETURN(const Curl curl, load_curl());
  const CURLcode code = curl.global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK) return fail(ErrorCode::kUnsupported, "libcurl cannot be used: {}", curl.easy_strerror(code));
  return curl;
}

}  // namespace

Result<const Curl*> Curl::open() {
  static const Result<Curl> library = start_curl();
  if (!library) return tl::unexpected(library.error());
  return &*library;
}

}  // namespace millrace::http
