// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decides when a request to a web server is retried, and where redirects lead. Pure functions, except for the clock
// and the metrics; thread-safe.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/http/http.h"
#include "millrace/storage/url_options.h"

namespace millrace::web {

struct RetryPolicy {
  int tries = 6;                               // tries of a request, including the first
  std::chrono::milliseconds first_pause{200};  // doubled for each further try, up to 10 s
  // No further try after this time. A request that is silent for this long fails.
  std::chrono::milliseconds timeout{120'000};
  // A pause of at most this length that a server requests (429, 503) is honoured, even beyond `timeout`. The Hub
  // counts requests in windows of 300 s.
  std::chrono::milliseconds longest_asked_pause{330'000};

  // Limits all of these times by the timeout of `options`, else by MILLRACE_TIMEOUT (whole seconds). Errors:
  // invalid_argument.
  [[nodiscard]] Status set_timeout(const UrlOptions& options);
  // Limits the silence of a request to `timeout`.
  void set_times(http::Request& request) const;
};

// Whether a later try may get another answer: no connection, a timeout, 408, 429, 5xx.
bool may_pass(const Result<http::Response>& answer);
// Returns the pause that the server requests with a 429 or 503: Retry-After, or RateLimit: "api";r=0;t=55. 0 when it
// requests none.
std::chrono::seconds asked_pause(const http::Response& response);
// Returns when to try again after `tries` tries since `begun`; nullopt if there is no further try. REQUIRES: may_pass.
std::optional<Clock::time_point> next_try(const RetryPolicy& policy, int tries, Clock::time_point begun,
                                          const Result<http::Response>& answer);
// Counts try number `tries` of a request in the process's metrics.
void count_try(int tries);

// Percent-encodes bytes that no URL may have. Existing encodings stay.
std::string encoded(std::string_view url);
// Returns "https://host:port" of a URL, in lower case.
std::string origin_of(std::string_view url);
inline constexpr int kMostRedirects = 10;  // browsers follow twice as many
// Returns the URL to which a redirect of a request to `url` leads. Errors: unsupported (no Location),
// permission_denied (from https to http). Messages begin with `name`.
[[nodiscard]] Result<std::string> redirect_target(std::string_view url, const http::Response& response,
                                                  std::string_view name);

}  // namespace millrace::web
