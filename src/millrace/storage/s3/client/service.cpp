// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/service.h"

#include <algorithm>

#include "millrace/aws/requests.h"
#include "millrace/base/io/open_files.h"
#include "millrace/base/log.h"
#include "millrace/base/metrics.h"
#include "millrace/base/thread/answer.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/s3/client/responses.h"

namespace millrace::s3 {
namespace {

// Between tries. A choice: the first is about one answer of S3, the longest lets a server that is overloaded recover.
constexpr std::chrono::milliseconds kFirstWait(50), kLongestWait(5'000);
// No try is silent for longer, whatever the timeout. http::Request bounds slow ones.
constexpr std::chrono::milliseconds kLongestSilence(20'000), kShortestSilence(100);
// A request that may fail late (complete, copy) may take the server this long, while it sends only signs of life.
constexpr std::chrono::minutes kLatest(30);
constexpr int64_t kClockTolerance_s = 60;  // far within the 15 minutes that AWS allows

bool is_overload(int status, std::string_view code) {
  return status == 503 || status == 429 || code == "SlowDown" || code == "RequestLimitExceeded";
}

bool may_pass(int status, std::string_view code) {
  return status == 500 || status == 502 || status == 504 || status == 408 || code == "RequestTimeout" ||
         code == "InternalError" || code == "OperationAborted" || code == "ConditionalRequestConflict" ||
         code == "BadDigest" || code == "XAmzContentChecksumMismatch" || code == "IncompleteBody";
}

// Whether the text may be part of a host name.
bool is_region(std::string_view text) {
  return !text.empty() && text.size() <= 63 && text.front() != '-' && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

// At AWS the host names the bucket, if the wildcard certificate covers that host.
bool fits_host(std::string_view bucket) {
  return bucket.find('.') == bucket.npos;
}

}  // namespace

Clock::duration wait_before(int failed_tries) {
  return backoff(failed_tries, kFirstWait, kLongestWait);
}

struct Service::Call {
  Request request;
  Done done;
  int tries = 0;
  int failures = 0;    // that count against max_tries
  int slow_downs = 0;  // that do not
  Clock::time_point not_before{};
  Clock::time_point begun{};     // its first try
  Clock::time_point sent{};      // its last one
  aws::Credentials credentials;  // of the last try
  bool refreshed = false;        // credentials, after the server refused them
  bool redirected = false;       // to the bucket's region
  bool skewed = false;           // the clock was corrected
};

struct Service::Process {
  Process(const http::ClientOptions& client, const RequestLimits& limits)
      : limiter(std::make_shared<ConcurrencyLimiter>(limits)), http(client) {}
  const std::shared_ptr<ConcurrencyLimiter> limiter;
  http::Client http;
};

namespace {

http::ClientOptions client_options(const S3Options& options) {
  http::ClientOptions client;
  client.threads = options.threads;
  // Open files are limited: connections leave room for the files of a copy.
  const int most = std::min(options.max_under_way, open_file_limit() / 4);
  client.max_connections = std::max(1, most / options.threads);
  client.ca_file = options.ca_file;
  client.connect_timeout = std::min(client.connect_timeout, options.timeout);
  return client;
}

RequestLimits request_limits(const S3Options& options) {
  return {options.max_under_way, options.requests_per_second, options.bytes_per_second};
}

}  // namespace

Service::Service(S3Options options)
    : options_(std::move(options)),
      credentials_({.anonymous = options_.anonymous}),
      process_([this] { return std::make_unique<Process>(client_options(options_), request_limits(options_)); }) {}

Result<std::shared_ptr<Service>> Service::find(const S3Options& options) {
  // Never destroyed: requests may be under way at exit.
  static auto& services = *new std::vector<std::shared_ptr<Service>>;
  static auto& mutex = *new Mutex;
  MutexLock lock(mutex);
  for (const auto& service : services) {
    if (service->options_ == options) return service;
  }
  std::shared_ptr<Service> service(new Service(options));
  const std::string_view url = options.endpoint_url;
  if (!url.empty()) {
    const size_t end = url.find("://");
    service->scheme_ = url.substr(0, std::min(end, url.size()));
    if (end == url.npos || (service->scheme_ != "http" && service->scheme_ != "https")) {
      return fail(ErrorCode::kInvalidArgument, "\"{}\" is no endpoint: http://host:port or https://host is one",
                  http::without_secrets(url));
    }
    service->authority_ = url.substr(end + 3);
    while (service->authority_.ends_with('/')) service->authority_.pop_back();
    if (service->authority_.empty() || service->authority_.find_first_of("/?#@ ") != std::string::npos) {
      return fail(ErrorCode::kInvalidArgument,
                  "\"{}\" is no endpoint: it must name a host, without a user before it or a path behind it",
                  http::without_secrets(url));
    }
  }
  services.push_back(service);
  log(LogLevel::kDebug, "S3 at {}, region {}{}", url.empty() ? "AWS" : http::without_secrets(url),
      options.region.empty() ? "us-east-1 until the server names another" : options.region,
      options.anonymous ? ", without credentials" : "");
  return service;
}

int Service::missing_requests(int wanted) const {
  const bool is_limited = options_.requests_per_second > 0;
  return is_limited || is_held_back() ? 0 : std::max(0, wanted - process_.get().limiter->under_way());
}

bool Service::is_held_back() const {
  return process_.get().limiter->window() < options_.max_under_way;
}

namespace {

struct BucketEndpoint {
  std::string scheme, host, path_prefix;  // of a bucket: "/bucket" in path style
};

BucketEndpoint endpoint_of(const S3Options& options, const std::string& scheme, const std::string& authority,
                           const std::string& bucket, const std::string& region) {
  if (authority.empty()) {
    const std::string host = fmt::format("s3.{}.{}", region, aws::dns_suffix(region));
    if (bucket.empty() || !fits_host(bucket)) return {"https", host, bucket.empty() ? "" : "/" + bucket};
    return {"https", bucket + "." + host, ""};
  }
  if (bucket.empty() || options.path_style || !fits_host(bucket))
    return {scheme, authority, bucket.empty() ? "" : "/" + bucket};
  return {scheme, bucket + "." + authority, ""};
}

}  // namespace

std::string Service::bucket_url(const std::string& bucket) const {
  const BucketEndpoint endpoint =
      endpoint_of(options_, scheme_, authority_, bucket, options_.region.empty() ? "us-east-1" : options_.region);
  return endpoint.scheme + "://" + endpoint.host + endpoint.path_prefix;
}

http::Request Service::sign(const Call& call) {
  const Request& request = call.request;
  std::string region = options_.region.empty() ? "us-east-1" : options_.region;
  {
    MutexLock lock(mutex_);
    if (const auto found = regions_.find(request.bucket); found != regions_.end()) region = found->second;
  }
  const BucketEndpoint endpoint = endpoint_of(options_, scheme_, authority_, request.bucket, region);
  std::string path = endpoint.path_prefix + "/" + http::uri_encode(request.key, true);
  http::Request out;
  out.method = request.method;
  out.body = request.body;
  out.file = request.file;
  out.file_progress = request.file_progress;
  out.out = request.out;
  out.stop = request.stop;
  out.deadline = request.deadline;
  out.not_before = call.not_before;
  const auto begins = std::max(call.sent, call.not_before);
  if (request.may_fail_late) {
    out.stall_timeout = options_.timeout;
    out.slow_after = {};
    out.deadline = std::min(request.deadline, begins + kLatest);
  } else {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(call.begun + options_.timeout - begins);
    out.stall_timeout = std::clamp(left, kShortestSilence, kLongestSilence);
    out.slow_after = std::min(out.slow_after, options_.timeout);
  }
  aws::SignInput input;
  input.method = http::method_name(request.method);
  input.host = endpoint.host;
  input.path = path;
  input.query = request.query;
  input.headers = request.headers;
  input.region = region;
  input.time = std::chrono::system_clock::now() + std::chrono::seconds(clock_ahead_s_.load());
  const std::string query = aws::add_signed_headers(call.credentials, input, out);
  out.url = endpoint.scheme + "://" + endpoint.host + path;
  if (!query.empty()) out.url += "?" + query;
  return out;
}

void Service::start(Request request, Done done) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request);
  call->done = std::move(done);
  const auto bytes = call->request.body_bytes() + std::ssize(call->request.out);
  process_.get().limiter->enter(bytes, [self = shared_from_this(), call](Clock::time_point not_before) {
    call->not_before = not_before;
    self->launch(call);
  });
}

// Signs just before sending.
void Service::launch(const std::shared_ptr<Call>& call) {
  credentials_.get([self = shared_from_this(), call](Result<aws::Credentials> credentials) {
    self->send(call, std::move(credentials));
  });
}

void Service::send(const std::shared_ptr<Call>& call, Result<aws::Credentials> credentials) {
  call->sent = Clock::now();
  if (++call->tries == 1) call->begun = call->sent;
  process_metrics().add(Metric::kRequests, 1);
  if (!credentials) return end(call, tl::unexpected(std::move(credentials).error()));
  call->credentials = *std::move(credentials);
  process_.get().http.start(sign(*call), [self = shared_from_this(), call](Result<http::Response> result) {
    self->finish(call, std::move(result));
  });
}

// Shows why a request hangs or is refused.
void Service::log_try(const Call& call, const Result<http::Response>& result) {
  const Request& request = call.request;
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - std::max(call.sent, call.not_before));
  log(LogLevel::kDebug, "{} s3://{}/{}{}: {} after {} ms, try {}", http::method_name(request.method), request.bucket,
      request.key, request.query.empty() ? "" : " (" + request.query.front().first + ")",
      result ? std::to_string(result->status) : result.error().to_string(), ms.count(), call.tries);
}

void Service::finish(const std::shared_ptr<Call>& call, Result<http::Response> result) {
  const Clock::time_point now = Clock::now();
  log_try(*call, result);
  const auto wait = wait_before_retry(*call, result);
  if (wait) {
    if (call->request.stop.stop_requested()) {
      return end(call, fail(ErrorCode::kCancelled, "{} s3://{}/{}: stopped", http::method_name(call->request.method),
                            call->request.bucket, call->request.key));
    }
    call->not_before = now + *wait;
    const Clock::time_point last = std::min(call->request.deadline, call->begun + options_.timeout);
    if (call->not_before < last && !is_away()) {
      process_metrics().add(Metric::kRetries, 1);
      return launch(call);
    }
  }
  const bool is_stopped = !result && result.error().code() == ErrorCode::kCancelled;
  if (result && result->status < 500 && result->status != 429) {
    answered_ = now.time_since_epoch().count();
  } else if (!is_stopped && answered_.load() < call->begun.time_since_epoch().count()) {
    gave_up_ = now.time_since_epoch().count();
  }
  if (!result) {
    if (call->tries > 1) result.error().add_context(fmt::format("after {} tries", call->tries));
    return end(call, tl::unexpected(std::move(result).error()));
  }
  process_metrics().add(Metric::kSentBytes, call->request.body_bytes());
  process_metrics().add(Metric::kReceivedBytes, result->received_bytes + static_cast<int64_t>(result->body.size()));
  end(call, Answer{std::move(*result), call->tries});
}

void Service::end(const std::shared_ptr<Call>& call, Result<Answer> result) {
  const Done done = std::move(call->done);
  const auto limiter = process_.get().limiter;
  done(std::move(result));
  limiter->leave();
}

std::optional<Clock::duration> Service::wait_before_retry(Call& call, const Result<http::Response>& result) {
  const auto again = [&]() -> std::optional<Clock::duration> {
    if (++call.failures >= options_.max_tries) return std::nullopt;
    const auto ours = wait_before(call.failures);
    return result ? std::max<Clock::duration>(ours, result->retry_after()) : ours;
  };
  if (!result) return millrace::may_pass(result.error()) ? again() : std::nullopt;
  const http::Response& response = *result;
  const bool ok = response.status / 100 == 2;
  if (ok && !(call.request.may_fail_late && response.body.find("<Error>") != std::string::npos)) {
    if (!call.request.out.empty() && response.received_bytes != std::ssize(call.request.out)) return again();
    return std::nullopt;
  }
  const ErrorResponse answer = parse_error(response.body);
  if (is_overload(response.status, answer.code)) {
    process_metrics().add(Metric::kSlowDowns, 1);
    process_.get().limiter->slow_down();
    // A server that answers is alive: no limit of tries.
    return std::max<Clock::duration>(wait_before(++call.slow_downs), response.retry_after());
  }
  if (may_pass(response.status, answer.code)) return again();
  if (learn_region(call, response, answer) || learn_clock(call, response, answer) || renew_credentials(call, answer))
    return Clock::duration(0);
  return std::nullopt;
}

// The bucket is in another region: 301, or 400 AuthorizationHeaderMalformed, with the right region.
bool Service::learn_region(Call& call, const http::Response& response, const ErrorResponse& answer) {
  std::string region(response.header("x-amz-bucket-region"));
  if (region.empty()) region = answer.region;
  const bool wrong = response.status == 301 || response.status == 307 ||
                     answer.code == "AuthorizationHeaderMalformed" ||
                     (response.status == 400 && call.request.method == http::Method::kHead);
  if (!wrong || call.redirected || !is_region(region)) return false;
  call.redirected = true;
  MutexLock lock(mutex_);
  regions_[call.request.bucket] = region;
  return true;
}

// Our clock is wrong: signatures are valid for 15 minutes around the server's time.
bool Service::learn_clock(Call& call, const http::Response& response, const ErrorResponse& answer) {
  // An answer to HEAD has no body with the reason.
  const bool skewed =
      answer.code == "RequestTimeTooSkewed" || (response.status == 403 && call.request.method == http::Method::kHead);
  const auto theirs = http::parse_time(response.header("date"));
  if (!skewed || call.skewed || theirs.time_since_epoch().count() == 0) return false;
  const auto ahead =
      std::chrono::duration_cast<std::chrono::seconds>(theirs - std::chrono::system_clock::now()).count();
  if (std::abs(ahead - clock_ahead_s_.load()) < kClockTolerance_s) return false;
  call.skewed = true;
  if (clock_ahead_s_.exchange(ahead) == 0) {
    log(LogLevel::kWarning, "the clock of {} is {} s {} this machine's; requests are signed by it",
        bucket_url(call.request.bucket), std::abs(ahead), ahead > 0 ? "ahead of" : "behind");
  }
  return true;
}

bool Service::renew_credentials(Call& call, const ErrorResponse& answer) {
  if (call.refreshed || !aws::is_expired_token(answer.code)) return false;
  call.refreshed = true;
  credentials_.refused(call.credentials);
  return true;
}

Result<Answer> Service::fetch(Request request) {
  return wait_for_answer<Result<Answer>>([&](auto done) { start(std::move(request), done); });
}

}  // namespace millrace::s3
