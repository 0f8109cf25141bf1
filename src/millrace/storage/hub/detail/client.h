// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sends requests to one Hub. Sends the token to the endpoint and to no other host, follows redirects, and retries if
// that may help. When the Hub asks for a pause, all requests wait. Thread-safe.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/http/http.h"
#include "millrace/storage/hub/hub.h"

namespace millrace::hub {

struct Question {
  http::Method method = http::Method::kGet;
  std::string url;                   // percent-encoded
  std::string name;                  // the object's name in messages
  std::vector<std::string> headers;  // in addition to those of every request
  std::span<std::byte> out;          // see http::Request::out
  bool follows = true;               // follow redirects
  std::stop_token stop;
  Clock::time_point deadline = Clock::time_point::max();
};

struct Answer {
  http::Response response;
  std::string url;                    // URL that gave `response`
  std::optional<http::Response> hub;  // the endpoint's last redirect on the way there
  // The endpoint's response about the file: its own answer, or its redirect to another host.
  const http::Response& of_hub() const { return hub ? *hub : response; }
};

class Client {
 public:
  // Returns the Client of this process for these options. It is never destroyed, because requests may be under way at
  // exit. Errors: invalid_argument (an endpoint that is no URL).
  [[nodiscard]] static Result<Client*> find(const HubOptions& options);

  const HubOptions& options() const { return options_; }
  bool is_at_endpoint(std::string_view url) const { return web::origin_of(url) == origin_; }

  // Starts a request. `done` is called once, on a thread of the transport, with the last answer of any status. It must
  // not wait. Errors: those of http::Client, permission_denied (redirected from https to http), unavailable
  // (redirected without end).
  using Done = std::function<void(Result<Answer>)>;
  void start(Question question, Done done);
  [[nodiscard]] Result<Answer> fetch(Question question);

 private:
  struct Call;
  explicit Client(const HubOptions& options);
  void send(const std::shared_ptr<Call>& call);
  void take(const std::shared_ptr<Call>& call, Result<http::Response> answer);
  bool try_again(const std::shared_ptr<Call>& call, const Result<http::Response>& answer);
  void follow(const std::shared_ptr<Call>& call, http::Response response);
  void hold(const http::Response& response, Clock::time_point until);

  const HubOptions options_;
  const std::string origin_;
  http::Client http_;
  std::atomic<Clock::rep> held_until_{0};
};

}  // namespace millrace::hub
