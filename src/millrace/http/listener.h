// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small HTTP/1.1 server that publishes metrics and receives notices of a bucket. It serves one request per
// connection and one connection at a time, for a few seconds each. No TLS. Thread-safe.

#include <functional>
#include <memory>
#include <string>

#include "millrace/base/status.h"

namespace millrace::http {

struct Received {
  std::string method;  // "GET"
  std::string target;  // "/metrics?x=1", as sent
  std::string body;
};

struct Answer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

struct ListenerOptions {
  int64_t body_limit_bytes = 1 << 20;  // limit of a request's body; a longer one gets a 413
  std::string thread_name = "mr-listen";
};

class Listener {
 public:
  // Opens a listener. `address`: "HOST:PORT", "[::1]:PORT" or "PORT" (of 127.0.0.1); port 0 takes a free one.
  // `handler` runs on the listener's thread. Errors: invalid_argument (an unknown host), already_exists (the port is
  // taken), permission_denied.
  [[nodiscard]] static Result<std::unique_ptr<Listener>> open(const std::string& address,
                                                              std::function<Answer(const Received&)> handler,
                                                              const ListenerOptions& options = {});
  // Ends the current connection.
  ~Listener();

  // Returns the bound address: "127.0.0.1:41234".
  const std::string& bound() const;

 private:
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::http
