// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/profile_file.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "millrace/aws/detail/profile_files.h"
#include "millrace/base/text/strings.h"

namespace millrace::aws {
namespace {

constexpr std::string_view kBlanks = " \t\r\f\v";

tl::unexpected<Error> bad_line(std::string_view path, int64_t number, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument, "{}, line {}: {}", path, number, why);
}

// Reads line by line. A line that is indented deeper than the last option continues its value. When that value was
// empty, the indented lines are nested options ("s3 =").
class Parser {
 public:
  explicit Parser(std::string_view path) : path_(path) {}

  Status line(std::string_view text) {
    ++number_;
    const std::string_view content = trimmed(text, kBlanks);
    if (content.empty() || content[0] == '#' || content[0] == ';') return {};
    const size_t indent = text.find_first_not_of(kBlanks);
    if (has_option_ && indent > indent_) return continuation(content);
    indent_ = indent;
    if (content[0] == '[') return section(content);
    return option(content);
  }

  std::vector<std::pair<std::string, ProfileSection>> sections;

 private:
  Status section(std::string_view content) {
    const size_t end = content.rfind(']');
    if (end == std::string_view::npos || end == 1) return bad_line(path_, number_, "a section without a name or a ]");
    const std::string name(trimmed(content.substr(1, end - 1), kBlanks));
    has_option_ = false;
    const auto same = std::ranges::find(sections, name, [](const auto& each) { return each.first; });
    current_ = static_cast<size_t>(same - sections.begin());
    if (same == sections.end()) sections.emplace_back(name, ProfileSection());
    return {};
  }

  Status option(std::string_view content) {
    if (sections.empty()) return bad_line(path_, number_, "no [section] before it");
    const size_t delimiter = content.find_first_of("=:");
    if (delimiter == std::string_view::npos || delimiter == 0) return bad_line(path_, number_, "not NAME = VALUE");
    option_ = lower_case(trimmed(content.substr(0, delimiter), kBlanks));
    sections[current_].second.values[option_] = trimmed(content.substr(delimiter + 1), kBlanks);
    sections[current_].second.nested.erase(option_);
    has_option_ = true;
    return {};
  }

  Status continuation(std::string_view content) {
    std::string& value = sections[current_].second.values[option_];
    if (!value.empty()) {
      value += '\n';
      value += content;
      return {};
    }
    const size_t delimiter = content.find('=');
    if (delimiter == std::string_view::npos) return bad_line(path_, number_, "not NAME = VALUE");
    sections[current_].second.nested[option_][std::string(trimmed(content.substr(0, delimiter), kBlanks))] =
        trimmed(content.substr(delimiter + 1), kBlanks);
    return {};
  }

  std::string path_;
  int64_t number_ = 0;
  size_t current_ = 0;
  std::string option_;
  bool has_option_ = false;
  size_t indent_ = 0;
};

std::string home_of(const Environment& environment) {
  if (std::string home = environment("HOME"); !home.empty()) return home;
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(1 << 14);
  getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr ? found->pw_dir : "/";
}

std::string path_from(const Environment& environment, const char* variable, std::string_view in_home) {
  const std::string named = environment(variable);
  if (named.empty()) return home_of(environment) + std::string(in_home);
  return named.starts_with("~/") ? home_of(environment) + named.substr(1) : named;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value != nullptr ? value : "");
  };
}

std::string ProfileSection::get(const std::string& name) const {
  const auto found = values.find(name);
  return found != values.end() ? found->second : "";
}

std::string ProfileSection::get_nested(const std::string& name, const std::string& key) const {
  const auto inner = nested.find(name);
  if (inner == nested.end()) return "";
  const auto found = inner->second.find(key);
  return found != inner->second.end() ? found->second : "";
}

Result<std::vector<std::pair<std::string, ProfileSection>>> parse_profile_file(std::string_view text,
                                                                               std::string_view path) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  Parser parser(path);
  while (!text.empty()) RETURN_IF_ERROR(parser.line(take_line(text)));
  return std::move(parser.sections);
}

const ProfileSection& Config::section() const {
  static const ProfileSection kNone;
  const auto found = files->profiles.find(profile);
  return found != files->profiles.end() ? found->second : kNone;
}

std::string Config::region() const {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (std::string region = environment(name); !region.empty()) return region;
  }
  return section().get("region");
}

std::string Config::ca_bundle() const {
  std::string path = environment("AWS_CA_BUNDLE");
  if (path.empty()) path = section().get("ca_bundle");
  return path.starts_with("~/") ? home() + path.substr(1) : path;
}

std::string Config::home() const {
  return home_of(environment);
}

Result<Config> load_config(Environment environment, std::string profile) {
  Config config;
  for (const char* name : {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}) {
    if (profile.empty()) profile = environment(name);
  }
  config.profile_named = !profile.empty();
  config.profile = config.profile_named ? profile : "default";
  config.config_path = path_from(environment, "AWS_CONFIG_FILE", "/.aws/config");
  config.credentials_path = path_from(environment, "AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
  config.environment = std::move(environment);

  ASSIGN_OR_RETURN(config.files, read_profile_files(config.config_path, config.credentials_path));
  if (config.profile_named && !config.files->profiles.contains(config.profile)) {
    return fail(ErrorCode::kNotFound, "no profile '{}' in {} or {}", config.profile, config.config_path,
                config.credentials_path);
  }
  return config;
}

Result<std::string> configured_endpoint(const Config& config, const std::string& service) {
  const ProfileSection& section = config.section();
  std::string ignore = config.environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
  if (ignore.empty()) ignore = section.get("ignore_configured_endpoint_urls");
  if (lower_case(ignore) == "true") return std::string();

  std::string variable = "AWS_ENDPOINT_URL_" + service;
  std::ranges::transform(variable, variable.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  for (const std::string& name : {variable, std::string("AWS_ENDPOINT_URL")}) {
    if (std::string url = config.environment(name); !url.empty()) return url;
  }
  if (const std::string name = section.get("services"); !name.empty()) {
    const auto services = config.files->services.find(name);
    if (services == config.files->services.end()) {
      return fail(ErrorCode::kInvalidArgument, "profile '{}' names services '{}', and {} has no [services {}]",
                  config.profile, name, config.config_path, name);
    }
    if (std::string url = services->second.get_nested(service, "endpoint_url"); !url.empty()) return url;
  }
  return section.get("endpoint_url");
}

std::string_view dns_suffix(std::string_view region) {
  constexpr std::pair<std::string_view, std::string_view> kPartitions[] = {
      {"cn-", "amazonaws.com.cn"},    {"us-iso-", "c2s.ic.gov"},      {"us-isob-", "sc2s.sgov.gov"},
      {"eu-isoe-", "cloud.adc-e.uk"}, {"us-isof-", "csp.hci.ic.gov"}, {"eusc-", "amazonaws.eu"}};
  for (const auto& [prefix, suffix] : kPartitions) {
    if (region.starts_with(prefix)) return suffix;
  }
  return "amazonaws.com";
}

Status check_region(std::string_view region) {
  const bool label = !region.empty() && region.size() <= 63 && region.front() != '-' && region.back() != '-' &&
                     std::ranges::all_of(region, [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
                     });
  if (!label) return fail(ErrorCode::kInvalidArgument, "'{}' is no name of a region", region);
  return {};
}

}  // namespace millrace::aws
