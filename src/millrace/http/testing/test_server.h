// SPDX-License-Identifier: Apache-2.0
#pragma once

// An HTTP/1.1 server for tests that answers what a function says, also what no good server would (link
// millrace_storage_testing). One thread a connection; the function is called from those threads. Thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::http {

struct ReceivedRequest {
  std::string method;
  std::string target;                                        // as it came: path and query
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  int connection = 0;  // counted from 0, over the server's life
  int request = 0;     // of the connection, counted from 0

  // The value of the first header of this name (lower case); "" when there is none.
  std::string_view header(std::string_view name) const;
};

struct Reply {
  int status = 200;
  std::vector<std::string> headers;  // "Name: value"; the length is the server's
  std::string body;
  enum class Length {
    kKnown,    // Content-Length
    kChunked,  // with one trailer, "x-trailer: end"
    kNone,     // neither: the connection's end is the body's end
  };
  Length length = Length::kKnown;
  int64_t announced = -1;             // another Content-Length than the body's
  std::string before;                 // sent before the head as it is, such as an interim answer
  std::chrono::milliseconds delay{};  // before the first byte
  bool silent = false;                // no answer, until the client goes
  int64_t cut_after = -1;             // closes the connection after this many bytes of the body; 0: after the head
  bool no_head = false;               // with cut_after: closes it without having sent anything
  bool reset = false;                 // with cut_after: by a reset
  int64_t stall_after = -1;           // sends no more after this many bytes of the body, until the client closes
  int64_t trickle_bytes = 0;          // when set: sends pieces of this many bytes, with a pause after each
  std::chrono::milliseconds trickle_pause{};
  bool close = false;  // ends the connection, and says so, after the answer
};

struct TestServerOptions {
  bool tls = false;  // with a certificate for 127.0.0.1 (and no name) that it signed itself
  // Asked when the head has come; an answer is sent without waiting for the body.
  std::function<std::optional<Reply>(const ReceivedRequest&)> early;
};

class TestServer {
 public:
  using Handler = std::function<Reply(const ReceivedRequest&)>;
  explicit TestServer(Handler handler, TestServerOptions options = {});
  ~TestServer();  // closes every connection
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  int port() const;
  // "http://127.0.0.1:PORT" + path, or https.
  std::string url(std::string_view path) const;
  // With tls: the server's certificate as PEM.
  const std::string& certificate() const;
  int connections() const;  // accepted so far
  int requests() const;     // received so far
  int open_connections() const;
  // Closes what is open, as a server does with connections that it finds idle for too long.
  void close_connections();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "Range: bytes=2-5" of `content` as a server answers it: 206 with Content-Range, or the whole with 200, or 416.
Reply serve_range(const ReceivedRequest& request, std::string_view content);

}  // namespace millrace::http
