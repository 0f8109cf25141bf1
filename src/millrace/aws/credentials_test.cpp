// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/testing/aws_services.h"

namespace millrace::aws {
namespace {

using std::chrono::system_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// --- environment

TEST_F(CredentialsTest, KeysOfTheEnvironmentComeFirst) {
  home_.write(".aws/credentials", "[default]\naws_access_key_id = FILE\naws_secret_access_key = SeCrEt\n");
  EXPECT_EQ(key(), "FILE");
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "SeCrEt";
  variables_["AWS_SESSION_TOKEN"] = "SeCrEt-token";
  const auto got = get();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->access_key, "ENV");
  EXPECT_EQ(got->secret_key, "SeCrEt");
  EXPECT_EQ(got->session_token, "SeCrEt-token");
  EXPECT_EQ(got->expires, system_clock::time_point::max());
  // A profile that the caller names wins over them.
  EXPECT_EQ(key("default"), "FILE");
}

TEST_F(CredentialsTest, HalfAPairIsAnErrorAndNotAnotherIdentity) {
  home_.write(".aws/credentials", "[default]\naws_access_key_id = FILE\naws_secret_access_key = SeCrEt\n");
  variables_["AWS_SECRET_ACCESS_KEY"] = "SeCrEt";
  EXPECT_THAT(error(), HasSubstr("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set"));
  variables_.erase("AWS_SECRET_ACCESS_KEY");
  home_.write(".aws/credentials", "[default]\naws_secret_access_key = SeCrEt\n");
  EXPECT_THAT(error(), HasSubstr("profile 'default': only one of aws_access_key_id and aws_secret_access_key is set"));
}

TEST_F(CredentialsTest, NothingFoundNamesEveryPlace) {
  const auto got = get();
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(got.error().to_string(), AllOf(HasSubstr("environment: AWS_ACCESS_KEY_ID is not set"),
                                             HasSubstr("web identity: AWS_WEB_IDENTITY_TOKEN_FILE is not set"),
                                             HasSubstr("profile: no 'default' in " + home_.path(".aws/config")),
                                             HasSubstr("container: AWS_CONTAINER_CREDENTIALS_FULL_URI is not set"),
                                             HasSubstr("instance: AWS_EC2_METADATA_DISABLED is set")));
}

TEST_F(CredentialsTest, AnonymousAsksNobody) {
  CredentialsOptions with = options();
  with.anonymous = true;
  const auto got = CredentialsProvider(with).get();
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->anonymous());
}

// --- STS

TEST_F(CredentialsTest, WebIdentity) {
  FakeService sts(
      [](const auto&) { return http::Reply{.body = sts_answer("AssumeRoleWithWebIdentity", "WEB", kInAnHour)}; });
  home_.write("token", "SeCrEt.jwt+/=\n");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = home_.path("token");
  variables_["AWS_ROLE_SESSION_NAME"] = "me";
  EXPECT_THAT(error(), HasSubstr("AWS_ROLE_ARN is not"));
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  variables_["AWS_ENDPOINT_URL_STS"] = sts.url();
  const auto got = get();
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->access_key, "WEB");
  EXPECT_EQ(got->secret_key, "SeCrEt-WEB");
  EXPECT_EQ(got->session_token, "SeCrEt-token-WEB");
  EXPECT_EQ(got->expires, *parse_time(kInAnHour));
  const auto asked = sts.requests();
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].method, "POST");
  EXPECT_EQ(asked[0].target, "/");
  EXPECT_EQ(asked[0].header("authorization"), "");
  EXPECT_EQ(asked[0].body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"
            "RoleSessionName=me&WebIdentityToken=SeCrEt.jwt%2B%2F%3D");
  // The same from a profile.
  for (const char* name : {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"}) variables_.erase(name);
  home_.write(".aws/config", "[default]\nrole_arn = arn:x\nweb_identity_token_file = " + home_.path("token") + "\n");
  EXPECT_EQ(key(), "WEB");
  home_.write("token", "");
  EXPECT_THAT(error(), HasSubstr("there is no token in"));
  home_.write(".aws/config", "[default]\nrole_arn = arn:x\nweb_identity_token_file = " + home_.path(".aws") + "\n");
  EXPECT_THAT(error(), HasSubstr("there is no token in"));  // a folder
}

TEST_F(CredentialsTest, WhatStsRefusesIsQuotedWithoutSecrets) {
  FakeService sts([](const auto&) {
    return http::Reply{.status = 400, .body = sts_error("InvalidIdentityToken", "no: SeCrEt.jwt\nis bad")};
  });
  home_.write("token", "SeCrEt.jwt");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = home_.path("token");
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  variables_["AWS_ENDPOINT_URL_STS"] = sts.url();
  EXPECT_THAT(error(), AllOf(StartsWith("credentials, web identity: AssumeRoleWithWebIdentity arn:aws:iam::1:role/r: "),
                             HasSubstr("answers InvalidIdentityToken: no: *** is bad")));
  EXPECT_EQ(get().error().code(), ErrorCode::kPermissionDenied);
}

TEST_F(CredentialsTest, StsIsAskedAgainWhenItIsBusy) {
  std::atomic<int> count = 0;
  FakeService sts([&](const auto&) {
    switch (count++) {
      case 0:
        return http::Reply{.status = 400, .body = sts_error("IDPCommunicationError", "later")};
      case 1:
        return http::Reply{.status = 503};
      default:
        return http::Reply{.body = sts_answer("AssumeRoleWithWebIdentity", "WEB", kInAnHour)};
    }
  });
  home_.write("token", "SeCrEt.jwt");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = home_.path("token");
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/r";
  variables_["AWS_ENDPOINT_URL_STS"] = sts.url();
  EXPECT_EQ(key(), "WEB");
  EXPECT_EQ(count, 3);
}

// The key that signed: "KEY" of "Credential=KEY/...".
std::string signer(const http::ReceivedRequest& request) {
  const std::string authorization(request.header("authorization"));
  const size_t begin = authorization.find("Credential=") + 11;
  return authorization.substr(begin, authorization.find('/') - begin);
}

TEST_F(CredentialsTest, RolesOfProfilesAreAssumedOneThroughTheOther) {
  FakeService sts([](const http::ReceivedRequest& request) {
    const std::string key = request.body.find("outer") != std::string::npos ? "OUTER" : "INNER";
    return http::Reply{.body = sts_answer("AssumeRole", key, kInAnHour)};
  });
  variables_["AWS_ENDPOINT_URL_STS"] = sts.url();
  home_.write(
      ".aws/config",
      "[profile outer]\nrole_arn = arn:outer\nsource_profile = inner\nexternal_id = e x\nduration_seconds = 900\n"
      "role_session_name = s\nregion = eu-west-3\n[profile inner]\nrole_arn = arn:inner\nsource_profile = keys\n");
  home_.write(".aws/credentials", "[keys]\naws_access_key_id = KEYS\naws_secret_access_key = SeCrEt\n");
  variables_["AWS_PROFILE"] = "outer";
  EXPECT_EQ(key(), "OUTER");
  const auto asked = sts.requests();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0].body,
            "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Ainner&RoleSessionName=millrace-1800000000");
  EXPECT_EQ(signer(asked[0]), "KEYS");
  EXPECT_EQ(asked[1].body,
            "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aouter&RoleSessionName=s&ExternalId=e%20x&"
            "DurationSeconds=900");
  EXPECT_EQ(signer(asked[1]), "INNER");
  EXPECT_EQ(asked[1].header("x-amz-security-token"), "SeCrEt-token-INNER");
  // Signed for the region of the profile in use, over the headers that were sent.
  const std::string host = sts.url().substr(7);
  const std::vector<Field> headers{{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"}};
  const Signed expected = sign({"KEYS", "SeCrEt", "", {}}, {.method = "POST",
                                                            .host = host,
                                                            .path = "/",
                                                            .query = {},
                                                            .headers = headers,
                                                            .payload_hash = sha256_hex(asked[0].body),
                                                            .time = clock_.now(),
                                                            .region = "eu-west-3",
                                                            .service = "sts"});
  EXPECT_EQ(asked[0].header("authorization"), expected.headers.back().second);
  EXPECT_EQ(asked[0].header("host"), host);
  EXPECT_EQ(asked[0].header("content-type"), headers[0].second);
}

TEST_F(CredentialsTest, ARoleMayUseKeysOfItsOwnProfileOrOfTheEnvironment) {
  FakeService sts([](const auto&) { return http::Reply{.body = sts_answer("AssumeRole", "ROLE", kInAnHour)}; });
  variables_["AWS_ENDPOINT_URL_STS"] = sts.url();
  home_.write(".aws/config",
              "[profile self]\nrole_arn = arn:r\nsource_profile = self\naws_access_key_id = SELF\n"
              "aws_secret_access_key = SeCrEt\n[profile env]\nrole_arn = arn:r\ncredential_source = Environment\n");
  EXPECT_EQ(key("self"), "ROLE");
  EXPECT_EQ(signer(sts.requests().back()), "SELF");
  EXPECT_THAT(error("env"), HasSubstr("credential_source Environment: AWS_ACCESS_KEY_ID is not set"));
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "SeCrEt";
  EXPECT_EQ(key("env"), "ROLE");
  EXPECT_EQ(signer(sts.requests().back()), "ENV");
}

TEST_F(CredentialsTest, ARoleThatCannotBeAssumedSaysWhy) {
  const std::pair<const char*, const char*> kCases[] = {
      {"", "needs either source_profile or credential_source"},
      {"source_profile = a\ncredential_source = Environment\n", "needs either source_profile or credential_source"},
      {"source_profile = nobody\n", "its source_profile 'nobody' does not exist"},
      {"source_profile = default\n", "its source_profile 'default' leads back to it"},
      {"source_profile = back\n", "profile 'back': its source_profile 'default' leads back to it"},
      {"source_profile = empty\n", "no credentials in profile 'empty'"},
      {"credential_source = Moon\n", "credential_source is 'Moon', not Environment"},
      {"source_profile = keys\nmfa_serial = arn:mfa\n", "mfa_serial"},
      {"source_profile = keys\nduration_seconds = long\n", "duration_seconds is no number"},
  };
  for (const auto& [lines, expected] : kCases) {
    home_.write(".aws/config", fmt::format("[default]\nrole_arn = arn:r\n{}[profile back]\nrole_arn = arn:b\n"
                                           "source_profile = default\n[profile empty]\nregion = x\n[profile keys]\n"
                                           "aws_access_key_id = K\naws_secret_access_key = SeCrEt\n",
                                           lines));
    EXPECT_THAT(error(), HasSubstr(expected)) << lines;
  }
}

// --- credential_process

TEST_F(CredentialsTest, AProcessIsRunWithoutAShell) {
  const std::string path = program("give it", "printf '%s' \"$1\"\n");
  home_.write(".aws/config",
              fmt::format("[default]\ncredential_process = \"{}\" '{{\"Version\": 1, \"AccessKeyId\": \"P $X;\", "
                          "\"SecretAccessKey\": \"SeCrEt\", \"SessionToken\": \"SeCrEt2\", \"Expiration\": "
                          "\"2027-01-15T10:00:00+01:00\"}}'\n",
                          path));
  const auto got = get();
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->access_key, "P $X;");
  EXPECT_EQ(got->secret_key, "SeCrEt");
  EXPECT_EQ(got->session_token, "SeCrEt2");
  EXPECT_EQ(got->expires, *parse_time(kInAnHour));
}

TEST_F(CredentialsTest, AProcessThatFailsIsQuotedAndItsOutputIsNot) {
  const std::pair<const char*, const char*> kCases[] = {
      {"echo SeCrEt; echo 'first\nsecond' >&2; exit 7", "p: exit status 7: first second"},
      {"echo SeCrEt", "is no JSON object"},
      {"echo '{\"Version\": 2, \"AccessKeyId\": \"SeCrEt\"}'", "has no \"Version\": 1"},
      {"echo '{\"Version\": 1, \"AccessKeyId\": \"SeCrEt\"}'", "has no SecretAccessKey"},
      {"echo '{\"Version\": 1, \"AccessKeyId\": 5, \"SecretAccessKey\": \"SeCrEt\"}'", "has no AccessKeyId"},
      {"echo '{\"Version\": 1, \"AccessKeyId\": \"a\", \"SecretAccessKey\": \"SeCrEt\", \"Expiration\": \"SeCrEt\"}'",
       "Expiration of the output of"},
      {"echo '{\"Version\": 1, \"AccessKeyId\": \"a\", \"SecretAccessKey\": \"SeCrEt\", \"Expiration\": "
       "\"2020-01-01T00:00:00Z\"}'",
       "they have expired"},
  };
  home_.write(".aws/config", "[default]\ncredential_process = " + program("p", "") + "\n");
  for (const auto& [script, expected] : kCases) {
    program("p", script);
    EXPECT_THAT(error(), HasSubstr(expected)) << script;
  }
  home_.write(".aws/config", "[default]\ncredential_process = /no/such/program SeCrEt\n");
  EXPECT_THAT(error(), HasSubstr("run /no/such/program"));
  home_.write(".aws/config", "[default]\ncredential_process = 'SeCrEt\n");
  EXPECT_THAT(error(), HasSubstr("a quotation that does not end"));
}

TEST_F(CredentialsTest, OrderInsideAProfile) {
  const std::string process = "credential_process = " +
                              program("p",
                                      "echo '{\"Version\": 1, \"AccessKeyId\": \"PROCESS\", "
                                      "\"SecretAccessKey\": \"SeCrEt\"}'") +
                              "\n";
  home_.write(".aws/config", "[default]\naws_access_key_id = CONFIG\naws_secret_access_key = SeCrEt\n");
  EXPECT_EQ(key(), "CONFIG");
  home_.write(".aws/config", "[default]\naws_access_key_id = CONFIG\naws_secret_access_key = SeCrEt\n" + process);
  EXPECT_EQ(key(), "PROCESS");
  home_.write(".aws/credentials", "[default]\naws_access_key_id = CREDENTIALS\naws_secret_access_key = SeCrEt\n");
  EXPECT_EQ(key(), "CREDENTIALS");
}

}  // namespace
}  // namespace millrace::aws
