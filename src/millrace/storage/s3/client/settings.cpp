// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/client/settings.h"

#include <charconv>

#include "millrace/base/text/strings.h"

namespace millrace::s3 {
namespace {

struct Setting {
  std::string value;
  std::string from;  // for messages
};

// The variable, else the profile's entry, else an empty Setting.
Setting setting(const aws::Config& config, const char* variable, const char* key) {
  if (std::string value = config.environment(variable); !value.empty()) return {value, variable};
  return {config.section().get(key), fmt::format("{} of profile '{}'", key, config.profile)};
}

tl::unexpected<Error> bad_setting(const Setting& setting, std::string_view expected) {
  return fail(ErrorCode::kInvalidArgument, "{} is '{}', not {}", setting.from, setting.value, expected);
}

Result<ChecksumUse> checksum_use(const Setting& setting) {
  const std::string value = lower_case(setting.value);
  if (value.empty() || value == "when_supported") return ChecksumUse::kWhenSupported;
  if (value == "when_required") return ChecksumUse::kWhenRequired;
  return bad_setting(setting, "when_supported or when_required");
}

Result<Addressing> addressing(const Setting& setting) {
  if (setting.value.empty() || setting.value == "auto") return Addressing::kAuto;
  if (setting.value == "path") return Addressing::kPath;
  if (setting.value == "virtual") return Addressing::kVirtual;
  return bad_setting(setting, "auto, path or virtual");
}

Result<int> attempts(const Setting& setting) {
  if (setting.value.empty()) return 0;
  int number = 0;
  const char* end = setting.value.data() + setting.value.size();
  const auto [rest, error] = std::from_chars(setting.value.data(), end, number);
  if (error != std::errc() || rest != end || number < 1) return bad_setting(setting, "a number above 0");
  return number;
}

}  // namespace

Result<S3Settings> s3_settings(const aws::Config& config, const std::string& endpoint_url) {
  S3Settings settings;
  settings.region = config.region();
  if (!settings.region.empty()) RETURN_IF_ERROR(aws::check_region(settings.region));
  settings.endpoint_url = endpoint_url;
  if (endpoint_url.empty()) {
    ASSIGN_OR_RETURN(settings.endpoint_url, aws::configured_endpoint(config, "s3"));
  }
  ASSIGN_OR_RETURN(settings.addressing,
                   addressing({config.section().get_nested("s3", "addressing_style"),
                               fmt::format("s3 addressing_style of profile '{}'", config.profile)}));
  settings.ca_bundle = config.ca_bundle();
  ASSIGN_OR_RETURN(settings.max_attempts, attempts(setting(config, "AWS_MAX_ATTEMPTS", "max_attempts")));
  ASSIGN_OR_RETURN(settings.request_checksums,
                   checksum_use(setting(config, "AWS_REQUEST_CHECKSUM_CALCULATION", "request_checksum_calculation")));
  ASSIGN_OR_RETURN(settings.response_checksums,
                   checksum_use(setting(config, "AWS_RESPONSE_CHECKSUM_VALIDATION", "response_checksum_validation")));
  return settings;
}

}  // namespace millrace::s3
