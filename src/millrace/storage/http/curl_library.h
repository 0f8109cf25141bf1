// SPDX-License-Identifier: Apache-2.0
#pragma once

// libcurl, opened when the first request asks for it: it brings some thirty libraries that a process which never leaves
// its disks need not load. Thread-safe.

#include <curl/curl.h>

#include <vector>

#include "millrace/base/status.h"

namespace millrace::http {

struct Curl {
  decltype(&::curl_global_init_mem) global_init_mem;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
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

  // Opened and initialised once in a process. Errors: unsupported (it is not there; what to install).
  [[nodiscard]] static Result<const Curl*> open();
};

// libcurl allocates the buffers of a transfer anew each time. While this lives on a thread, those that end there are
// kept for those that begin there: malloc would give them back to the kernel, and the page faults of getting them again
// cost as much as the bytes. At most 4 MiB are kept. Not thread-safe: of the thread that made it.
class KeptBuffers {
 public:
  KeptBuffers();
  ~KeptBuffers();
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

  // Nothing where none fits.
  void* take(size_t size);
  // False when it is not kept.
  bool keep(void* block, size_t size);

 private:
  struct Block {
    void* data;
    size_t size;
  };
  std::vector<Block> blocks_;
  size_t bytes_ = 0;
};

}  // namespace millrace::http
