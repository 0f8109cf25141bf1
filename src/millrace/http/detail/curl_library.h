// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opens libcurl at the first request. A distribution's libcurl loads about thirty libraries, which a process that uses
// only local disks does not need (curl_library.cpp). The wheel links a small libcurl (curl_linked.cpp). Thread-safe.

#include <curl/curl.h>

#include "millrace/base/status.h"

namespace millrace::http {

struct Curl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_easy_recv) easy_recv;
  decltype(&::curl_easy_send) easy_send;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_setopt) multi_setopt;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_socket_action) multi_socket_action;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_share_init) share_init;
  decltype(&::curl_share_setopt) share_setopt;
  decltype(&::curl_share_cleanup) share_cleanup;

  // Opens and initialises libcurl once in a process. Errors: unsupported (not installed; the message says what to
  // install).
  [[nodiscard]] static Result<const Curl*> open();
};

// Loads the functions of libcurl without initialising it. Errors: unsupported (not installed; the message says what to
// install).
[[nodiscard]] Result<Curl> load_curl();

}  // namespace millrace::http
