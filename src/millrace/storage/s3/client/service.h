// SPDX-License-Identifier: Apache-2.0
#pragma once

// One S3 endpoint as this process talks to it: requests are signed, sent, tried again, and held back together when the
// server says that it has too much to do. Shared by all buckets and all users in the process. Thread-safe.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/per_process.h"
#include "millrace/http/http.h"
#include "millrace/storage/s3/auth/credentials.h"
#include "millrace/storage/s3/client/concurrency_limiter.h"
#include "millrace/storage/s3/client/request_hedger.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/s3.h"

namespace millrace::s3 {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Request {
  http::Method method = http::Method::kGet;
  std::string bucket;
  std::string key;  // empty: the bucket itself
  Pairs query;      // not encoded
  Pairs headers;    // beside those that every request has
  std::span<const std::byte> body;
  const FileRange* file = nullptr;    // the body, instead of `body`
  Progress* file_progress = nullptr;  // as of http::Request
  std::span<std::byte> out;
  std::shared_ptr<const void> keep;  // what `body` and `out` lie in, if nobody else keeps it
  bool may_fail_late = false;        // a 200 may hold an <Error> in its body (complete, copy)
  std::stop_token stop;
  Clock::time_point deadline = Clock::time_point::max();

  int64_t body_bytes() const { return file != nullptr ? file->size() : std::ssize(body); }
};

struct Answer {
  http::Response response;
  int tries = 1;  // more than one: an earlier try may have had its effect all the same
};

class Service : public std::enable_shared_from_this<Service> {
 public:
  // The one of this process for these options. Errors: invalid_argument (an endpoint that is no URL).
  [[nodiscard]] static Result<std::shared_ptr<Service>> find(const S3Options& options);

  // Any final answer, whatever its status; `done` runs on a thread of the transport, must be brief and must not wait.
  // Errors: those of the transport and unavailable, when trying again did not help; permission_denied (no credentials).
  using Done = std::function<void(Result<Answer>)>;
  void start(Request request, Done done);
  [[nodiscard]] Result<Answer> fetch(Request request);

  // Nothing where no GET is to be asked twice: by the user's wish, or because the server has enough to do.
  std::shared_ptr<RequestHedger> stragglers();
  // How many requests are missing until `wanted` are under way; none where each counts, because the user limits them or
  // the server has enough to do.
  int missing_requests(int wanted) const;
  // "https://bucket.s3.eu-central-1.amazonaws.com", for messages of set-up.
  std::string bucket_url(const std::string& bucket) const;

 private:
  struct Call;
  struct Process;  // what a fork does not inherit
  explicit Service(S3Options options);

  bool is_held_back() const;  // the server said lately that it has too much to do
  // For as long as a request was tried nobody had an answer, nor since: further ones are tried once.
  bool is_away() const { return gave_up_.load() > answered_.load(); }
  void launch(const std::shared_ptr<Call>& call);
  void send(const std::shared_ptr<Call>& call);
  static void log_try(const Call& call, const Result<http::Response>& result);
  void finish(const std::shared_ptr<Call>& call, Result<http::Response> result);
  void end(const std::shared_ptr<Call>& call, Result<Answer> result);
  // When to try again, if that may help; learns from the answer what it says of us all (region, clock, load).
  std::optional<Clock::duration> wait_before_retry(Call& call, const Result<http::Response>& result);
  bool learn_region(Call& call, const http::Response& response, const ErrorResponse& answer);
  bool learn_clock(Call& call, const http::Response& response, const ErrorResponse& answer);
  bool renew_credentials(Call& call, const ErrorResponse& answer);
  [[nodiscard]] Result<http::Request> sign(Call& call);

  const S3Options options_;
  std::string scheme_, authority_;
  CredentialsProvider credentials_;
  PerProcess<Process> process_;
  std::atomic<bool> has_credentials_{false};          // asking for them will not take long
  std::atomic<int64_t> clock_ahead_s_{0};             // of the server's clock before ours
  std::atomic<Clock::rep> answered_{0}, gave_up_{0};  // when that was last
  mutable Mutex mutex_;
  std::map<std::string, std::string> regions_ GUARDED_BY(mutex_);  // of buckets that are not where they were looked for
};

}  // namespace millrace::s3
