// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/auth/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/base/command.h"
#include "millrace/storage/s3/client/settings.h"
#include "millrace/storage/testing/aws_home.h"

namespace millrace::s3 {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class AwsFiles : public ::testing::Test {
 protected:
  Result<AwsConfig> load(const std::string& profile = {}) const {
    return load_aws_config(home_.environment(), profile);
  }

  S3Settings settings(const std::string& profile = {}) const {
    const auto config = load(profile);
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

  AwsHome home_;
  std::map<std::string, std::string>& variables_ = home_.variables;
};

TEST(ProfileFile, ReadsWhatBotocoreReads) {
  const auto sections = parse_profile_file(
      "\xEF\xBB\xBF# a comment\r\n"
      "[ default ]\r\n"
      "  Region=eu-west-1\r\n"
      "  ; another\n"
      "  output : json\n"
      "\n"
      "[profile  \"two words\"]\n"
      "s3 =\n"
      "    addressing_style = path\n"
      "    max_concurrent_requests=20\n"
      "credential_process = /bin/x \\\n"
      "   --more # no comment\n"
      "empty =\n"
      "url = http://h:1/?a=b\n"
      "[default]\n"
      "region = us-east-1\n",
      "config");
  ASSERT_TRUE(sections) << sections.error().to_string();
  ASSERT_THAT(*sections, ElementsAre(Key("default"), Key("profile  \"two words\"")));
  const ProfileSection& first = (*sections)[0].second;
  EXPECT_THAT(first.values, ElementsAre(Pair("output", "json"), Pair("region", "us-east-1")));
  const ProfileSection& second = (*sections)[1].second;
  EXPECT_EQ(second.get("credential_process"), "/bin/x \\\n--more # no comment");
  EXPECT_EQ(second.get("url"), "http://h:1/?a=b");
  EXPECT_EQ(second.get("empty"), "");
  EXPECT_TRUE(second.has("empty"));
  EXPECT_EQ(second.get_nested("s3", "addressing_style"), "path");
  EXPECT_EQ(second.get_nested("s3", "max_concurrent_requests"), "20");
  EXPECT_EQ(second.get_nested("s3", "none"), "");
}

// Files and commands as botocore and shlex read them: tests/e2e/test_aws_files.py writes them and runs this.
TEST(ProfileFile, AsBotocoreReads) {
  const char* path = std::getenv("MILLRACE_AWS_FILE_VECTORS");
  if (path == nullptr) GTEST_SKIP() << "run by tests/e2e/test_aws_files.py";
  std::ifstream file(path);
  const nlohmann::json vectors = nlohmann::json::parse(file);
  ASSERT_GT(vectors["files"].size(), 0U);
  for (const auto& each : vectors["files"]) {
    const auto sections = parse_profile_file(each["text"].get<std::string>(), "f");
    nlohmann::json read;  // null when it cannot be read
    if (sections) read = nlohmann::json::object();
    for (const auto& [name, section] : sections.value_or(std::vector<std::pair<std::string, ProfileSection>>())) {
      read[name] = nlohmann::json(section.values);
      for (const auto& [option, values] : section.nested) read[name][option] = values;
    }
    ASSERT_EQ(read, each["read"]) << each.dump(2);
  }
  for (const auto& each : vectors["commands"]) {
    const auto words = split_command(each["text"].get<std::string>());
    ASSERT_EQ(words ? nlohmann::json(*words) : nlohmann::json(), each["words"]) << each.dump();
  }
}

TEST(ProfileFile, SaysWhereItIsWrongAndNothingOfTheLine) {
  for (const char* text : {"[a]\nsecretsecret\n", "secretsecret = 1\n", "[a]\n= secretsecret\n", "[a]\n[]\n",
                           "[a]\n[secretsecret\n", "[a]\nb =\n  secretsecret\n"}) {
    const auto sections = parse_profile_file(text, "some/config");
    ASSERT_FALSE(sections) << text;
    EXPECT_EQ(sections.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(sections.error().to_string(), AllOf(HasSubstr("some/config, line "), Not(HasSubstr("secretsecret"))));
  }
}

TEST_F(AwsFiles, ProfilesOfBothFilesAreOne) {
  home_.write(".aws/config",
              "[profile default]\nregion = wins\n[default]\nregion = loses\noutput = x\n"
              "[profile b]\naws_access_key_id = config\nregion = r\n[b]\nregion = not a profile\n[profile]\n");
  home_.write(".aws/credentials", "[b]\naws_access_key_id = credentials\n[only here]\na = 1\n");
  const auto config = load();
  ASSERT_TRUE(config) << config.error().to_string();
  EXPECT_EQ(config->profile, "default");
  EXPECT_FALSE(config->profile_named);
  EXPECT_THAT(config->profiles, ElementsAre(Key("b"), Key("default"), Key("only here")));
  EXPECT_EQ(config->section().get("region"), "wins");
  EXPECT_EQ(config->section().get("output"), "x");
  EXPECT_EQ(config->profiles.at("b").get("aws_access_key_id"), "credentials");
  EXPECT_EQ(config->profiles.at("b").get("region"), "r");
  EXPECT_EQ(load("b")->section().get("region"), "r");
}

TEST_F(AwsFiles, NoFilesAreEmptyOnesAndANamedProfileMustExist) {
  EXPECT_EQ(load()->section().values.size(), 0U);
  const auto missing = load("nobody");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().to_string(), HasSubstr("no profile 'nobody'"));
  variables_["AWS_PROFILE"] = "also nobody";
  EXPECT_FALSE(load());
}

TEST_F(AwsFiles, VariablesNameOtherFiles) {
  home_.write("c", "[profile x]\nregion = here\n");
  home_.write("s", "[x]\naws_access_key_id = k\n");
  variables_["AWS_CONFIG_FILE"] = "~/c";
  variables_["AWS_SHARED_CREDENTIALS_FILE"] = home_.path("s");
  variables_["AWS_DEFAULT_PROFILE"] = "x";
  EXPECT_EQ(load()->section().get("region"), "here");
  EXPECT_EQ(load()->section().get("aws_access_key_id"), "k");
  variables_["AWS_CONFIG_FILE"] = "/dev/null";
  EXPECT_EQ(load()->section().get("region"), "");
}

TEST_F(AwsFiles, SettingsComeFromTheEnvironmentFirst) {
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

TEST_F(AwsFiles, LimitsAreSharedByProcesses) {
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

TEST_F(AwsFiles, ASettingThatCannotBeUnderstoodIsAnError) {
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

TEST_F(AwsFiles, TheNearestEndpointWins) {
  EXPECT_EQ(settings().endpoint_url, "");
  home_.write(
      ".aws/config",
      "[default]\nendpoint_url = http://profile\nservices = mine\n"
      "[services mine]\ns3 =\n  endpoint_url = http://services-s3\nsts =\n  endpoint_url = http://services-sts\n");
  EXPECT_EQ(settings().endpoint_url, "http://services-s3");
  EXPECT_EQ(*configured_endpoint(*load(), "sts"), "http://services-sts");
  EXPECT_EQ(*configured_endpoint(*load(), "sso"), "http://profile");
  variables_["AWS_ENDPOINT_URL"] = "http://all";
  EXPECT_EQ(settings().endpoint_url, "http://all");
  variables_["AWS_ENDPOINT_URL_S3"] = "http://s3";
  EXPECT_EQ(settings().endpoint_url, "http://s3");
  EXPECT_EQ(*configured_endpoint(*load(), "sts"), "http://all");
  variables_["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "True";
  EXPECT_EQ(settings().endpoint_url, "");
}

TEST_F(AwsFiles, AWrongSettingIsNamed) {
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

TEST(Regions, HavePartitions) {
  EXPECT_EQ(dns_suffix("eu-west-1"), "amazonaws.com");
  EXPECT_EQ(dns_suffix("cn-north-1"), "amazonaws.com.cn");
  EXPECT_EQ(dns_suffix("us-isob-east-1"), "sc2s.sgov.gov");
  EXPECT_TRUE(check_region("us-east-1"));
  for (const char* wrong : {"", "-a", "a-", "a.b", "a b", "a/b"}) EXPECT_FALSE(check_region(wrong)) << wrong;
}

}  // namespace
}  // namespace millrace::s3
