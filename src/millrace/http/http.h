// SPDX-License-Identifier: Apache-2.0
#pragma once

// The HTTP transport: requests go in, whole answers come out. The caller interprets the answers. libcurl, opened at
// run time on first use, makes the connections (names, proxies, TLS). The HTTP/1.1 on them is Millrace's own. Each
// thread serves many connections. Bodies move directly from and to the caller's memory, or from a file (sendfile). The
// transport repeats a request in one case only: the server closed a kept connection without a byte of answer, and the
// request has no body or was not sent whole. It follows no redirect and logs no header (headers may hold secrets).

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/io/local_file.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::http {

enum class Method { kGet, kHead, kPut, kPost, kDelete };
std::string_view method_name(Method method);  // "GET"

// The lowest rate in bytes per second, sent and received together. It is a thousandth of a slow link (8 Mbit/s), so a
// slower transfer is stuck.
inline constexpr int64_t kLowestRate = 1 << 10;

// Returns a URL for messages: without user name, password and query, which may be a signature.
std::string without_secrets(std::string_view url);

struct Request {
  Method method = Method::kGet;
  std::string url;                    // absolute and percent-encoded by the caller; sent unchanged
  std::vector<std::string> headers;   // "Name: value"; the client sets Content-Length
  std::span<const std::byte> body;    // for PUT and POST
  const FileRange* file = nullptr;    // the body, instead of `body`
  Progress* file_progress = nullptr;  // counts bytes as they are sent; subtracts them unless the answer is 2xx
  std::span<std::byte> out;           // receives the body of a 200 or 206; if empty, Response::body does
  int64_t body_limit_bytes = 8 << 20;
  Clock::time_point not_before{};  // starts no earlier; holds no thread or connection until then
  Clock::time_point deadline = Clock::time_point::max();
  std::chrono::milliseconds stall_timeout{20'000};  // gives up when no byte moved for this long; 0: never
  // Gives up when, after this time, fewer than kLowestRate bytes moved for each further second; 0: never.
  std::chrono::milliseconds slow_after{30'000};
  bool direct = false;  // bypasses the proxy that the environment names
  std::stop_token stop;
  // `body`, `file` and `out` must live until the answer.
};

// Checks a request. Errors: invalid_argument (no absolute http or https URL, a user name in it, a header with a line
// end).
[[nodiscard]] Status check_request(const Request& request);

using Time = std::chrono::sys_time<std::chrono::nanoseconds>;
// Returns the time `seconds` after 1970; the epoch for a time that a Time cannot hold (before 1678, after 2261).
Time time_of(int64_t seconds);
// Parses "Sat, 21 Nov 2026 11:33:55 GMT" (RFC 9110, 5.6.7). Returns the epoch for any other text.
Time parse_time(std::string_view text);

// The Content-Range of a 206 or 416 (RFC 9110, 14.4): "bytes 5-9/100", "bytes */100". A '*' or a missing header leaves
// the value empty.
struct ContentRange {
  std::optional<int64_t> first, last, total;
};

struct Response {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  int64_t received_bytes = 0;  // bytes received into Request::out

  // Returns the value of the first header with this name (lower case); "" when there is none.
  std::string_view header(std::string_view name) const;
  ContentRange content_range() const;
  // Returns the pause that the server requests (Retry-After, RFC 9110, 10.2.3); 0 when it requests none.
  std::chrono::seconds retry_after() const;
};

struct ClientOptions {
  int threads = 1;
  int max_connections = 64;  // for each thread; further requests wait for a connection
  std::chrono::milliseconds connect_timeout{5'000};
  std::string ca_file;     // PEM; "": SSL_CERT_FILE, or the first bundle at the places that distributions use
  std::string user_agent;  // "" for "millrace/VERSION"
};

// Errors of a request. Each names the method and the URL without its query:
//   unavailable       no connection, reset, or cut before the end: may be tried again
//   timeout           the stall timeout, a rate below kLowestRate, or the deadline
//   permission_denied the server's certificate is not trusted, or a proxy refuses to lead there
//   cancelled         the stop token, or the client was dropped
//   corruption        a body longer than `out`, a file that became shorter than it was
//   resource_exhausted  a body longer than body_limit_bytes
//   unsupported       libcurl is not installed, or the server speaks something else: TLS on a port for http, or none on
//                     one for https, or HTTP/2 only
//   invalid_argument  no http(s) URL, a user name in it, a header with a line end
// Thread-safe. After fork the child makes its own connections and threads; requests of the parent stay with the parent.
class Client {
 public:
  explicit Client(ClientOptions options = {});
  ~Client();  // cancels requests and waits for their `done`. REQUIRES: not called from a `done`
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  using Done = std::function<void(Result<Response>)>;
  // Starts a request without blocking. `done` is called once, on a thread of the client. It must return quickly and
  // must not wait. It may start further requests.
  void start(Request request, Done done);
  // Waits for the answer. REQUIRES: not called from a `done`.
  [[nodiscard]] Result<Response> fetch(Request request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::http
