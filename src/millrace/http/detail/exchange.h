// SPDX-License-Identifier: Apache-2.0
#pragma once

// One request and its answer so far. Makes the head of the request, keeps the headers of the final answer, and decides
// where the body of the answer goes and whether it fits. Does not know connections. Belongs to one thread at a time.

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/http/http.h"

namespace millrace::http {

class Connection;

// Returns "GET https://host/path" without user, query and fragment, which may hold secrets.
std::string describe(Method method, std::string_view url);
// Returns "https://host:port" of an absolute URL.
std::string_view origin_of(std::string_view url);
// Returns all of the request before its body, by RFC 9112. REQUIRES: check_request() succeeded.
std::string head_of(const Request& request, std::string_view user_agent);
// Returns the size of the request's body; 0 when the method has no body.
int64_t body_bytes(const Request& request);

enum class ExchangeState { kDelayed, kQueued, kActive };

class Exchange {
 public:
  Exchange(Request request, Client::Done done) : request_(std::move(request)), done_(std::move(done)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request& request() const { return request_; }
  // Calls `wake` on the thread that sets the stop token, until the exchange ends; at once when the token is already
  // set.
  void watch_stop(std::function<void()> wake);

  // Takes the first line of a head. Drops the headers of an earlier interim answer. The functions that return bool
  // return false when the exchange has failed; see failure().
  bool take_status(std::string_view line);
  // Takes any other line of the head, without its line end.
  bool take_header(std::string_view line);
  // Returns the answer so far. Valid until take_response().
  const Response& response() const { return response_; }
  // Call when the head has ended and a body of `announced_bytes` follows; -1: the length is unknown.
  bool begin_body(int64_t announced_bytes);
  bool take_body(std::string_view bytes);
  // Returns the memory into which the next bytes of the body may be received directly; empty when the body does not go
  // to Request::out.
  std::span<std::byte> room() const;
  void took_into_room(size_t size);
  // Fails the exchange, because the answer makes no sense or ended too early.
  bool give_up(ErrorCode code, std::string_view text);

  const std::optional<Error>& failure() const { return failure_; }
  // Returns the bytes of the answer so far, to detect stalls.
  int64_t taken_bytes() const { return taken_bytes_; }
  // Returns "12 of 100 bytes" of the body, for messages.
  std::string progress() const;

  // Call when `bytes` of Request::file have been sent in total.
  void count_sent(int64_t bytes);

  // Returns an Error with describe() and then `text`.
  Error error(ErrorCode code, std::string_view text, int sys_errno = 0) const;
  Response take_response();
  Client::Done take_done();

  // The following fields belong to the loop.
  ExchangeState state = ExchangeState::kQueued;
  std::list<std::unique_ptr<Exchange>>::iterator position;  // in the list of its state
  std::optional<Clock::time_point> timer;                   // when the loop looks at it again
  Clock::time_point begun{};                                // when it got a connection
  Clock::time_point moved{};                                // when moved_bytes last changed
  int64_t moved_bytes = 0;                                  // sent and received until then
  Connection* connection = nullptr;                         // set while active

 private:
  Request request_;
  Client::Done done_;
  Response response_;
  std::optional<std::stop_callback<std::function<void()>>> stop_callback_;
  std::optional<Error> failure_;
  bool into_out_ = false;
  int64_t announced_bytes_ = -1;
  int64_t body_bytes_ = 0;
  int64_t taken_bytes_ = 0;
  int64_t counted_bytes_ = 0;  // counted by Request::file_progress
  int heads_ = 0;
};

using Exchanges = std::list<std::unique_ptr<Exchange>>;

}  // namespace millrace::http
