// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small HTTP/1.1 server: publishes metrics, receives notices of a bucket. One request a connection, one connection at
// a time, a few seconds each; no TLS. Thread-safe.

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
  int64_t body_limit_bytes = 1 << 20;  // of a request; more is answered with 413
  std::string thread_name = "mr-listen";
};

class Listener {
 public:
  // `address`: "HOST:PORT", "[::1]:PORT" or "PORT" (of 127.0.0.1); port 0 takes a free one. `handler` runs on the
  // listener's thread. Errors: invalid_argument (an unknown host), already_exists (the port is taken),
  // permission_denied.
  [[nodiscard]] static Result<std::unique_ptr<Listener>> open(const std::string& address,
                                                              std::function<Answer(const Received&)> handler,
                                                              const ListenerOptions& options = {});
  // Ends the connection under way.
  ~Listener();

  // "127.0.0.1:41234"
  const std::string& bound() const;

 private:
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::http
