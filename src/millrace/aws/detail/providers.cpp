// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/detail/providers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/aws/requests.h"
#include "millrace/base/command.h"
#include "millrace/base/text/json_members.h"
#include "millrace/base/text/utf8.h"

namespace millrace::aws {
namespace {

using std::chrono::system_clock;

constexpr std::chrono::milliseconds kProcessLimit{60'000};  // a login through a browser helper takes tens of seconds
constexpr int kLastYear = 2200;
constexpr int64_t kLastMs = (kLastYear - 1970) * int64_t{31'556'952'000};

bool take_digits(std::string_view& text, size_t count, int& value) {
  if (text.size() < count) return false;
  value = 0;
  for (const char c : text.substr(0, count)) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + (c - '0');
  }
  text.remove_prefix(count);
  return true;
}

bool take_char(std::string_view& text, std::string_view any_of) {
  if (text.empty() || any_of.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

// "Z", "UTC", "+01:00", "-0700" or nothing.
std::optional<std::chrono::minutes> offset_from_utc(std::string_view text) {
  if (text.empty() || text == "Z" || text == "z" || text == "UTC") return std::chrono::minutes(0);
  const bool west = text.front() == '-';
  int hours = 0, minutes = 0;
  if (!take_char(text, "+-") || !take_digits(text, 2, hours)) return std::nullopt;
  take_char(text, ":");
  if (!text.empty() && !take_digits(text, 2, minutes)) return std::nullopt;
  if (!text.empty()) return std::nullopt;
  const auto offset = std::chrono::hours(hours) + std::chrono::minutes(minutes);
  return west ? -offset : offset;
}

}  // namespace

std::optional<system_clock::time_point> parse_time(std::string_view text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  const bool well_formed = take_digits(text, 4, year) && take_char(text, "-") && take_digits(text, 2, month) &&
                           take_char(text, "-") && take_digits(text, 2, day) && take_char(text, "Tt ") &&
                           take_digits(text, 2, hour) && take_char(text, ":") && take_digits(text, 2, minute) &&
                           take_char(text, ":") && take_digits(text, 2, second);
  const std::chrono::year_month_day date(std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day)));
  if (!well_formed || !date.ok() || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  // The clock counts nanoseconds in 64 bits, which end in 2262. "9999-12-31" means never.
  if (year > kLastYear) return system_clock::time_point::max();
  if (year < 1970) return system_clock::time_point();
  if (take_char(text, ".")) text.remove_prefix(std::min(text.find_first_not_of("0123456789"), text.size()));
  const auto offset = offset_from_utc(text);
  if (!offset) return std::nullopt;
  return std::chrono::sys_days(date) + std::chrono::hours(hour) + std::chrono::minutes(minute) +
         std::chrono::seconds(second) - *offset;
}

Result<http::Response> fetch_patiently(const ProviderContext& context, http::Request request, int attempts,
                                       std::chrono::milliseconds time_limit) {
  request.stop = context.stop;
  for (int attempt = 1;; ++attempt) {
    request.deadline = std::max(request.not_before, Clock::now()) + time_limit;
    Result<http::Response> response = context.http.fetch(request);
    const bool may_pass =
        response ? response->status == 429 || response->status >= 500
                 : response.error().code() == ErrorCode::kUnavailable || response.error().code() == ErrorCode::kTimeout;
    if (!may_pass || attempt >= attempts) return response;
    request.not_before = Clock::now() + std::chrono::milliseconds(100 << attempt);
  }
}

Result<Credentials> credentials_from_json(std::string_view text, const JsonNames& names, std::string_view what) {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) return fail(ErrorCode::kPermissionDenied, "{} is no JSON object", what);
  Credentials credentials;
  credentials.access_key = text_or_empty(object, names.access_key);
  credentials.secret_key = text_or_empty(object, names.secret_key);
  credentials.session_token = text_or_empty(object, names.session_token);
  for (const auto& [name, value] :
       {std::pair(names.access_key, &credentials.access_key), std::pair(names.secret_key, &credentials.secret_key)}) {
    if (value->empty()) return fail(ErrorCode::kPermissionDenied, "{} has no {}", what, name);
  }
  const auto expires = object.find(names.expires);
  if (expires == object.end() || expires->is_null()) return credentials;
  if (expires->is_number_integer()) {
    const int64_t ms = expires->get<int64_t>();
    if (ms < kLastMs)
      credentials.expires = system_clock::time_point(std::chrono::milliseconds(std::max<int64_t>(ms, 0)));
    return credentials;
  }
  const auto time = parse_time(text_or_empty(object, names.expires));
  if (!time) return fail(ErrorCode::kPermissionDenied, "{} of {} is no time", names.expires, what);
  credentials.expires = *time;
  return credentials;
}

Result<Found> from_environment(const ProviderContext& context) {
  const Environment& environment = context.config.environment;
  Credentials credentials;
  credentials.access_key = environment("AWS_ACCESS_KEY_ID");
  credentials.secret_key = environment("AWS_SECRET_ACCESS_KEY");
  if (credentials.access_key.empty() && credentials.secret_key.empty()) {
    return Found{std::nullopt, "AWS_ACCESS_KEY_ID is not set"};
  }
  if (credentials.access_key.empty() || credentials.secret_key.empty()) {
    return fail(ErrorCode::kInvalidArgument, "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set");
  }
  credentials.session_token = environment("AWS_SESSION_TOKEN");
  if (const std::string expires = environment("AWS_CREDENTIAL_EXPIRATION"); !expires.empty()) {
    const auto time = parse_time(expires);
    if (!time) return fail(ErrorCode::kInvalidArgument, "AWS_CREDENTIAL_EXPIRATION is no time");
    credentials.expires = *time;
  }
  return Found{std::move(credentials), ""};
}

Result<Credentials> credentials_of_process(const ProviderContext& context, const std::string& command) {
  ASSIGN_OR_RETURN(const std::vector<std::string> words,
                   with_context(split_command(command), "the line of credential_process"));
  if (words.empty()) return fail(ErrorCode::kInvalidArgument, "credential_process is empty");
  Result<CommandOutput> ran = run_command(words, kProcessLimit, context.stop);
  if (!ran && ran.error().code() == ErrorCode::kNotFound) {
    return fail(ErrorCode::kPermissionDenied, "{}", ran.error().message());
  }
  ASSIGN_OR_RETURN(const CommandOutput output, with_context(std::move(ran), words[0]));
  if (!output.ok) {
    return fail(ErrorCode::kPermissionDenied, "{}: {}: {}", words[0], output.status, quotable(output.err));
  }
  const std::string what = "the output of " + words[0];
  const nlohmann::json object = nlohmann::json::parse(output.out, nullptr, false);
  if (object.is_object() && (!object.contains("Version") || object["Version"] != 1)) {
    return fail(ErrorCode::kPermissionDenied, "{} has no \"Version\": 1", what);
  }
  return credentials_from_json(output.out, {.session_token = "SessionToken"}, what);
}

}  // namespace millrace::aws
