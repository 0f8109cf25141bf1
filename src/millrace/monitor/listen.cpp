// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/http/listener.h"
#include "millrace/monitor/sinks.h"

namespace millrace::monitor {

namespace {

class ListenSink final : public Sink {
 public:
  Status open(const std::string& address, std::string& bound) {
    ASSIGN_OR_RETURN(listener_,
                     http::Listener::open(address, [this](const http::Received& received) { return answer(received); },
                                          {.body_limit_bytes = 0, .thread_name = "mr-metrics"}));
    bound = listener_->bound();
    return {};
  }

  Status write(const Sample& sample) override {
    std::string text = prometheus_text(sample);
    const MutexLock lock(mutex_);
    text_ = std::move(text);
    return {};
  }

 private:
  http::Answer answer(const http::Received& received) {
    const auto refuse = [](int status, const char* text) { return http::Answer{.status = status, .body = text}; };
    if (received.method != "GET" && received.method != "HEAD") return refuse(405, "there is GET /metrics\n");
    if (received.target.substr(0, received.target.find('?')) != "/metrics") return refuse(404, "there is /metrics\n");
    const MutexLock lock(mutex_);
    if (text_.empty()) return refuse(503, "there is no sample yet\n");
    return {.status = 200, .type = "text/plain; version=0.0.4; charset=utf-8", .body = text_};
  }

  Mutex mutex_;
  std::string text_ GUARDED_BY(mutex_);
  std::unique_ptr<http::Listener> listener_;  // after what its thread uses
};

}  // namespace

Result<std::unique_ptr<Sink>> listen_sink(const std::string& address, std::string& bound) {
  auto sink = std::make_unique<ListenSink>();
  RETURN_IF_ERROR(sink->open(address, bound));
  return sink;
}

}  // namespace millrace::monitor
