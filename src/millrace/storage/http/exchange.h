// SPDX-License-Identifier: Apache-2.0
#pragma once

// One request and what has come of it so far: the headers of the final answer, where its body goes, and whether it may
// go there. Knows nothing of libcurl. Belongs to one thread at a time.

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/storage/http/http.h"

namespace millrace::http {

// "GET https://host/path": without user, query and fragment, which may hold secrets.
std::string describe(Method method, std::string_view url);
std::string_view method_name(Method method);
// Errors: invalid_argument (no absolute http or https URL, a user in it, a header with a line end).
[[nodiscard]] Status check_request(const Request& request);

class Exchange {
 public:
  enum class Place { kDelayed, kQueued, kActive };

  Exchange(Request request, Client::Done done) : request_(std::move(request)), done_(std::move(done)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request& request() const { return request_; }
  // Calls `wake` from whichever thread sets the stop token, until the exchange ends; at once when it is set already.
  void watch_stop(std::function<void()> wake);

  // One line of the answer's head, with its line end. False: give up, see failure().
  bool take_header(std::string_view line);
  bool take_body(std::string_view bytes);
  // Copies what follows of the request's body; 0 at its end.
  size_t give_body(std::span<char> into);
  // Begins the body again, for a connection that turned out to be closed. False when the server may have acted on the
  // request already: it had all of it.
  bool rewind();

  // Why a take_ said no.
  const std::optional<Error>& failure() const { return failure_; }
  // Bytes of the answer so far, to see whether anything moves.
  int64_t taken_bytes() const { return taken_bytes_; }
  // Body bytes so far of how many, as in "12 of 100 bytes"; for messages.
  std::string progress() const;

  // An Error that begins with describe(), then `text`.
  Error error(ErrorCode code, std::string_view text, int sys_errno = 0) const;
  Response take_response();
  Client::Done take_done();

  // The loop's.
  Place place = Place::kQueued;
  std::list<std::unique_ptr<Exchange>>::iterator position;  // in the list of its place
  std::optional<Clock::time_point> timer;                   // when the loop looks at it again
  Clock::time_point moved{};                                // when the last bytes were seen to have moved
  int64_t moved_bytes = 0;                                  // both ways, at that time
  void* easy = nullptr;                                     // its handle while active

 private:
  bool give_up(ErrorCode code, std::string_view text);
  bool begin_body();

  Request request_;
  Client::Done done_;
  Response response_;
  std::optional<std::stop_callback<std::function<void()>>> stop_callback_;
  std::optional<Error> failure_;
  bool head_ended_ = false;
  bool body_began_ = false;
  bool into_out_ = false;
  int64_t announced_bytes_ = -1;  // Content-Length
  int64_t body_bytes_ = 0;
  int64_t taken_bytes_ = 0;
  size_t given_ = 0;
};

using Exchanges = std::list<std::unique_ptr<Exchange>>;

}  // namespace millrace::http
