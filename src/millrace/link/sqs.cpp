// SPDX-License-Identifier: Apache-2.0
// The JSON protocol of SQS (Amazon SQS API Reference, "Making Query API requests using AWS JSON protocol").
#include "millrace/link/sqs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/aws/credentials.h"
#include "millrace/aws/requests.h"
#include "millrace/base/text/json_members.h"
#include "millrace/http/http.h"

namespace millrace::link {
namespace {

using SqsJson = nlohmann::json;

constexpr int kMostMessages = 10;  // of one request, as SQS allows
constexpr int kHiddenFor_s = 60;   // for the caller to remove them
constexpr std::chrono::seconds kMostWait(20);
constexpr std::chrono::seconds kGrace(15);  // beyond the wait that the queue was asked for

// "com.amazonaws.sqs#QueueDoesNotExist" and older names of the same.
ErrorCode code_of_refusal(int status, const std::string& type) {
  if (type.find("NonExistentQueue") != type.npos || type.find("QueueDoesNotExist") != type.npos) {
    return ErrorCode::kNotFound;
  }
  if (status == 429 || status >= 500 || type.find("Throttl") != type.npos) return ErrorCode::kUnavailable;
  return status == 401 || status == 403 ? ErrorCode::kPermissionDenied : ErrorCode::kInvalidArgument;
}

}  // namespace

// "sqs.REGION.amazonaws.com", and the older "REGION.queue.amazonaws.com".
std::string sqs_region(std::string_view host) {
  if (host.find(".amazonaws.") == host.npos) return "";
  const size_t dot = host.find('.');
  if (host.starts_with("sqs.")) return std::string(host.substr(dot + 1, host.find('.', dot + 1) - dot - 1));
  return std::string(host.substr(dot).starts_with(".queue.") ? host.substr(0, dot) : "");
}

struct SqsQueue::Impl {
  std::string url, host, region;
  aws::CredentialsProvider credentials;
  http::Client http;

  explicit Impl(const http::ClientOptions& client) : http(client) {}

  // The answer to an action, as JSON.
  Result<SqsJson> ask(const char* action, const SqsJson& asked, std::chrono::seconds most,
                      const std::stop_token& stop) {
    const std::string body = asked.dump(), hash = aws::sha256_hex(body);
    const std::vector<aws::Field> headers{{"Content-Type", "application/x-amz-json-1.0"},
                                          {"X-Amz-Target", std::string("AmazonSQS.") + action}};
    for (bool refreshed = false;; refreshed = true) {
      ASSIGN_OR_RETURN(const aws::Credentials own, credentials.get());
      http::Request request;
      request.method = http::Method::kPost;
      request.url = url.substr(0, url.find('/', url.find("://") + 3)) + "/";
      request.body = std::as_bytes(std::span(body));
      request.stall_timeout = most + kGrace;
      request.slow_after = {};
      request.stop = stop;
      aws::add_signed_headers(own,
                              {.method = "POST",
                               .host = host,
                               .path = "/",
                               .query = {},
                               .headers = headers,
                               .payload_hash = hash,
                               .time = std::chrono::system_clock::now(),
                               .region = region,
                               .service = "sqs"},
                              request);
      ASSIGN_OR_RETURN(const http::Response response, http.fetch(std::move(request)));
      SqsJson answer = SqsJson::parse(response.body, nullptr, false);
      if (response.status == 200 && answer.is_object()) return answer;
      const std::string type = text_or_empty(answer, "__type");
      if (aws::is_expired_token(type) && !refreshed) {
        credentials.refused(own);
        continue;
      }
      if (response.status == 200) {
        return fail(ErrorCode::kUnavailable, "{} of {}: the answer is not of SQS", action, url);
      }
      std::string words = type.substr(type.find('#') + 1);
      for (const char* name : {"message", "Message"}) {
        if (member(answer, name) != nullptr) words += ": " + aws::quotable(text_or_empty(answer, name));
      }
      return fail(code_of_refusal(response.status, type), "{} of {}: HTTP status {} {}", action, url, response.status,
                  words);
    }
  }
};

SqsQueue::SqsQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SqsQueue::~SqsQueue() = default;

Result<std::unique_ptr<SqsQueue>> SqsQueue::open(const std::string& url) {
  const size_t host = url.find("://");
  const size_t path = host == url.npos ? url.npos : url.find('/', host + 3);
  const bool legal = (url.starts_with("https://") || url.starts_with("http://")) && path != url.npos &&
                     path > host + 3 && path + 1 < url.size() && url.find_first_of("@?# ") == url.npos;
  if (!legal) {
    return fail(ErrorCode::kInvalidArgument,
                "\"{}\" is no URL of a queue: https://sqs.REGION.amazonaws.com/ACCOUNT/NAME is one",
                http::without_secrets(url));
  }
  ASSIGN_OR_RETURN(const aws::Config config, aws::load_config(aws::process_environment()));
  const std::string region = config.region();
  if (!region.empty()) RETURN_IF_ERROR(aws::check_region(region));
  auto impl = std::make_unique<Impl>(http::ClientOptions{.max_connections = 2, .ca_file = config.ca_bundle()});
  impl->url = url;
  impl->host = aws::host_header(url);
  impl->region = sqs_region(impl->host);
  if (impl->region.empty()) impl->region = region.empty() ? "us-east-1" : region;
  return std::unique_ptr<SqsQueue>(new SqsQueue(std::move(impl)));
}

Result<std::vector<SqsMessage>> SqsQueue::receive(std::chrono::seconds most, const std::stop_token& stop) {
  most = std::clamp(most, std::chrono::seconds(0), kMostWait);
  const SqsJson asked{{"QueueUrl", impl_->url},
                      {"MaxNumberOfMessages", kMostMessages},
                      {"WaitTimeSeconds", most.count()},
                      {"VisibilityTimeout", kHiddenFor_s}};
  ASSIGN_OR_RETURN(const SqsJson answer, impl_->ask("ReceiveMessage", asked, most, stop));
  std::vector<SqsMessage> messages;
  const SqsJson* found = member(answer, "Messages");
  if (found == nullptr || !found->is_array()) return messages;
  for (const SqsJson& each : *found) {
    if (each.is_object()) messages.push_back({text_or_empty(each, "Body"), text_or_empty(each, "ReceiptHandle")});
  }
  return messages;
}

Status SqsQueue::remove(const std::vector<SqsMessage>& messages, const std::stop_token& stop) {
  for (size_t begin = 0; begin < messages.size(); begin += kMostMessages) {
    SqsJson entries = SqsJson::array();
    for (size_t i = begin; i < std::min(messages.size(), begin + kMostMessages); ++i) {
      entries.push_back({{"Id", std::to_string(i)}, {"ReceiptHandle", messages[i].handle}});
    }
    const SqsJson asked{{"QueueUrl", impl_->url}, {"Entries", std::move(entries)}};
    ASSIGN_OR_RETURN(const SqsJson answer, impl_->ask("DeleteMessageBatch", asked, {}, stop));
    const SqsJson* failed = member(answer, "Failed");
    if (failed != nullptr && failed->is_array() && !failed->empty()) {
      return fail(ErrorCode::kUnavailable, "{} kept {} messages that were to be removed: {}", impl_->url,
                  failed->size(), aws::quotable(text_or_empty(failed->front(), "Message")));
    }
  }
  return {};
}

}  // namespace millrace::link
