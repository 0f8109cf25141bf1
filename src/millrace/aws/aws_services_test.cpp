// SPDX-License-Identifier: Apache-2.0
// Credentials from services: SSO, a container's, an instance's.
#include "millrace/aws/testing/aws_services.h"

#include <sys/stat.h>

#include <fstream>
#include <iterator>

namespace millrace::aws {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Named by the SHA-1 of "corp" and of the start URL, as `aws sso login` names them.
constexpr const char* kSessionToken = ".aws/sso/cache/ee0bfd2552fbd840c02cc48b6e823320543c450f.json";
constexpr const char* kLegacyToken = ".aws/sso/cache/a51746d4aa793ae07b25e90c3a5db96fc7832bd7.json";
constexpr const char* kGoodToken = R"({"accessToken": "SeCrEt-access", "expiresAt": "2027-01-15T09:00:00Z"})";

class SsoTest : public CredentialsTest {
 protected:
  SsoTest()
      : service_(
            [this](const http::ReceivedRequest& request) { return request.target == "/token" ? oidc_ : portal_; }) {
    variables_["AWS_ENDPOINT_URL_SSO"] = service_.url();
    variables_["AWS_ENDPOINT_URL_SSO_OIDC"] = service_.url() + "/";
    portal_.body = R"({"roleCredentials": {"accessKeyId": "SSO", "secretAccessKey": "SeCrEt", "sessionToken": "SeCrEt2",
                       "expiration": 1800003600000}})";
    home_.write(".aws/config",
                "[default]\nsso_session = corp\nsso_account_id = 0123\nsso_role_name = a role\n"
                "[sso-session corp]\nsso_start_url = https://corp.awsapps.com/start\nsso_region = eu-west-1\n"
                "[profile legacy]\nsso_start_url = https://corp.awsapps.com/start\nsso_region = eu-west-1\n"
                "sso_account_id = 0123\nsso_role_name = a role\n"
                "[profile lost]\nsso_session = none\nsso_account_id = 1\nsso_role_name = r\n"
                "[profile half]\nsso_session = corp\nsso_account_id = 1\n");
  }

  http::Reply portal_, oidc_;
  FakeService service_;
};

TEST_F(SsoTest, TheTokenOfALoginGivesARole) {
  EXPECT_THAT(error(),
              AllOf(HasSubstr("there is no SSO token in"), HasSubstr("run `aws sso login --profile default`")));
  home_.write(kSessionToken, kGoodToken);
  const auto got = get();
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->access_key, "SSO");
  EXPECT_EQ(got->session_token, "SeCrEt2");
  EXPECT_EQ(got->expires, *parse_time(kInAnHour));
  const auto asked = service_.requests();
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].target, "/federation/credentials?role_name=a%20role&account_id=0123");
  EXPECT_EQ(asked[0].header("x-amz-sso_bearer_token"), "SeCrEt-access");
  home_.write(kLegacyToken, R"({"accessToken": "SeCrEt-access", "expiresAt": "2027-01-15T09:00:00UTC"})");
  EXPECT_EQ(key("legacy"), "SSO");
}

TEST_F(SsoTest, ATokenOfASessionIsRenewedAndKept) {
  home_.write(kSessionToken,
              R"({"accessToken": "SeCrEt-old", "expiresAt": "2027-01-15T08:00:10Z", "refreshToken": "SeCrEt-refresh",
                  "clientId": "SeCrEt-id", "clientSecret": "SeCrEt-client", "region": "eu-west-1", "other": [1]})");
  oidc_.body = R"({"accessToken": "SeCrEt-new", "expiresIn": 3600, "refreshToken": "SeCrEt-refresh2"})";
  EXPECT_EQ(key(), "SSO");
  const auto asked = service_.requests();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(nlohmann::json::parse(asked[0].body), nlohmann::json::parse(R"({"grantType": "refresh_token",
    "clientId": "SeCrEt-id", "clientSecret": "SeCrEt-client", "refreshToken": "SeCrEt-refresh"})"));
  EXPECT_EQ(asked[1].header("x-amz-sso_bearer_token"), "SeCrEt-new");
  std::ifstream file(home_.path(kSessionToken));
  const auto kept = nlohmann::json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
  EXPECT_EQ(kept["accessToken"], "SeCrEt-new");
  EXPECT_EQ(kept["refreshToken"], "SeCrEt-refresh2");
  EXPECT_EQ(kept["expiresAt"], "2027-01-15T09:00:00Z");
  EXPECT_EQ(kept["clientId"], "SeCrEt-id");
  EXPECT_EQ(kept["other"], nlohmann::json::array({1}));
  struct stat about{};
  stat(home_.path(kSessionToken).c_str(), &about);
  EXPECT_EQ(about.st_mode & 0777, 0600U);

  // A renewal that fails is no harm while the old token lives.
  oidc_ = {.status = 400, .body = "{}"};
  clock_.pass(std::chrono::minutes(58));
  portal_.body = R"({"roleCredentials": {"accessKeyId": "SSO2", "secretAccessKey": "SeCrEt", "sessionToken": "SeCrEt2",
                     "expiration": 1800009600000}})";
  EXPECT_EQ(key(), "SSO2");
  clock_.pass(std::chrono::minutes(3));
  EXPECT_THAT(error(), HasSubstr("the SSO token has expired: run `aws sso login --profile default`"));
}

TEST_F(SsoTest, WhatIsWrongIsSaid) {
  EXPECT_THAT(error("lost"), HasSubstr("has no [sso-session none]"));
  EXPECT_THAT(error("half"), HasSubstr("profile 'half' has no sso_role_name"));
  home_.write(kSessionToken, "SeCrEt");
  EXPECT_THAT(error(), HasSubstr("there is no SSO token in"));
  home_.write(kSessionToken, R"({"accessToken": "SeCrEt\r\nx", "expiresAt": "2027-01-15T09:00:00Z"})");
  EXPECT_THAT(error(), HasSubstr("is damaged"));
  home_.write(kSessionToken, kGoodToken);
  portal_ = {.status = 401, .body = R"({"message": "SeCrEt-access"})"};
  EXPECT_THAT(error(), HasSubstr("SSO no longer takes the token: run `aws sso login"));
  portal_ = {.status = 403, .body = R"({"message": "no access with SeCrEt-access"})"};
  EXPECT_THAT(error(), HasSubstr("SSO answers HTTP status 403 no access with ***"));
  portal_ = {.body = "[]"};
  EXPECT_THAT(error(), HasSubstr("SSO's answer has no roleCredentials"));
  portal_ = {.body = R"({"roleCredentials": {"accessKeyId": "a", "secretAccessKey": "SeCrEt", "expiration": 1e300}})"};
  EXPECT_THAT(error(), HasSubstr("expiration of SSO's answer is no time"));
  portal_ = {.body = R"({"roleCredentials": {"accessKeyId": "SeCrEt"}})"};
  EXPECT_THAT(error(), HasSubstr("SSO's answer has no secretAccessKey"));
}

// --- container

class ContainerTest : public CredentialsTest {
 protected:
  ContainerTest() : service_([this](const http::ReceivedRequest&) { return reply_; }) {
    reply_.body = json_answer("CONTAINER", kInAnHour);
  }

  http::Reply reply_;
  FakeService service_;
};

TEST_F(ContainerTest, GivesItsTaskCredentials) {
  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/credentials/id?x=1";
  CredentialsOptions with = options();
  EXPECT_EQ(with.container_host, "http://169.254.170.2");
  with.container_host = service_.url();
  const auto got = CredentialsProvider(with).get();
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->access_key, "CONTAINER");
  EXPECT_EQ(got->session_token, "SeCrEt-token-CONTAINER");
  EXPECT_EQ(service_.requests()[0].target, "/v2/credentials/id?x=1");
  EXPECT_EQ(service_.requests()[0].header("authorization"), "");
}

TEST_F(ContainerTest, AFullUrlWithATokenThatMayChange) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = service_.url() + "/creds";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "SeCrEt 1";
  EXPECT_EQ(key(), "CONTAINER");
  EXPECT_EQ(service_.requests().back().header("authorization"), "SeCrEt 1");
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = home_.path("token");
  EXPECT_THAT(error(), HasSubstr("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: no token in"));
  home_.write("token", "SeCrEt 2\n");
  EXPECT_EQ(key(), "CONTAINER");
  EXPECT_EQ(service_.requests().back().header("authorization"), "SeCrEt 2");
  home_.write("token", "SeCrEt 2\nx-other: 1\n");
  EXPECT_THAT(error(), HasSubstr("has more than one line"));
}

TEST_F(ContainerTest, ATokenGoesToNoStranger) {
  for (const char* url :
       {"http://example.com/x", "http://127.0.0.1@example.com/", "http://127.0.0.1:80@example.com/",
        "http://127.example.com/", "127.0.0.1/", "http://169.254.170.20/", "http://localhost.example.com/",
        "ftp://127.0.0.1/", "http:///x", "http://example.com#@127.0.0.1/", "http://example.com\\@127.0.0.1/"}) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    EXPECT_THAT(error(), HasSubstr("AWS_CONTAINER_CREDENTIALS_FULL_URI must be")) << url;
  }
}

TEST_F(ContainerTest, AFailureStopsTheSearchAndShowsNoPath) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = service_.url() + "/SeCrEt-id";
  reply_ = {.status = 403, .body = "SeCrEt"};
  EXPECT_THAT(error(), HasSubstr("the container's credential service answers HTTP status 403"));
  reply_ = {.body = "SeCrEt"};
  EXPECT_THAT(error(), HasSubstr("the container's answer is no JSON object"));
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1:1/SeCrEt-id";
  EXPECT_THAT(error(), HasSubstr("http://127.0.0.1:1***"));
  EXPECT_EQ(get().error().code(), ErrorCode::kUnavailable);
}

// --- instance

class InstanceTest : public CredentialsTest {
 protected:
  InstanceTest()
      : service_([this](const http::ReceivedRequest& request) -> http::Reply {
          if (request.target == "/latest/api/token") return token_;
          if (request.header("x-aws-ec2-metadata-token") != "SeCrEt-imds") return {.status = 401};
          if (request.target == "/latest/meta-data/iam/security-credentials/") return role_;
          if (request.target == "/latest/meta-data/iam/security-credentials/my-role") return credentials_;
          return {.status = 404};
        }) {
    variables_["AWS_EC2_METADATA_DISABLED"] = "false";
    variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = service_.url() + "/";
    variables_["AWS_METADATA_SERVICE_TIMEOUT"] = "60";  // the machine may be busy
    token_.body = "SeCrEt-imds";
    role_.body = "my-role\n";
    credentials_.body = json_answer("INSTANCE", kInAnHour);
  }

  http::Reply token_, role_, credentials_;
  FakeService service_;
};

TEST_F(InstanceTest, AsksForATokenThenTheRoleThenItsCredentials) {
  const auto got = get();
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->access_key, "INSTANCE");
  EXPECT_EQ(got->session_token, "SeCrEt-token-INSTANCE");
  EXPECT_EQ(got->expires, *parse_time(kInAnHour));
  const auto asked = service_.requests();
  ASSERT_EQ(asked.size(), 3U);
  EXPECT_EQ(asked[0].method, "PUT");
  EXPECT_EQ(asked[0].header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
}

TEST_F(InstanceTest, WithoutARoleOrAnAnswerThereIsNothing) {
  role_ = {.status = 404};
  EXPECT_THAT(error(), HasSubstr("instance: the instance has no role"));
  token_ = {.status = 403};
  EXPECT_THAT(error(), HasSubstr("answers HTTP status 403"));
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1";
  EXPECT_THAT(error(), HasSubstr("instance: no answer from http://127.0.0.1:1"));
  token_ = {.silent = true};
  variables_.erase("AWS_METADATA_SERVICE_TIMEOUT");
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = service_.url();
  const auto begin = Clock::now();
  EXPECT_THAT(error(), HasSubstr("instance: no answer from " + service_.url()));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
}

TEST_F(InstanceTest, GoesPastAProxy) {
  for (const char* name : {"http_proxy", "all_proxy"}) setenv(name, "http://127.0.0.1:1", 1);
  for (const char* name : {"no_proxy", "NO_PROXY"}) unsetenv(name);
  EXPECT_EQ(key(), "INSTANCE");
  // Other services are asked through it.
  home_.write(".aws/config",
              "[default]\nrole_arn = arn:r\nsource_profile = default\naws_access_key_id = K\n"
              "aws_secret_access_key = SeCrEt\n");
  variables_["AWS_ENDPOINT_URL_STS"] = service_.url();
  EXPECT_EQ(get().error().code(), ErrorCode::kUnavailable);
  for (const char* name : {"http_proxy", "all_proxy"}) unsetenv(name);
}

TEST_F(InstanceTest, CredentialsThatTheServiceCouldNotRenewLiveOn) {
  clock_.pass(std::chrono::hours(2));
  const auto got = get();
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->expires, clock_.now() + std::chrono::minutes(10));
}

TEST_F(InstanceTest, ARefusalIsSaid) {
  credentials_.body = R"({"Code": "AssumeRoleUnauthorizedAccess", "Message": "SeCrEt"})";
  EXPECT_THAT(error(), HasSubstr("AssumeRoleUnauthorizedAccess"));
  credentials_.body = "SeCrEt";
  EXPECT_THAT(error(), HasSubstr("the instance's answer is no JSON object"));
  credentials_ = {.status = 500};
  EXPECT_THAT(error(), HasSubstr("the instance's metadata service answers HTTP status 500"));
}

TEST(ParseTime, FormsInUse) {
  const auto expected = std::chrono::system_clock::time_point(std::chrono::seconds(1'800'003'600));
  for (const char* text : {"2027-01-15T09:00:00Z", "2027-01-15T09:00:00.123Z", "2027-01-15T09:00:00UTC",
                           "2027-01-15T10:30:00+01:30", "2027-01-15T02:00:00-0700", "2027-01-15 09:00:00"}) {
    EXPECT_EQ(parse_time(text), expected) << text;
  }
  EXPECT_EQ(parse_time("9999-12-31T23:59:59Z"), std::chrono::system_clock::time_point::max());
  EXPECT_EQ(parse_time("0001-01-01T00:00:00Z"), std::chrono::system_clock::time_point());
  for (const char* text : {"", "2027", "2027-02-30T00:00:00Z", "2027-01-15T24:00:00Z", "2027-01-15T09:00:00X",
                           "2027-01-15T09:00:00+", "2027-01-15T09:00:00+0100x", "x027-01-15T09:00:00Z"}) {
    EXPECT_EQ(parse_time(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace millrace::aws
