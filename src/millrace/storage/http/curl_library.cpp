// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/http/curl_library.h"

#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace millrace::http {
namespace {

constexpr size_t kSmallestKept = 16 << 10;
constexpr size_t kMostKept = 4 << 20;
thread_local KeptBuffers* kept_buffers = nullptr;

void* allocate(size_t size) {
  if (size >= kSmallestKept && kept_buffers != nullptr) {
    if (void* const block = kept_buffers->take(size)) return block;
  }
  return std::malloc(size);
}

void release(void* block) {
  if (block == nullptr) return;
  const size_t size = ::malloc_usable_size(block);
  if (size < kSmallestKept || kept_buffers == nullptr || !kept_buffers->keep(block, size)) std::free(block);
}

Result<Curl> load_curl() {
  void* const library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "http and s3 need libcurl.so.4 (Debian and Ubuntu: libcurl4, Fedora: libcurl)");
  }
  bool complete = true;
  const auto find = [&]<class T>(T& target, const char* name) {
    // SAFETY: the header declares the symbol of that name with this type.
    target = reinterpret_cast<T>(dlsym(library, name));
    complete &= target != nullptr;
  };
  Curl curl{};
  find(curl.global_init_mem, "curl_global_init_mem");
  find(curl.easy_init, "curl_easy_init");
  find(curl.easy_setopt, "curl_easy_setopt");
  find(curl.easy_getinfo, "curl_easy_getinfo");
  find(curl.easy_strerror, "curl_easy_strerror");
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
  // Where another library of the process was first, libcurl keeps what that said.
  const CURLcode code =
      curl.global_init_mem(CURL_GLOBAL_DEFAULT, &allocate, &release, &std::realloc, &::strdup, &std::calloc);
  if (code != CURLE_OK) {
    return fail(ErrorCode::kUnsupported, "libcurl.so.4 cannot be used: {}", curl.easy_strerror(code));
  }
  return curl;
}

}  // namespace

Result<const Curl*> Curl::open() {
  static const Result<Curl> library = load_curl();
  if (!library) return tl::unexpected(library.error());
  return &*library;
}

KeptBuffers::KeptBuffers() {
  kept_buffers = this;
}

KeptBuffers::~KeptBuffers() {
  kept_buffers = nullptr;
  for (const Block& block : blocks_) std::free(block.data);
}

void* KeptBuffers::take(size_t size) {
  const auto fits = [&](const Block& block) { return block.size >= size && block.size <= 2 * size; };
  const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(), fits);  // what was used last is in the cache
  if (found == blocks_.rend()) return nullptr;
  void* const data = found->data;
  bytes_ -= found->size;
  blocks_.erase(std::next(found).base());
  return data;
}

bool KeptBuffers::keep(void* block, size_t size) {
  if (bytes_ + size > kMostKept) return false;
  blocks_.push_back({block, size});
  bytes_ += size;
  return true;
}

}  // namespace millrace::http
