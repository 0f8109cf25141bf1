// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the tests of the HTTP client: requests, and answers that are waited for.

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "millrace/http/http.h"
#include "millrace/http/testing/test_server.h"

namespace millrace::http {

struct Buffer {
  explicit Buffer(size_t size) : bytes(size, '.') {}
  std::span<std::byte> span() { return std::as_writable_bytes(std::span(bytes)); }
  std::string bytes;
};

inline Request get(std::string url) {
  return Request{.url = std::move(url)};
}

inline Request put(std::string url, std::string_view body) {
  return Request{.method = Method::kPut, .url = std::move(url), .body = std::as_bytes(std::span(body))};
}

inline TestServer::Handler always(Reply reply) {
  return [reply = std::move(reply)](const ReceivedRequest&) { return reply; };
}

// Answers to many requests, in the order in which they end.
class Answers {
 public:
  Client::Done next() {
    return [this](Result<Response> result) {
      MutexLock lock(mutex_);
      results_.push_back(std::move(result));
      changed_.notify_all();
    };
  }
  size_t count() {
    MutexLock lock(mutex_);
    return results_.size();
  }
  std::vector<Result<Response>> wait(size_t count) {
    MutexLock lock(mutex_);
    while (results_.size() < count) changed_.wait(mutex_);
    return results_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Result<Response>> results_ GUARDED_BY(mutex_);
};

// Until it is so, at most ten seconds.
inline bool eventually(const std::function<bool()>& so) {
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (!so()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline std::chrono::milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
}

#define EXPECT_FAILS(result, error_code)                              \
  do {                                                                \
    const Result<Response> r = (result);                              \
    ASSERT_FALSE(r.has_value());                                      \
    EXPECT_EQ(r.error().code(), error_code) << r.error().to_string(); \
  } while (false)

}  // namespace millrace::http
