// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/curl_library.h"

#include <dlfcn.h>

namespace millrace::http {

Result<Curl> load_curl() {
  void* const library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "http and s3 need libcurl.so.4 ({}): install it (Debian and Ubuntu: libcurl4; Fedora, RHEL and Amazon "
                "Linux: libcurl), or the wheel of millrace-io, which holds it",
                dlerror());
  }
  bool complete = true;
  const auto find = [&]<class T>(T& target, const char* name) {
    // SAFETY: the header declares the symbol of that name with this type.
    target = reinterpret_cast<T>(dlsym(library, name));
    complete &= target != nullptr;
  };
  Curl curl{};
  find(curl.global_init, "curl_global_init");
  find(curl.easy_init, "curl_easy_init");
  find(curl.easy_setopt, "curl_easy_setopt");
  find(curl.easy_getinfo, "curl_easy_getinfo");
  find(curl.easy_strerror, "curl_easy_strerror");
  find(curl.easy_recv, "curl_easy_recv");
  find(curl.easy_send, "curl_easy_send");
  find(curl.easy_cleanup, "curl_easy_cleanup");
  find(curl.multi_init, "curl_multi_init");
  find(curl.multi_setopt, "curl_multi_setopt");
  find(curl.multi_add_handle, "curl_multi_add_handle");
  find(curl.multi_remove_handle, "curl_multi_remove_handle");
  find(curl.multi_socket_action, "curl_multi_socket_action");
  find(curl.multi_info_read, "curl_multi_info_read");
  find(curl.multi_cleanup, "curl_multi_cleanup");
  find(curl.share_init, "curl_share_init");
  find(curl.share_setopt, "curl_share_setopt");
  find(curl.share_cleanup, "curl_share_cleanup");
  if (!complete) return fail(ErrorCode::kUnsupported, "libcurl.so.4 lacks what http and s3 need");
  return curl;
}

}  // namespace millrace::http
