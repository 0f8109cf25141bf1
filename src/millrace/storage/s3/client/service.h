// SPDX-License-Identifier: Apache-2.0
#pragma once

// One S3 endpoint for this process: signs, sends and retries requests, and slows all of them down when the server is
// overloaded. All buckets and users of the process share it. Thread-safe.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/aws/credentials.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/http/http.h"
#include "millrace/storage/s3/client/concurrency_limiter.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/s3.h"

namespace millrace::s3 {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Request {
  http::Method method = http::Method::kGet;
  std::string bucket;
  std::string key;  // empty: the bucket itself
  Pairs query;      // not encoded
  Pairs headers;    // in addition to those of every request
  std::span<const std::byte> body;
  const FileRange* file = nullptr;    // the body, instead of `body`
  Progress* file_progress = nullptr;  // see http::Request::file_progress
  std::span<std::byte> out;
  std::shared_ptr<const void> keep;  // owns the memory of `body` and `out`, if the caller does not
  bool may_fail_late = false;        // a 200 may hold an <Error> in its body (complete, copy)
  std::stop_token stop;
  Clock::time_point deadline = Clock::time_point::max();

  int64_t body_bytes() const { return file != nullptr ? file->size() : std::ssize(body); }
};

struct Answer {
  http::Response response;
  int tries = 1;  // more than one: an earlier try may have had its effect
};

// How long a request waits after this many failed tries in a row: longer each time, half of it by chance.
Clock::duration wait_before(int failed_tries);

class Service : public std::enable_shared_from_this<Service> {
 public:
  // The Service of this process for these options. Errors: invalid_argument (an endpoint that is no URL).
  [[nodiscard]] static Result<std::shared_ptr<Service>> find(const S3Options& options);

  const S3Options& options() const { return options_; }

  // Sends the request and calls `done` with the final answer, whatever its status. `done` runs on a thread of the
  // transport, must return quickly and must not wait. Errors: those of the transport and unavailable, when retries did
  // not help; permission_denied (no credentials).
  using Done = std::function<void(Result<Answer>)>;
  void start(Request request, Done done);
  [[nodiscard]] Result<Answer> fetch(Request request);

  // How many requests are missing until `wanted` are under way; 0 when requests are scarce, because the user limits
  // them or the server is overloaded.
  int missing_requests(int wanted) const;
  // No request has had an answer for as long as one was tried, nor since: further requests are tried once.
  bool is_away() const { return gave_up_.load() > answered_.load(); }
  // "https://bucket.s3.eu-central-1.amazonaws.com", for messages about the set-up.
  std::string bucket_url(const std::string& bucket) const;

 private:
  struct Call;
  struct Process;  // not inherited by a fork
  explicit Service(S3Options options);

  bool is_held_back() const;  // the server said "slow down" lately
  void launch(const std::shared_ptr<Call>& call);
  void send(const std::shared_ptr<Call>& call, Result<aws::Credentials> credentials);
  static void log_try(const Call& call, const Result<http::Response>& result);
  void finish(const std::shared_ptr<Call>& call, Result<http::Response> result);
  void end(const std::shared_ptr<Call>& call, Result<Answer> result);
  // When to try again, if that may help. Learns from the answer what concerns all requests (region, clock, load).
  std::optional<Clock::duration> wait_before_retry(Call& call, const Result<http::Response>& result);
  bool learn_region(Call& call, const http::Response& response, const ErrorResponse& answer);
  bool learn_clock(Call& call, const http::Response& response, const ErrorResponse& answer);
  bool renew_credentials(Call& call, const ErrorResponse& answer);
  http::Request sign(const Call& call);

  const S3Options options_;
  std::string scheme_, authority_;
  aws::CredentialsProvider credentials_;
  PerProcess<Process> process_;
  std::atomic<int64_t> clock_ahead_s_{0};             // how far the server's clock is ahead of ours
  std::atomic<Clock::rep> answered_{0}, gave_up_{0};  // when that happened last
  mutable Mutex mutex_;
  // of buckets that are in another region than expected
  std::map<std::string, std::string> regions_ GUARDED_BY(mutex_);
};

}  // namespace millrace::s3
