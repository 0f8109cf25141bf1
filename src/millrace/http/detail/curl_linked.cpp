// SPDX-License-Identifier: Apache-2.0
// In the place of curl_library.cpp where libcurl is linked as an archive (MILLRACE_BUNDLE).
#include "millrace/http/detail/curl_library.h"

namespace millrace::http {

Result<Curl> load_curl() {
  return Curl{
      .global_init = &::curl_global_init,
      .easy_init = &::curl_easy_init,
      .easy_setopt = &::curl_easy_setopt,
      .easy_getinfo = &::curl_easy_getinfo,
      .easy_strerror = &::curl_easy_strerror,
      .easy_recv = &::curl_easy_recv,
      .easy_send = &::curl_easy_send,
      .easy_cleanup = &::curl_easy_cleanup,
      .multi_init = &::curl_multi_init,
      .multi_setopt = &::curl_multi_setopt,
      .multi_add_handle = &::curl_multi_add_handle,
      .multi_remove_handle = &::curl_multi_remove_handle,
      .multi_socket_action = &::curl_multi_socket_action,
      .multi_info_read = &::curl_multi_info_read,
      .multi_cleanup = &::curl_multi_cleanup,
      .share_init = &::curl_share_init,
      .share_setopt = &::curl_share_setopt,
      .share_cleanup = &::curl_share_cleanup,
  };
}

}  // namespace millrace::http
