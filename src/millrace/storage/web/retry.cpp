// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/web/retry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "millrace/base/metrics.h"
#include "millrace/base/text/strings.h"
#include "millrace/http/numbers.h"
#include "millrace/storage/detail/backend.h"

namespace millrace::web {
namespace {

constexpr std::chrono::milliseconds kLongestPause{10'000};  // so that a server that is back is noticed soon

// The number behind "t=" of "\"api\";r=0;t=55": seconds until the window ends.
std::chrono::seconds rate_limit_reset(std::string_view text) {
  const size_t at = text.find(";t=");
  if (at == text.npos) return {};
  const std::string_view digits = text.substr(at + 3, text.find_first_of(";, ", at + 3) - at - 3);
  const auto seconds = http::whole_number<int32_t>(digits);
  return std::chrono::seconds(seconds ? *seconds + 1 : 0);
}

bool is_overload(int status) {
  return status == 429 || status == 503;
}

}  // namespace

Status RetryPolicy::set_timeout(const UrlOptions& options) {
  if (options.timeout) {
    timeout = longest_asked_pause = *options.timeout;
    return {};
  }
  const char* const text = std::getenv("MILLRACE_TIMEOUT");
  if (text == nullptr || *text == '\0') return {};
  const auto seconds = http::whole_number<int32_t>(text);
  if (!seconds || *seconds == 0) {
    return fail(ErrorCode::kInvalidArgument, "MILLRACE_TIMEOUT is \"{}\", not a whole number of seconds, 1 or more",
                text);
  }
  timeout = longest_asked_pause = std::chrono::seconds(*seconds);
  return {};
}

void RetryPolicy::set_times(http::Request& request) const {
  request.stall_timeout = std::min(request.stall_timeout, timeout);
  request.slow_after = std::min(request.slow_after, timeout);
}

bool may_pass(const Result<http::Response>& answer) {
  if (answer) return answer->status == 408 || answer->status == 429 || answer->status >= 500;
  return millrace::may_pass(answer.error());
}

std::chrono::seconds asked_pause(const http::Response& response) {
  if (!is_overload(response.status)) return {};
  const std::string_view limit = response.header("ratelimit");
  return limit.empty() ? response.retry_after() : std::max(rate_limit_reset(limit), response.retry_after());
}

std::optional<Clock::time_point> next_try(const RetryPolicy& policy, int tries, Clock::time_point begun,
                                          const Result<http::Response>& answer) {
  if (tries >= policy.tries) return std::nullopt;
  const Clock::time_point now = Clock::now();
  const auto ours = backoff(tries, policy.first_pause, kLongestPause);
  const auto asked = answer ? asked_pause(*answer) : std::chrono::seconds(0);
  const Clock::time_point next = now + std::max<Clock::duration>(ours, asked);
  const bool is_in_time = asked.count() > 0 ? asked <= policy.longest_asked_pause : next < begun + policy.timeout;
  return is_in_time ? std::optional(next) : std::nullopt;
}

void count_try(int tries) {
  process_metrics().add(Metric::kRequests, 1);
  if (tries > 1) process_metrics().add(Metric::kRetries, 1);
}

std::string encoded(std::string_view url) {
  std::string result;
  for (const char c : url) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte >= 0x7f || c == '"' || c == '<' || c == '>' || c == '#') {
      result += fmt::format("%{:02X}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

std::string origin_of(std::string_view url) {
  const size_t host = url.find("://");
  return lower_case(url.substr(0, host == url.npos ? url.npos : url.find_first_of("/?#", host + 3)));
}

Result<std::string> redirect_target(std::string_view url, const http::Response& response, std::string_view name) {
  const std::string location(response.header("location"));
  const size_t host = url.find("://") + 3;
  std::string next;
  if (location.starts_with("http://") || location.starts_with("https://")) {
    next = location;
  } else if (location.starts_with("//")) {
    next = std::string(url.substr(0, host - 2)) + location;
  } else if (location.starts_with("/")) {
    next = std::string(url.substr(0, url.find_first_of("/?", host))) + location;
  } else if (!location.empty()) {
    const std::string_view path = url.substr(0, url.find('?'));
    next = std::string(path.substr(0, path.rfind('/') + 1)) + location;
  }
  if (next.empty()) {
    return fail(ErrorCode::kUnsupported, "read {}: the server answered {} and does not say where to", name,
                response.status);
  }
  if (url.starts_with("https://") && !next.starts_with("https://")) {
    return fail(ErrorCode::kPermissionDenied, "read {}: redirected from https to http", name);
  }
  return encoded(next.substr(0, next.find('#')));
}

}  // namespace millrace::web
