// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "millrace/http/http.h"

namespace millrace::aws {
namespace {

using std::chrono::sys_days;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string header(const Signed& made, std::string_view name) {
  for (const Field& field : made.headers) {
    if (field.first == name) return field.second;
  }
  return {};
}

// The last 64 characters of Authorization.
std::string signature(const Signed& made) {
  const std::string authorization = header(made, "Authorization");
  return authorization.size() < 64 ? authorization : authorization.substr(authorization.size() - 64);
}

// The four worked examples of "Authenticating Requests: Using the Authorization Header".
class S3Examples : public ::testing::Test {
 protected:
  const Credentials credentials_{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", {}};
  const std::string empty_ = sha256_hex("");

  SignInput input(std::string_view method, std::string_view path) const {
    return {.method = method,
            .host = "examplebucket.s3.amazonaws.com",
            .path = path,
            .query = {},
            .headers = {},
            .payload_hash = empty_,
            .time = sys_days(std::chrono::year(2013) / 5 / 24),
            .region = "us-east-1"};
  }
};

TEST_F(S3Examples, GetObject) {
  const std::vector<Field> headers{{"Range", "bytes=0-9"}};
  SignInput get = input("GET", "/test.txt");
  get.headers = headers;
  EXPECT_THAT(sign(credentials_, get).headers,
              ElementsAre(Pair("x-amz-date", "20130524T000000Z"), Pair("x-amz-content-sha256", empty_),
                          Pair("Authorization",
                               "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
                               "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature="
                               "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")));
}

TEST_F(S3Examples, PutObject) {
  const std::vector<Field> headers{{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                                   {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  const std::string path = uri_encode("/test$file.text", true);
  EXPECT_EQ(path, "/test%24file.text");
  const std::string hash = sha256_hex("Welcome to Amazon S3.");
  SignInput put = input("PUT", path);
  put.headers = headers;
  put.payload_hash = hash;
  EXPECT_EQ(signature(sign(credentials_, put)), "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST_F(S3Examples, GetBucketLifecycle) {
  const std::vector<Field> query{{"lifecycle", ""}};
  SignInput get = input("GET", "/");
  get.query = query;
  const Signed made = sign(credentials_, get);
  EXPECT_EQ(made.query, "lifecycle=");
  EXPECT_EQ(signature(made), "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_F(S3Examples, ListObjects) {
  const std::vector<Field> query{{"prefix", "J"}, {"max-keys", "2"}};
  SignInput get = input("GET", "/");
  get.query = query;
  const Signed made = sign(credentials_, get);
  EXPECT_EQ(made.query, "max-keys=2&prefix=J");
  EXPECT_EQ(signature(made), "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// The cases of AWS's test suite for Signature Version 4 whose rules are the same for S3.
TEST(SigV4, AwsTestSuite) {
  const Credentials plain{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "", {}};
  const std::string empty = sha256_hex("");
  const auto sign_suite = [&](std::string_view method, const std::vector<Field>& query,
                              const std::vector<Field>& headers) {
    return signature(sign(
        plain, {.method = method,
                .host = "example.amazonaws.com",
                .path = "/",
                .query = query,
                .headers = headers,
                .payload_hash = empty,
                .time = sys_days(std::chrono::year(2015) / 8 / 30) + std::chrono::hours(12) + std::chrono::minutes(36),
                .region = "us-east-1",
                .service = "service"}));
  };
  EXPECT_EQ(sign_suite("GET", {}, {}), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(sign_suite("POST", {}, {}), "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
  EXPECT_EQ(sign_suite("GET", {{"Param2", "value2"}, {"Param1", "value1"}}, {}),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  EXPECT_EQ(sign_suite("GET", {}, {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}}),
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea");
  EXPECT_EQ(sign_suite("GET", {}, {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}}),
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
}

TEST(SigV4, ASessionTokenIsSentAndSigned) {
  const Credentials credentials{"AK", "SK", "token", {}};
  const Signed made = sign(
      credentials, {.method = "GET", .host = "h", .path = "/", .query = {}, .headers = {}, .time = {}, .region = "r"});
  EXPECT_EQ(header(made, "x-amz-security-token"), "token");
  EXPECT_EQ(header(made, "x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
  EXPECT_THAT(header(made, "Authorization"),
              ::testing::HasSubstr("SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"));
}

TEST(SigV4, AnonymousRequestsGoUnsigned) {
  const std::vector<Field> query{{"prefix", "a b"}};
  const Signed made =
      sign({}, {.method = "GET", .host = "h", .path = "/", .query = query, .headers = {}, .time = {}, .region = "r"});
  EXPECT_THAT(made.headers, IsEmpty());
  EXPECT_EQ(made.query, "prefix=a%20b");
}

TEST(SigV4, EveryByteIsEncodedOrPlain) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const bool plain = byte < 128 && (std::isalnum(byte) != 0 || std::string_view("-_.~").find(c) != std::string::npos);
    char expected[4];
    std::snprintf(expected, sizeof expected, "%%%02X", static_cast<unsigned>(byte));
    EXPECT_EQ(uri_encode({&c, 1}, false), plain ? std::string(1, c) : std::string(expected)) << byte;
  }
  EXPECT_EQ(uri_encode("a/b c/ö", true), "a/b%20c/%C3%B6");
  EXPECT_EQ(uri_encode("a/b", false), "a%2Fb");
}

TEST(SigV4, HostHeader) {
  EXPECT_EQ(host_header("https://s3.eu-west-1.amazonaws.com/b/k"), "s3.eu-west-1.amazonaws.com");
  EXPECT_EQ(host_header("http://127.0.0.1:9000"), "127.0.0.1:9000");
  EXPECT_EQ(host_header("https://h:443?x"), "h");
  EXPECT_EQ(host_header("http://[::1]:80/"), "[::1]");
  EXPECT_EQ(host_header("http://h:443/"), "h:443");
  EXPECT_EQ(host_header("no url"), "");
}

TEST(SigV4, ThreadsWithDifferentKeysDoNotMix) {
  const auto of = [](int number) {
    const Credentials credentials{"AK", "secret" + std::to_string(number), "", {}};
    return signature(
        sign(credentials,
             {.method = "GET", .host = "h", .path = "/", .query = {}, .headers = {}, .time = {}, .region = "r"}));
  };
  std::vector<std::string> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(of(i));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 500; ++i)
        wrong[static_cast<size_t>(thread)] += of((thread + i) % 4) != expected[static_cast<size_t>((thread + i) % 4)];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

std::vector<Field> fields(const nlohmann::json& pairs) {
  std::vector<Field> out;
  for (const auto& pair : pairs) out.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  return out;
}

// Requests that botocore has signed: tests/e2e/test_sigv4.py writes the file and runs this.
TEST(SigV4, AsBotocoreSigns) {
  const char* path = std::getenv("MILLRACE_SIGV4_VECTORS");
  if (path == nullptr) GTEST_SKIP() << "run by tests/e2e/test_sigv4.py";
  std::ifstream file(path);
  const nlohmann::json vectors = nlohmann::json::parse(file);
  ASSERT_GT(vectors.size(), 0U);
  for (const auto& each : vectors) {
    SCOPED_TRACE(each.dump());
    const auto text = [&](const char* name) { return each[name].get<std::string>(); };
    const Credentials credentials{text("access_key"), text("secret_key"), text("token"), {}};
    const std::vector<Field> query = fields(each["query"]);
    const std::vector<Field> headers = fields(each["headers"]);
    const std::string method = text("method"), host = text("host"), key = uri_encode(text("path"), true),
                      hash = text("payload_hash"), region = text("region"), service = text("service");
    const Signed made =
        sign(credentials, {.method = method,
                           .host = host,
                           .path = key,
                           .query = query,
                           .headers = headers,
                           .payload_hash = hash,
                           .time = std::chrono::sys_seconds(std::chrono::seconds(each["time"].get<int64_t>())),
                           .region = region,
                           .service = service});
    EXPECT_EQ(key, text("encoded_path"));
    EXPECT_EQ(header(made, "Authorization"), text("authorization"));
    EXPECT_EQ(header(made, "x-amz-date"), text("date"));
    EXPECT_EQ(header(made, "x-amz-content-sha256"), service == "s3" ? hash : "");
    EXPECT_EQ(header(made, "x-amz-security-token"), text("token"));
  }
}

// One request to the server that the tests run with, path style.
class RealServer {
 public:
  explicit RealServer(std::string endpoint)
      : endpoint_(std::move(endpoint)),
        host_(endpoint_.substr(endpoint_.find("://") + 3)),
        credentials_{std::getenv("AWS_ACCESS_KEY_ID"), std::getenv("AWS_SECRET_ACCESS_KEY"), "", {}} {}

  http::Response send(http::Method method, std::string_view name, const std::string& path,
                      const std::vector<Field>& query, std::string_view body) {
    const std::string encoded = uri_encode(path, true);
    const std::string hash = sha256_hex(body);
    const std::vector<Field> headers{{"Content-Type", "text/plain"}};
    const Signed made = sign(credentials_, {.method = name,
                                            .host = host_,
                                            .path = encoded,
                                            .query = query,
                                            .headers = headers,
                                            .payload_hash = body.size() % 2 == 0 ? kUnsignedPayload : hash,
                                            .time = std::chrono::system_clock::now(),
                                            .region = std::getenv("AWS_REGION")});
    http::Request request;
    request.method = method;
    request.url = endpoint_ + encoded + (made.query.empty() ? "" : "?" + made.query);
    request.headers = {"Content-Type: text/plain"};
    for (const Field& field : made.headers) request.headers.push_back(field.first + ": " + field.second);
    request.body = std::as_bytes(std::span(body));
    const auto response = client_.fetch(request);
    EXPECT_TRUE(response) << response.error().to_string();
    return response ? *response : http::Response();
  }

 private:
  const std::string endpoint_, host_;
  const Credentials credentials_;
  http::Client client_;
};

TEST(SigV4, ARealServerAgrees) {
  const char* endpoint = std::getenv("MILLRACE_TEST_S3");
  if (endpoint == nullptr) GTEST_SKIP() << "MILLRACE_TEST_S3 names no server";
  RealServer server(endpoint);
  const std::string bucket = "/millrace-sigv4-" + std::to_string(std::random_device()());
  ASSERT_EQ(server.send(http::Method::kPut, "PUT", bucket, {}, "").status, 200);
  for (const char* key :
       {"plain", "a b+c%d&e=f?g#h", "ö/€/你/🏳", "!'()*;:@$,[]{}|\\^~`\"<>", "a//b/./c/../d/", "%2F%20"}) {
    SCOPED_TRACE(key);
    const std::string path = bucket + "/" + key;
    EXPECT_EQ(server.send(http::Method::kPut, "PUT", path, {}, "odd").status, 200);
    const auto got = server.send(http::Method::kGet, "GET", path, {}, "");
    EXPECT_EQ(got.status, 200) << got.body;
    EXPECT_EQ(got.body, "odd");
    const auto list =
        server.send(http::Method::kGet, "GET", bucket, {{"prefix", key}, {"list-type", "2"}, {"delimiter", "\t"}}, "");
    EXPECT_EQ(list.status, 200) << list.body;
    EXPECT_THAT(list.body, ::testing::HasSubstr("<KeyCount>1</KeyCount>"));
    EXPECT_EQ(server.send(http::Method::kDelete, "DELETE", path, {}, "").status, 204);
  }
  EXPECT_EQ(server.send(http::Method::kGet, "GET", bucket, {{"uploads", ""}}, "").status, 200);
  EXPECT_EQ(server.send(http::Method::kDelete, "DELETE", bucket, {}, "").status, 204);
}

}  // namespace
}  // namespace millrace::aws
