// SPDX-License-Identifier: Apache-2.0
#pragma once

// One easy handle of libcurl, used for one exchange after the other: the options that never change are set once, and
// the answer's bytes go to the exchange. Belongs to its loop's thread.

#include <array>

#include "millrace/storage/http/curl_library.h"
#include "millrace/storage/http/exchange.h"

namespace millrace::http {

// What all handles of a loop have in common.
struct EasySettings {
  ClientOptions options;
  std::string ca_file;  // PEM; "" leaves libcurl's own
  bool proxy_from_environment = false;
  CURLSH* share = nullptr;  // TLS sessions
  curl_opensocket_callback open_socket = nullptr;
  curl_closesocket_callback close_socket = nullptr;
  void* loop = nullptr;  // the callbacks' first argument

  // From the options and the environment: the first CA bundle that is there, whether a proxy is set.
  static EasySettings resolve(const ClientOptions& options);
};

class Easy {
 public:
  // Errors: resource_exhausted.
  [[nodiscard]] static Result<std::unique_ptr<Easy>> open(const Curl& curl, const EasySettings& settings);
  ~Easy();
  Easy(const Easy&) = delete;
  Easy& operator=(const Easy&) = delete;

  CURL* handle() const { return handle_; }
  // The exchange stays where it is until release().
  void prepare(Exchange& exchange);
  Exchange* exchange() const { return exchange_; }
  void release() { exchange_ = nullptr; }

  // Bytes sent and received for the exchange so far.
  int64_t moved_bytes() const;
  // What `code`, with which the transfer ended, means for the exchange. REQUIRES: not CURLE_OK.
  Error error(CURLcode code) const;

  // The Easy of a handle that open() made.
  static Easy& of(const Curl& curl, CURL* handle);

 private:
  Easy(const Curl& curl, const EasySettings& settings) : curl_(curl), settings_(settings) {}
  template <class T>
  void set(CURLoption option, T value);
  void set_for_all();
  void set_headers();

  static size_t on_header(char* data, size_t size, size_t count, void* self);
  static size_t on_body(char* data, size_t size, size_t count, void* self);
  static size_t on_send(char* data, size_t size, size_t count, void* self);
  static int on_rewind(void* self, curl_off_t offset, int origin);

  const Curl& curl_;
  const EasySettings& settings_;
  CURL* handle_ = nullptr;
  Exchange* exchange_ = nullptr;
  std::vector<std::string> header_texts_;
  std::vector<curl_slist> headers_;
  std::array<char, CURL_ERROR_SIZE> error_text_{};
};

}  // namespace millrace::http
