// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/profile_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/aws/testing/aws_home.h"
#include "millrace/base/command.h"

namespace millrace::aws {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class AwsFiles : public ::testing::Test {
 protected:
  Result<Config> load(const std::string& profile = {}) const { return load_config(home_.environment(), profile); }

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
  EXPECT_THAT(config->files->profiles, ElementsAre(Key("b"), Key("default"), Key("only here")));
  EXPECT_EQ(config->section().get("region"), "wins");
  EXPECT_EQ(config->section().get("output"), "x");
  EXPECT_EQ(config->files->profiles.at("b").get("aws_access_key_id"), "credentials");
  EXPECT_EQ(config->files->profiles.at("b").get("region"), "r");
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

TEST_F(AwsFiles, AreParsedOnceForEachOfTheirVersions) {
  // As if it had been written an hour ago; what is fresh is parsed each time.
  const auto write = [this](const std::string& name, const std::string& text) {
    home_.write(name, text);
    std::filesystem::last_write_time(home_.path(name),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  };
  write(".aws/config", "[default]\nregion = one\n[profile b]\nregion = other\n");
  write(".aws/credentials", "[default]\naws_access_key_id = A\n");
  int64_t before = profile_files_parsed();
  const auto parsed = [&] { return profile_files_parsed() - std::exchange(before, profile_files_parsed()); };
  EXPECT_EQ(load()->section().get("region"), "one");
  EXPECT_EQ(parsed(), 2);
  EXPECT_EQ(load()->section().get("region"), "one");
  EXPECT_EQ(load("b")->section().get("region"), "other");
  EXPECT_EQ(load()->section().get("aws_access_key_id"), "A");
  EXPECT_EQ(parsed(), 0);

  write(".aws/config", "[default]\nregion = two\n[profile b]\nregion = other\n");
  EXPECT_EQ(load()->section().get("region"), "two") << "of the same size";
  EXPECT_EQ(parsed(), 2);
  EXPECT_EQ(load()->section().get("region"), "two");
  EXPECT_EQ(parsed(), 0);

  for (const char* key : {"B", "C", "D"}) {
    home_.write(".aws/credentials", std::string("[default]\naws_access_key_id = ") + key + "\n");
    EXPECT_EQ(load()->section().get("aws_access_key_id"), key);
  }
  std::filesystem::remove(home_.path(".aws/credentials"));
  EXPECT_FALSE(load()->section().has("aws_access_key_id"));
  std::filesystem::remove(home_.path(".aws/config"));
  EXPECT_EQ(load()->section().get("region"), "");
  parsed();
  EXPECT_EQ(load()->section().get("region"), "");
  EXPECT_EQ(parsed(), 0);
}

TEST_F(AwsFiles, OneThatCannotBeParsedIsToldEachTime) {
  home_.write(".aws/config", "[default]\nregion\n");
  for (int i = 0; i < 2; ++i) {
    const auto config = load();
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code(), ErrorCode::kInvalidArgument);
  }
  home_.write(".aws/config", "[default]\nregion = here\n");
  EXPECT_EQ(load()->section().get("region"), "here");
}

TEST(Regions, HavePartitions) {
  EXPECT_EQ(dns_suffix("eu-west-1"), "amazonaws.com");
  EXPECT_EQ(dns_suffix("cn-north-1"), "amazonaws.com.cn");
  EXPECT_EQ(dns_suffix("us-isob-east-1"), "sc2s.sgov.gov");
  EXPECT_TRUE(check_region("us-east-1"));
  for (const char* wrong : {"", "-a", "a-", "a.b", "a b", "a/b"}) EXPECT_FALSE(check_region(wrong)) << wrong;
}

}  // namespace
}  // namespace millrace::aws
