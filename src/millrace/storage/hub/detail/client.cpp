// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/hub/detail/client.h"

#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/metrics.h"
#include "millrace/base/thread/answer.h"

namespace millrace::hub {
namespace {

constexpr int64_t kBodyLimitBytes = 64 << 20;   // a page of 1,000 paths takes less than 1 MB
constexpr std::chrono::seconds kWorthALine{5};  // longer pauses get a log line

// A key that is equal for equal options.
std::string identity(const HubOptions& options) {
  return fmt::format("{} {} {} {} {} {} {}", options.endpoint, options.token, options.tries,
                     options.first_pause.count(), options.timeout.count(), options.longest_asked_pause.count(),
                     options.client.ca_file);
}

}  // namespace

struct Client::Call {
  Question question;
  Done done;
  std::string url;
  std::optional<http::Response> hub;
  int tries = 0;  // of this URL
  int redirects = 0;
  Clock::time_point begun = Clock::now();
  Clock::time_point not_before{};
};

Client::Client(const HubOptions& options)
    : options_(options), origin_(web::origin_of(options.endpoint)), http_(options.client) {}

Result<Client*> Client::find(const HubOptions& options) {
  RETURN_IF_ERROR(with_context(http::check_request({.url = options.endpoint}), "the Hub's endpoint (HF_ENDPOINT)"));
  static auto& clients = *new std::vector<std::pair<std::string, std::unique_ptr<Client>>>;
  static auto& mutex = *new Mutex;
  MutexLock lock(mutex);
  const std::string wanted = identity(options);
  for (const auto& [name, client] : clients) {
    if (name == wanted) return client.get();
  }
  clients.emplace_back(wanted, std::unique_ptr<Client>(new Client(options)));
  return clients.back().second.get();
}

void Client::start(Question question, Done done) {
  auto call = std::make_shared<Call>();
  call->url = question.url;
  call->question = std::move(question);
  call->done = std::move(done);
  send(call);
}

void Client::send(const std::shared_ptr<Call>& call) {
  web::count_try(++call->tries);
  const Question& question = call->question;
  const Clock::time_point held{Clock::duration(held_until_.load())};
  http::Request request{.method = question.method,
                        .url = call->url,
                        .headers = question.headers,
                        .out = question.out,
                        .body_limit_bytes = kBodyLimitBytes,
                        .not_before = std::max(call->not_before, held),
                        .deadline = question.deadline,
                        .stop = question.stop};
  // Sizes and hashes describe the unencoded bytes.
  request.headers.emplace_back("Accept-Encoding: identity");
  if (!options_.token.empty() && is_at_endpoint(call->url)) {
    request.headers.push_back("Authorization: Bearer " + options_.token);
  }
  options_.set_times(request);
  http_.start(std::move(request), [this, call](Result<http::Response> answer) { take(call, std::move(answer)); });
}

void Client::take(const std::shared_ptr<Call>& call, Result<http::Response> answer) {
  log(LogLevel::kDebug, "{} {} at {}: {}, try {}", http::method_name(call->question.method), call->question.name,
      web::origin_of(call->url), answer ? std::to_string(answer->status) : answer.error().to_string(), call->tries);
  if (web::may_pass(answer) && try_again(call, answer)) return;
  if (!answer) {
    if (call->tries > 1) answer.error().add_context(fmt::format("after {} tries", call->tries));
    return call->done(with_context(Result<Answer>(tl::unexpected(std::move(answer).error())), call->question.name));
  }
  process_metrics().add(Metric::kReceivedBytes, answer->received_bytes + std::ssize(answer->body));
  const bool is_redirect = answer->status / 100 == 3 && answer->status != 304;
  if (is_redirect && call->question.follows) return follow(call, *std::move(answer));
  call->done(Answer{*std::move(answer), std::move(call->url), std::move(call->hub)});
}

bool Client::try_again(const std::shared_ptr<Call>& call, const Result<http::Response>& answer) {
  const auto again = web::next_try(options_, call->tries, call->begun, answer);
  if (answer && again) hold(*answer, *again);
  if (!again || *again >= call->question.deadline || call->question.stop.stop_requested()) return false;
  call->not_before = *again;
  send(call);
  return true;
}

// The Hub limits the rate of all requests together: others would be refused as well, and refused ones count.
void Client::hold(const http::Response& response, Clock::time_point until) {
  const auto pause = web::asked_pause(response);
  if (pause.count() == 0) return;
  process_metrics().add(Metric::kSlowDowns, 1);
  const Clock::rep wanted = until.time_since_epoch().count();
  Clock::rep held = held_until_.load();
  while (held < wanted && !held_until_.compare_exchange_weak(held, wanted)) {
  }
  if (held < Clock::now().time_since_epoch().count() && pause >= kWorthALine) {
    log(LogLevel::kWarning, "{} limits the rate of requests and asks for a pause of {} s", origin_, pause.count());
  }
}

void Client::follow(const std::shared_ptr<Call>& call, http::Response response) {
  auto target = web::redirect_target(call->url, response, call->question.name);
  if (!target) return call->done(tl::unexpected(std::move(target).error()));
  if (++call->redirects > web::kMostRedirects) {
    return call->done(
        fail(ErrorCode::kUnavailable, "read {}: more than {} redirects", call->question.name, web::kMostRedirects));
  }
  if (is_at_endpoint(call->url)) call->hub = std::move(response);
  call->url = *std::move(target);
  call->tries = 0;
  call->not_before = {};
  send(call);
}

Result<Answer> Client::fetch(Question question) {
  return wait_for_answer<Result<Answer>>([&](auto done) { start(std::move(question), done); });
}

}  // namespace millrace::hub
