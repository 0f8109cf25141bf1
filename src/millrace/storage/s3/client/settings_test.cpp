// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/aws/testing/aws_home.h"

namespace millrace::s3 {
namespace {

using ::testing::HasSubstr;

class S3SettingsTest : public ::testing::Test {
 protected:
  Result<aws::Config> load() const { return aws::load_config(home_.environment()); }

  S3Settings settings() const {
    const auto config = load();
    EXPECT_TRUE(config) << config.error().to_string();
    auto read = s3_settings(*config);
    EXPECT_TRUE(read) << read.error().to_string();
    return read ? *read : S3Settings();
  }

  std::string settings_error() const {
    const auto config = load();
    EXPECT_TRUE(config);
    const auto read = s3_settings(*config);
    EXPECT_FALSE(read);
    return read ? "" : read.error().to_string();
  }

  aws::AwsHome home_;
  std::map<std::string, std::string>& variables_ = home_.variables;
};

TEST_F(S3SettingsTest, SettingsComeFromTheEnvironmentFirst) {
  home_.write(".aws/config",
              "[default]\nregion = eu-central-1\nca_bundle = ~/ca.pem\nmax_attempts = 7\n"
              "request_checksum_calculation = WHEN_REQUIRED\ns3 =\n  addressing_style = path\n");
  S3Settings read = settings();
  EXPECT_EQ(read.region, "eu-central-1");
  EXPECT_EQ(read.ca_bundle, home_.path("ca.pem"));
  EXPECT_EQ(read.max_attempts, 7);
  EXPECT_EQ(read.addressing, Addressing::kPath);
  EXPECT_EQ(read.request_checksums, ChecksumUse::kWhenRequired);
  EXPECT_EQ(read.response_checksums, ChecksumUse::kWhenSupported);
  variables_["AWS_DEFAULT_REGION"] = "us-west-1";
  EXPECT_EQ(settings().region, "us-west-1");
  variables_["AWS_REGION"] = "us-west-2";
  variables_["AWS_CA_BUNDLE"] = "/x.pem";
  variables_["AWS_MAX_ATTEMPTS"] = "2";
  variables_["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_supported";
  variables_["AWS_RESPONSE_CHECKSUM_VALIDATION"] = "when_required";
  read = settings();
  EXPECT_EQ(read.region, "us-west-2");
  EXPECT_EQ(read.ca_bundle, "/x.pem");
  EXPECT_EQ(read.max_attempts, 2);
  EXPECT_EQ(read.request_checksums, ChecksumUse::kWhenSupported);
  EXPECT_EQ(read.response_checksums, ChecksumUse::kWhenRequired);
}

TEST_F(S3SettingsTest, LimitsAreSharedByProcesses) {
  const auto options = [&] { return s3_options(home_.environment()).value(); };
  EXPECT_EQ(options().bytes_per_second, 0);
  variables_["MILLRACE_S3_BYTES_PER_SECOND"] = "100MB";
  variables_["MILLRACE_S3_REQUESTS_PER_SECOND"] = "50";
  EXPECT_EQ(options().bytes_per_second, 100e6);
  variables_["MILLRACE_S3_SHARE"] = "4";
  EXPECT_EQ(options().bytes_per_second, 25e6);
  EXPECT_EQ(options().requests_per_second, 12.5);
  variables_["MILLRACE_S3_SHARE"] = "slurm";
  variables_["SLURM_NTASKS"] = "8";
  EXPECT_EQ(options().bytes_per_second, 12.5e6);
}

TEST_F(S3SettingsTest, ASettingThatCannotBeUnderstoodIsAnError) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"MILLRACE_S3_SHARE", "slrm"},           {"MILLRACE_S3_SHARE", "0"},    {"MILLRACE_S3_SHARE", "-2"},
      {"MILLRACE_S3_SHARE", "slurm"},          {"MILLRACE_S3_THREADS", "2x"}, {"MILLRACE_S3_REQUESTS_AT_ONCE", "many"},
      {"MILLRACE_S3_BYTES_PER_SECOND", "fast"}};
  const auto before = variables_;
  for (const auto& [name, value] : wrong) {
    variables_ = before;
    variables_[name] = value;
    const auto options = s3_options(home_.environment());
    ASSERT_FALSE(options) << name << "=" << value;
    EXPECT_EQ(options.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(options.error().to_string(), HasSubstr(name));
  }
}

TEST_F(S3SettingsTest, TheNearestEndpointWins) {
  EXPECT_EQ(settings().endpoint_url, "");
  home_.write(
      ".aws/config",
      "[default]\nendpoint_url = http://profile\nservices = mine\n"
      "[services mine]\ns3 =\n  endpoint_url = http://services-s3\nsts =\n  endpoint_url = http://services-sts\n");
  EXPECT_EQ(settings().endpoint_url, "http://services-s3");
  EXPECT_EQ(*aws::configured_endpoint(*load(), "sts"), "http://services-sts");
  EXPECT_EQ(*aws::configured_endpoint(*load(), "sso"), "http://profile");
  variables_["AWS_ENDPOINT_URL"] = "http://all";
  EXPECT_EQ(settings().endpoint_url, "http://all");
  variables_["AWS_ENDPOINT_URL_S3"] = "http://s3";
  EXPECT_EQ(settings().endpoint_url, "http://s3");
  EXPECT_EQ(*aws::configured_endpoint(*load(), "sts"), "http://all");
  variables_["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "True";
  EXPECT_EQ(settings().endpoint_url, "");
}

TEST_F(S3SettingsTest, AWrongSettingIsNamed) {
  variables_["AWS_MAX_ATTEMPTS"] = "many";
  EXPECT_THAT(settings_error(), HasSubstr("AWS_MAX_ATTEMPTS is 'many', not a number above 0"));
  variables_["AWS_MAX_ATTEMPTS"] = "0";
  EXPECT_THAT(settings_error(), HasSubstr("AWS_MAX_ATTEMPTS"));
  variables_.erase("AWS_MAX_ATTEMPTS");
  variables_["AWS_REGION"] = "evil.example/";
  EXPECT_THAT(settings_error(), HasSubstr("no name of a region"));
  variables_.erase("AWS_REGION");
  home_.write(".aws/config", "[default]\ns3 =\n  addressing_style = sideways\n");
  EXPECT_THAT(settings_error(), HasSubstr("addressing_style of profile 'default' is 'sideways', not auto"));
  home_.write(".aws/config", "[default]\nservices = gone\n");
  EXPECT_THAT(settings_error(), HasSubstr("no [services gone]"));
  home_.write(".aws/config", "[default]\nrequest_checksum_calculation = never\n");
  EXPECT_THAT(settings_error(), HasSubstr("request_checksum_calculation of profile 'default' is 'never'"));
}

}  // namespace
}  // namespace millrace::s3
