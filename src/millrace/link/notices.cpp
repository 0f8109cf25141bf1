// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/notices.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/json_members.h"
#include "millrace/http/uri_encode.h"

namespace millrace::link {

namespace {

using NoticeJson = nlohmann::json;

// Ceph 16 leaves the pluses of the form in which a topic's secret came to it.
bool is_secret(std::string_view given, std::string secret) {
  if (given == secret) return true;
  std::replace(secret.begin(), secret.end(), ' ', '+');
  return given == secret;
}

}  // namespace

Result<std::vector<Notice>> parse_notices(std::string_view message) {
  const NoticeJson whole = NoticeJson::parse(message, nullptr, false);
  if (!whole.is_object()) return fail(ErrorCode::kCorruption, "a notice is no JSON object");
  // SNS wraps the records of S3 in a string.
  if (const std::string wrapped = text_or_empty(whole, "Message"); !wrapped.empty()) return parse_notices(wrapped);
  std::vector<Notice> notices;
  const NoticeJson* records = member(whole, "Records");
  if (records == nullptr || !records->is_array()) {
    if (text_or_empty(whole, "Event") == "s3:TestEvent") return notices;
    return fail(ErrorCode::kCorruption, "a notice has no Records");
  }
  for (const NoticeJson& record : *records) {
    const NoticeJson* const s3 = member(record, "s3");
    const NoticeJson* const bucket = s3 != nullptr ? member(*s3, "bucket") : nullptr;
    const NoticeJson* const object = s3 != nullptr ? member(*s3, "object") : nullptr;
    if (bucket == nullptr || object == nullptr || !bucket->is_object() || !object->is_object())
      return fail(ErrorCode::kCorruption, "a record names no object");
    std::string key = text_or_empty(*object, "key");
    if (text_or_empty(record, "eventSource") == "aws:s3") key = http::form_decode(key);
    notices.push_back({text_or_empty(*bucket, "name"), std::move(key), text_or_empty(record, "opaqueData")});
  }
  return notices;
}

std::pair<std::string, std::string> bucket_and_prefix(std::string_view url) {
  constexpr std::string_view kScheme = "s3://";
  if (!url.starts_with(kScheme)) return {};
  url.remove_prefix(kScheme.size());
  const size_t slash = std::min(url.find('/'), url.size());
  std::string prefix(url.substr(std::min(slash + 1, url.size())));
  if (!prefix.empty()) prefix += '/';
  return {std::string(url.substr(0, slash)), std::move(prefix)};
}

void NoticeBoard::subscribe(std::string bucket, std::string prefix,
                            std::function<void(const std::string& path)> on_path) {
  const MutexLock lock(mutex_);
  subscribers_.push_back({std::move(bucket), std::move(prefix), std::move(on_path)});
}

void NoticeBoard::post(const Notice& notice) {
  const MutexLock lock(mutex_);
  for (const Subscriber& each : subscribers_) {
    if (each.bucket != notice.bucket || !notice.key.starts_with(each.prefix)) continue;
    each.on_path(notice.key.substr(each.prefix.size()));
  }
}

Result<std::unique_ptr<http::Listener>> listen_for_notices(const std::string& address, const std::string& secret,
                                                           NoticeBoard& board) {
  const auto told = std::make_shared<std::atomic<bool>>(false);
  const auto handler = [secret, told, &board](const http::Received& received) -> http::Answer {
    if (received.method != "POST") return {.status = 405, .body = "notices come by POST\n"};
    const auto notices = parse_notices(received.body);
    if (!notices) return {.status = 400, .body = notices.error().message() + "\n"};
    for (const Notice& notice : *notices) {
      if (secret.empty() || is_secret(notice.secret, secret)) continue;
      if (!told->exchange(true)) {
        log(LogLevel::kWarning, "a notice of bucket {} came with {} secret and is refused, as all such are",
            notice.bucket, notice.secret.empty() ? "no" : "another");
      }
      return {.status = 403, .body = "a notice without the secret\n"};
    }
    for (const Notice& notice : *notices) board.post(notice);
    return {};
  };
  return http::Listener::open(address, handler, {.thread_name = "mr-notices"});
}

namespace {

// Why the message must stay in the queue; empty when it was posted.
std::string why_kept(const SqsMessage& message, const std::set<std::string>& buckets, NoticeBoard& board) {
  const auto notices = parse_notices(message.body);
  if (!notices) return "a message of the queue is no notice of S3 (" + notices.error().message() + ")";
  for (const Notice& notice : *notices) {
    if (!buckets.contains(notice.bucket)) {
      return "a message of the queue is of the bucket " + notice.bucket + ", which no link here has";
    }
  }
  for (const Notice& notice : *notices) board.post(notice);
  return "";
}

}  // namespace

void read_queue(SqsQueue& queue, const std::set<std::string>& buckets, NoticeBoard& board,
                const std::function<void(const std::string&)>& on_note, const std::stop_token& stop) {
  constexpr std::chrono::seconds kWait(20);
  constexpr std::chrono::milliseconds kFirstPause(1'000), kLongestPause(60'000);
  std::chrono::milliseconds pause = kFirstPause;
  std::string told;
  bool told_kept = false;
  while (!stop.stop_requested()) {
    const auto messages = queue.receive(kWait, stop);
    std::vector<SqsMessage> posted;
    std::string kept;
    if (messages) {
      for (const SqsMessage& each : *messages) {
        const std::string why = why_kept(each, buckets, board);
        why.empty() ? posted.push_back(each) : void(kept = why);
      }
    }
    const Status done = messages ? queue.remove(posted, stop) : tl::unexpected<Error>(messages.error());
    if (stop.stop_requested()) return;
    if (!kept.empty() && !std::exchange(told_kept, true)) {
      on_note(kept + "; such messages stay in the queue: give the link a queue of its own");
    }
    if (done) {
      pause = kFirstPause;
      told.clear();
      continue;
    }
    if (const std::string text = done.error().to_string(); text != told) {
      told = text;
      on_note(text + "; sweeps go on, and the queue is tried again");
    }
    if (!sleep_until(Clock::now() + pause, stop)) return;
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace millrace::link
