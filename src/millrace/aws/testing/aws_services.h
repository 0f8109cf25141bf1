// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests of credentials: services with the test's answers, a clock that the test moves, a private home folder.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "millrace/aws/credentials.h"
#include "millrace/aws/detail/providers.h"
#include "millrace/aws/testing/aws_home.h"
#include "millrace/base/thread/sync.h"
#include "millrace/http/testing/test_server.h"

namespace millrace::aws {

// Secrets of these tests hold this word, and no error may.
inline constexpr std::string_view kSecret = "SeCrEt";

struct Clockwork {
  std::atomic<int64_t> seconds{1'800'000'000};  // 2027-01-15T08:00:00Z
  std::chrono::system_clock::time_point now() const {
    return std::chrono::system_clock::time_point(std::chrono::seconds(seconds));
  }
  void pass(std::chrono::seconds time) { seconds += time.count(); }
};

inline std::string sts_answer(const std::string& action, const std::string& key, const std::string& expires) {
  return fmt::format(
      "<{0}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{0}Result><AssumedRoleUser><Arn>a</Arn>"
      "</AssumedRoleUser><Credentials><AccessKeyId>{1}</AccessKeyId><SecretAccessKey>SeCrEt-{1}</SecretAccessKey>"
      "<SessionToken>SeCrEt-token-{1}</SessionToken><Expiration>{2}</Expiration></Credentials></{0}Result>"
      "<ResponseMetadata/></{0}Response>",
      action, key, expires);
}

inline std::string sts_error(const std::string& code, const std::string& message) {
  return fmt::format(
      "<ErrorResponse><Error><Type>Sender</Type><Code>{}</Code><Message>{}</Message></Error></ErrorResponse>", code,
      message);
}

inline std::string json_answer(const std::string& key, const std::string& expires) {
  return nlohmann::json{{"Code", "Success"},
                        {"AccessKeyId", key},
                        {"SecretAccessKey", "SeCrEt-" + key},
                        {"Token", "SeCrEt-token-" + key},
                        {"Expiration", expires}}
      .dump();
}

inline constexpr const char* kInAnHour = "2027-01-15T09:00:00Z";

// A service that remembers what it was asked.
class FakeService {
 public:
  using Handler = std::function<http::Reply(const http::ReceivedRequest&)>;
  explicit FakeService(Handler handler)
      : server_([this, handler = std::move(handler)](const http::ReceivedRequest& request) {
          {
            const MutexLock lock(mutex_);
            requests_.push_back(request);
          }
          return handler(request);
        }) {}

  std::string url() const { return server_.url(""); }
  std::vector<http::ReceivedRequest> requests() {
    const MutexLock lock(mutex_);
    return requests_;
  }

 private:
  Mutex mutex_;
  std::vector<http::ReceivedRequest> requests_ GUARDED_BY(mutex_);
  http::TestServer server_;
};

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsOptions options() {
    CredentialsOptions options;
    options.environment = home_.environment();
    options.now = [this] { return clock_.now(); };
    return options;
  }

  [[nodiscard]] Result<Credentials> get(const std::string& profile = {}) {
    CredentialsOptions with = options();
    with.profile = profile;
    return CredentialsProvider(with).get();
  }

  std::string key(const std::string& profile = {}) {
    const auto got = get(profile);
    return got ? got->access_key : got.error().to_string();
  }

  // The text of an error, in which no secret may be.
  std::string error(const std::string& profile = {}) {
    const auto got = get(profile);
    EXPECT_FALSE(got);
    const std::string text = got ? "" : got.error().to_string();
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(std::string(kSecret))));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }

  // A program that prints this.
  std::string program(const std::string& name, const std::string& script) {
    home_.write(name, "#!/bin/sh\n" + script);
    chmod(home_.path(name).c_str(), 0700);
    return home_.path(name);
  }

  Clockwork clock_;
  AwsHome home_;
  std::map<std::string, std::string>& variables_ = home_.variables;
};

}  // namespace millrace::aws
