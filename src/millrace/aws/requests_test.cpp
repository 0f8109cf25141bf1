// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace millrace::aws {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

TEST(SignedHeaders, AreThoseOfTheCallerAndTheProof) {
  const std::vector<Field> headers{{"Content-Type", "text/plain"}}, query{{"b", "2"}, {"a", "x y"}};
  const SignInput input{.method = "GET",
                        .host = "host",
                        .path = "/",
                        .query = query,
                        .headers = headers,
                        .time = std::chrono::system_clock::time_point(),
                        .region = "eu-west-1",
                        .service = "sqs"};
  http::Request request;
  EXPECT_EQ(add_signed_headers({"KEY", "SeCrEt", "token", {}}, input, request), "a=x%20y&b=2");
  EXPECT_THAT(request.headers,
              ElementsAre("Content-Type: text/plain", "x-amz-date: 19700101T000000Z", "x-amz-security-token: token",
                          StartsWith("Authorization: AWS4-HMAC-SHA256 Credential=KEY/19700101/eu-west-1/sqs/")));

  http::Request unsigned_request;
  EXPECT_EQ(add_signed_headers(Credentials(), input, unsigned_request), "a=x%20y&b=2");
  EXPECT_THAT(unsigned_request.headers, ElementsAre("Content-Type: text/plain"));
}

TEST(ExpiredTokens, AreWhatServicesCallThem) {
  for (const char* code : {"ExpiredToken", "ExpiredTokenException", "com.amazon.coral.service#ExpiredTokenException",
                           "TokenRefreshRequired"}) {
    EXPECT_TRUE(is_expired_token(code)) << code;
  }
  for (const char* code : {"", "AccessDenied", "InvalidToken"}) EXPECT_FALSE(is_expired_token(code)) << code;
}

TEST(Quotable, IsOneShortLineWithoutSecrets) {
  EXPECT_EQ(quotable("  said\nSeCrEt and \x01\xff ", {"SeCrEt", ""}), "said *** and  \xEF\xBF\xBD");
  const std::string cut = quotable(std::string(1000, 'x'));
  EXPECT_EQ(cut, std::string(400, 'x') + "...");
}

}  // namespace
}  // namespace millrace::aws
