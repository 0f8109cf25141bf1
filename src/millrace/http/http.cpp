// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/http.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <utility>

#include "millrace/base/thread/answer.h"
#include "millrace/base/thread/per_process.h"
#include "millrace/http/detail/loop.h"
#include "millrace/http/numbers.h"

namespace millrace::http {
struct Loops {
  explicit Loops(const ClientOptions& options) {
    const ConnectionSettings settings = ConnectionSettings::resolve(options);
    for (int i = 0; i < std::max(options.threads, 1); ++i) loops.push_back(std::make_unique<Loop>(settings));
  }
  // The first loop with the least load, so a light load stays on one thread.
  Loop& least_loaded() {
    return **std::min_element(loops.begin(), loops.end(),
                              [](const auto& a, const auto& b) { return a->load() < b->load(); });
  }
  std::vector<std::unique_ptr<Loop>> loops;
};

struct Client::Impl {
  explicit Impl(const ClientOptions& options) : loops([options] { return std::make_unique<Loops>(options); }) {}
  PerProcess<Loops> loops;
};

std::string_view method_name(Method method) {
  switch (method) {
    case Method::kGet:
      return "GET";
    case Method::kHead:
      return "HEAD";
    case Method::kPut:
      return "PUT";
    case Method::kPost:
      return "POST";
    case Method::kDelete:
      return "DELETE";
  }
  return "?";
}

std::string_view Response::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

ContentRange Response::content_range() const {
  std::string_view text = header("content-range");
  if (!text.starts_with("bytes ")) return {};
  text.remove_prefix(6);
  const size_t slash = text.find('/'), dash = text.find('-');
  if (slash == text.npos) return {};
  ContentRange range{.total = whole_number<int64_t>(text.substr(slash + 1))};
  if (dash >= slash) return range;
  range.first = whole_number<int64_t>(text.substr(0, dash));
  range.last = whole_number<int64_t>(text.substr(dash + 1, slash - dash - 1));
  return range;
}

std::chrono::seconds Response::retry_after() const {
  const std::string_view text = header("retry-after");
  if (const auto seconds = whole_number<int32_t>(text)) return std::chrono::seconds(*seconds);
  const Time until = parse_time(text);
  if (until.time_since_epoch().count() == 0) return {};
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(until - std::chrono::system_clock::now());
  return std::max(left, std::chrono::seconds(0));
}

Time time_of(int64_t seconds) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 1'000'000'000 - 1;
  return seconds < -kMost || seconds > kMost ? Time() : Time(std::chrono::seconds(seconds));
}

Time parse_time(std::string_view text) {
  std::tm parts{};
  const std::string copy(text);
  if (::strptime(copy.c_str(), "%a, %d %b %Y %H:%M:%S", &parts) == nullptr) return {};
  return time_of(::timegm(&parts));
}

Client::Client(ClientOptions options) {
  options.max_connections = std::max(options.max_connections, 1);
  impl_ = std::make_unique<Impl>(options);
}

Client::~Client() = default;

void Client::start(Request request, Done done) {
  impl_->loops.get().least_loaded().start(std::move(request), std::move(done));
}

Result<Response> Client::fetch(Request request) {
  return wait_for_answer<Result<Response>>([&](auto done) { start(std::move(request), done); });
}

}  // namespace millrace::http
