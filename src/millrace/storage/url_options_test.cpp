// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/url_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/aws/profile_file.h"
#include "millrace/aws/testing/aws_home.h"
#include "millrace/base/thread/sync.h"
#include "millrace/http/testing/test_server.h"
#include "millrace/storage/hub/hub.h"
#include "millrace/storage/s3/s3.h"
#include "millrace/storage/url.h"
#include "millrace/storage/web/http_storage.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// An S3 server whose only object holds the server's name. It remembers how requests were signed.
class OneObject {
 public:
  explicit OneObject(std::string name)
      : server_([this, name = std::move(name)](const http::ReceivedRequest& request) -> http::Reply {
          const MutexLock lock(mutex_);
          proofs_.emplace_back(request.header("authorization"));
          if (request.target.substr(0, request.target.find('?')) != "/bucket/key") return {.status = 404};
          http::Reply reply = http::serve_range(request, name);
          reply.headers.emplace_back("ETag: \"0123456789abcdef0123456789abcdef\"");
          return reply;
        }) {}

  UrlOptions options() const { return {.endpoint_url = server_.url(""), .timeout = std::chrono::seconds(20)}; }
  std::vector<std::string> proofs() {
    const MutexLock lock(mutex_);
    return std::exchange(proofs_, {});
  }

 private:
  Mutex mutex_;
  std::vector<std::string> proofs_ GUARDED_BY(mutex_);
  http::TestServer server_;
};

class UrlOptionsTest : public ::testing::Test {
 protected:
  UrlOptionsTest() {
    set("AWS_ACCESS_KEY_ID", "key");
    set("AWS_SECRET_ACCESS_KEY", "secret");
    // Nobody answers there: what needs it fails.
    set("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1");
  }
  ~UrlOptionsTest() override {
    set_process_url_options({});
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }

  void set(const std::string& name, const std::string& value) {
    const char* const there = std::getenv(name.c_str());
    before_.emplace(name, there != nullptr ? std::optional<std::string>(there) : std::nullopt);
    ::setenv(name.c_str(), value.c_str(), 1);
  }

  static std::string read(const Result<Location>& at) {
    EXPECT_TRUE(at) << at.error().to_string();
    const auto text = read_object(*at->storage, at->key);
    return text ? *text : text.error().to_string();
  }

  std::map<std::string, std::optional<std::string>> before_;  // of the environment
};

TEST_F(UrlOptionsTest, OneProcessReadsABucketOfTheSameNameAtTwoEndpoints) {
  OneObject first("first"), second("second");
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(read(open_url("s3://bucket/key", first.options())), "first");
    EXPECT_EQ(read(open_url("s3://bucket/key", second.options())), "second");
  }
  const auto at_first = *open_url("s3://bucket/key", first.options());
  const auto at_second = *open_url("s3://bucket/key", second.options());
  EXPECT_EQ(at_first.storage, open_url("s3://bucket/other", first.options())->storage);
  EXPECT_NE(at_first.storage, at_second.storage);
  EXPECT_NE(at_first.storage->identity(), at_second.storage->identity()) << "caches tell them apart";
  EXPECT_FALSE(at_first.storage->copies_from(*at_second.storage));

  const auto past_limits = *at_second.storage->without_limits();
  EXPECT_EQ(past_limits->identity(), at_second.storage->identity());
  EXPECT_EQ(*read_object(*past_limits, "key"), "second");
}

TEST_F(UrlOptionsTest, OneEndpointIsAskedWithAndWithoutCredentials) {
  OneObject server("object");
  UrlOptions anonymous = server.options();
  anonymous.anonymous = true;
  EXPECT_EQ(read(open_url("s3://bucket/key", anonymous)), "object");
  for (const std::string& proof : server.proofs()) EXPECT_THAT(proof, IsEmpty());
  EXPECT_EQ(read(open_url("s3://bucket/key", server.options())), "object");
  for (const std::string& proof : server.proofs()) EXPECT_THAT(proof, StartsWith("AWS4-HMAC-SHA256"));
}

TEST_F(UrlOptionsTest, AUrlWithoutOptionsHasThoseOfTheProcess) {
  OneObject first("first"), second("second");
  set_process_url_options(first.options());
  EXPECT_EQ(process_url_options(), first.options());
  EXPECT_EQ(read(open_url("s3://bucket/key")), "first");
  EXPECT_EQ(read(open_url("s3://bucket/key", second.options())), "second");
  set_process_url_options(second.options());
  EXPECT_EQ(read(open_url("s3://bucket/key")), "second");
  set_process_url_options({});
  EXPECT_THAT(open_url("s3://bucket/key")->storage->identity(), HasSubstr("127.0.0.1:1/"));
}

TEST_F(UrlOptionsTest, WhatIsLeftOpenIsAsTheEnvironmentSays) {
  set("HF_HUB_OFFLINE", "0");
  set("MILLRACE_TIMEOUT", "7");
  set("MILLRACE_S3_ANONYMOUS", "1");
  set("MILLRACE_S3_BYTES_PER_SECOND", "100MB");
  set("MILLRACE_S3_REQUESTS_PER_SECOND", "50");
  set("MILLRACE_S3_SHARE", "2");
  S3Options options = S3Options::from({}).value();
  EXPECT_EQ(options.endpoint_url, "http://127.0.0.1:1");
  EXPECT_TRUE(options.anonymous);
  EXPECT_EQ(options.timeout, std::chrono::seconds(7));
  EXPECT_EQ(options.bytes_per_second, 50e6);
  EXPECT_EQ(options.requests_per_second, 25);
  EXPECT_EQ(HttpStorageOptions::from({})->timeout, std::chrono::seconds(7));
  EXPECT_EQ(HubOptions::from({})->timeout, std::chrono::seconds(7));

  const UrlOptions asked{.endpoint_url = "http://here",
                         .anonymous = false,
                         .timeout = std::chrono::seconds(3),
                         .bytes_per_second = 8'000'000,
                         .processes = 4};
  options = S3Options::from(asked).value();
  EXPECT_EQ(options.endpoint_url, "http://here");
  EXPECT_FALSE(options.anonymous);
  EXPECT_EQ(options.timeout, std::chrono::seconds(3));
  EXPECT_EQ(options.bytes_per_second, 2e6);
  EXPECT_EQ(options.requests_per_second, 12.5) << "of the environment, and shared as the options say";
  EXPECT_EQ(HttpStorageOptions::from(asked)->timeout, std::chrono::seconds(3));
  EXPECT_EQ(HubOptions::from(asked)->timeout, std::chrono::seconds(3));
  EXPECT_EQ(S3Options::from({.bytes_per_second = 0})->bytes_per_second, 0) << "no limit";

  set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
  EXPECT_EQ(S3Options::from({})->endpoint_url, "");
  EXPECT_EQ(S3Options::from(asked)->endpoint_url, "http://here") << "asked for, not configured";
}

TEST_F(UrlOptionsTest, AnotherProcessIsToldByVariables) {
  EXPECT_THAT(UrlOptions().variables(), IsEmpty());
  const UrlOptions asked{.endpoint_url = "http://here",
                         .anonymous = true,
                         .timeout = std::chrono::seconds(3),
                         .bytes_per_second = 8'000'000,
                         .processes = 4};
  const std::vector<std::string> variables = asked.variables();
  EXPECT_THAT(variables, ElementsAre("AWS_ENDPOINT_URL_S3=http://here", "MILLRACE_S3_ANONYMOUS=1", "MILLRACE_TIMEOUT=3",
                                     "MILLRACE_S3_BYTES_PER_SECOND=8000000", "MILLRACE_S3_SHARE=4"));
  for (const std::string& each : variables) set(each.substr(0, each.find('=')), each.substr(each.find('=') + 1));
  EXPECT_EQ(S3Options::from({}).value(), S3Options::from(asked).value());
}

TEST_F(UrlOptionsTest, ManyBucketsParseTheProfilesOnce) {
  const aws::AwsHome home;
  for (const char* name : {".aws/config", ".aws/credentials"}) {
    home.write(name, "[default]\nregion = eu-west-1\n");
    std::filesystem::last_write_time(home.path(name),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  }
  set("AWS_CONFIG_FILE", home.path(".aws/config"));
  set("AWS_SHARED_CREDENTIALS_FILE", home.path(".aws/credentials"));
  const int64_t before = aws::profile_files_parsed();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(open_url(fmt::format("s3://bucket-{}/key", i)));
  EXPECT_EQ(aws::profile_files_parsed() - before, 2);
}

// A timeout belongs to a storage of the web too.
TEST_F(UrlOptionsTest, EqualOptionsOfTheWebShareAStorage) {
  const UrlOptions patient{.timeout = std::chrono::seconds(60)};
  const auto storage = open_url("http://127.0.0.1:1/a", patient)->storage;
  EXPECT_EQ(storage, open_url("http://127.0.0.1:1/b", patient)->storage);
  EXPECT_NE(storage, open_url("http://127.0.0.1:1/a", {.timeout = std::chrono::seconds(1)})->storage);
}

}  // namespace
}  // namespace millrace
