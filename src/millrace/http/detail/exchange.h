// SPDX-License-Identifier: Apache-2.0
#pragma once

// One request and what has come of it so far: its head, the headers of the final answer, where the answer's body goes,
// and whether it may go there. Knows nothing of connections. Belongs to one thread at a time.

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

// "GET https://host/path": without user, query and fragment, which may hold secrets.
std::string describe(Method method, std::string_view url);
// "https://host:port" of such a URL.
std::string_view origin_of(std::string_view url);
// Everything before the body, as RFC 9112 wants it. REQUIRES: check_request() found nothing.
std::string head_of(const Request& request, std::string_view user_agent);
// 0 unless the method has one.
int64_t body_bytes(const Request& request);

class Exchange {
 public:
  enum class Place { kDelayed, kQueued, kActive };

  Exchange(Request request, Client::Done done) : request_(std::move(request)), done_(std::move(done)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request& request() const { return request_; }
  // Calls `wake` from whichever thread sets the stop token, until the exchange ends; at once when it is set already.
  void watch_stop(std::function<void()> wake);

  // The first line of a head; what an earlier one said, of an interim answer, is forgotten. False, as of all that
  // follow: give up, see failure().
  bool take_status(std::string_view line);
  // Any other line of the head, without its line end.
  bool take_header(std::string_view line);
  // What was taken, until take_response().
  const Response& response() const { return response_; }
  // The head has ended and a body follows, of so many bytes; -1: nobody says.
  bool begin_body(int64_t announced_bytes);
  bool take_body(std::string_view bytes);
  // Where the next bytes of the body go, for who puts them there himself; empty when not to Request::out.
  std::span<std::byte> room() const;
  void took_into_room(size_t size);
  // What came makes no sense, or ended too early.
  bool give_up(ErrorCode code, std::string_view text);

  const std::optional<Error>& failure() const { return failure_; }
  // Bytes of the answer so far, to see whether anything moves.
  int64_t taken_bytes() const { return taken_bytes_; }
  // Body bytes so far of how many, as in "12 of 100 bytes"; for messages.
  std::string progress() const;

  // So many bytes of Request::file have gone.
  void count_sent(int64_t bytes);

  // An Error that begins with describe(), then `text`.
  Error error(ErrorCode code, std::string_view text, int sys_errno = 0) const;
  Response take_response();
  Client::Done take_done();

  // The loop's.
  Place place = Place::kQueued;
  std::list<std::unique_ptr<Exchange>>::iterator position;  // in the list of its place
  std::optional<Clock::time_point> timer;                   // when the loop looks at it again
  Clock::time_point begun{};                                // when it was given a connection
  Clock::time_point moved{};                                // when the last bytes were seen to have moved
  int64_t moved_bytes = 0;                                  // both ways, at that time
  Connection* connection = nullptr;                         // while active

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
  int64_t counted_bytes_ = 0;  // by Request::file_progress
  int heads_ = 0;
};

using Exchanges = std::list<std::unique_ptr<Exchange>>;

}  // namespace millrace::http
