// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "millrace/aws/detail/providers.h"
#include "millrace/aws/requests.h"
#include "millrace/base/io/file_text.h"
#include "millrace/base/text/json_members.h"

namespace millrace::aws {
namespace {

using nlohmann::json;
using std::chrono::system_clock;

constexpr std::chrono::milliseconds kSsoLimit{20'000};  // as any silent try of S3 (client/service.cpp)
constexpr int kSsoAttempts = 3;                         // as kContainerAttempts (metadata_providers.cpp)
constexpr std::chrono::minutes kRenewBefore{5};         // A choice: longer than a renewal takes, and than clocks differ

struct SsoSettings {
  std::string session;  // "" for the old form, without [sso-session]
  std::string start_url, region, account_id, role_name;
};

Result<SsoSettings> sso_settings(const ProviderContext& context, const std::string& profile_name,
                                 const ProfileSection& profile) {
  ProfileSection all = profile;
  const std::string session = profile.get("sso_session");
  if (!session.empty()) {
    const auto found = context.config.files->sso_sessions.find(session);
    if (found == context.config.files->sso_sessions.end()) {
      return fail(ErrorCode::kInvalidArgument, "{} has no [sso-session {}]", context.config.config_path, session);
    }
    for (const auto& [name, value] : found->second.values) all.values[name] = value;
  }
  SsoSettings settings{session, all.get("sso_start_url"), all.get("sso_region"), all.get("sso_account_id"),
                       all.get("sso_role_name")};
  for (const auto& [name, value] :
       {std::pair("sso_start_url", &settings.start_url), std::pair("sso_region", &settings.region),
        std::pair("sso_account_id", &settings.account_id), std::pair("sso_role_name", &settings.role_name)}) {
    if (value->empty()) return fail(ErrorCode::kInvalidArgument, "profile '{}' has no {}", profile_name, name);
  }
  RETURN_IF_ERROR(check_region(settings.region));
  return settings;
}

std::string sha1_hex(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha1(), nullptr);
  std::string out;
  for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

// The text becomes part of a header, so it must not contain line ends.
bool fits_a_header(std::string_view text) {
  return text.find_first_of("\r\n") == std::string_view::npos;
}

Result<std::string> sso_endpoint(const ProviderContext& context, const SsoSettings& sso, const std::string& service,
                                 std::string_view host) {
  ASSIGN_OR_RETURN(std::string url, configured_endpoint(context.config, service));
  if (url.empty()) url = fmt::format("https://{}.{}.{}", host, sso.region, dns_suffix(sso.region));
  if (url.ends_with('/')) url.pop_back();
  return url;
}

// Writes beside the old file and renames; only this user may read it. A failure is harmless: the token works.
void save_token(const std::string& path, const json& token) {
  const std::string temporary = fmt::format("{}.millrace-{}", path, getpid());
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  const std::string text = token.dump();
  const bool written = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  if (!written || rename(temporary.c_str(), path.c_str()) != 0) unlink(temporary.c_str());
}

// Tokens of a session live for an hour and come with the means to get the next one.
Result<json> renewed_token(const ProviderContext& context, const SsoSettings& sso, const json& token) {
  ASSIGN_OR_RETURN(const std::string endpoint, sso_endpoint(context, sso, "sso_oidc", "oidc"));
  const std::string body = json{{"grantType", "refresh_token"},
                                {"clientId", text_or_empty(token, "clientId")},
                                {"clientSecret", text_or_empty(token, "clientSecret")},
                                {"refreshToken", text_or_empty(token, "refreshToken")}}
                               .dump();
  http::Request request;
  request.method = http::Method::kPost;
  request.url = endpoint + "/token";
  request.headers = {"Content-Type: application/json"};
  request.body = std::as_bytes(std::span(body));
  ASSIGN_OR_RETURN(const http::Response response, fetch_patiently(context, request, kSsoAttempts, kSsoLimit));
  const json answer = json::parse(response.body, nullptr, false);
  const auto lifetime = integer_at(answer, "expiresIn");
  if (response.status != 200 || text_or_empty(answer, "accessToken").empty() || !lifetime) {
    return fail(ErrorCode::kPermissionDenied, "the token could not be renewed: HTTP status {}", response.status);
  }
  json renewed = token;
  renewed["accessToken"] = answer["accessToken"];
  if (answer.contains("refreshToken")) renewed["refreshToken"] = answer["refreshToken"];
  const auto seconds = std::chrono::seconds(std::clamp<int64_t>(*lifetime, 0, 366 * 86'400));
  const auto expires = std::chrono::floor<std::chrono::seconds>(context.now()) + seconds;
  const auto day = std::chrono::floor<std::chrono::days>(expires);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(expires - day);
  renewed["expiresAt"] = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(date.year()),
                                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
  return renewed;
}

// The token that `aws sso login` stored, renewed when it is about to expire.
Result<std::string> access_token(const ProviderContext& context, const SsoSettings& sso, const std::string& advice) {
  const std::string& key = sso.session.empty() ? sso.start_url : sso.session;
  const std::string path = fmt::format("{}/.aws/sso/cache/{}.json", context.config.home(), sha1_hex(key));
  json token = json::parse(read_text(path).value_or(""), nullptr, false);
  if (text_or_empty(token, "accessToken").empty()) {
    return fail(ErrorCode::kPermissionDenied, "there is no SSO token in {}: {}", path, advice);
  }
  const auto expires_at = [&] {
    return parse_time(text_or_empty(token, "expiresAt")).value_or(system_clock::time_point());
  };
  if (expires_at() - context.now() < kRenewBefore && !text_or_empty(token, "refreshToken").empty() &&
      !sso.session.empty()) {
    if (Result<json> renewed = renewed_token(context, sso, token)) {
      token = std::move(*renewed);
      save_token(path, token);
    }
  }
  if (expires_at() <= context.now()) {
    return fail(ErrorCode::kPermissionDenied, "the SSO token has expired: {}", advice);
  }
  std::string access = text_or_empty(token, "accessToken");
  if (!fits_a_header(access)) return fail(ErrorCode::kPermissionDenied, "the SSO token in {} is damaged", path);
  return access;
}

}  // namespace

Result<Credentials> sso_role_credentials(const ProviderContext& context, const std::string& profile_name,
                                         const ProfileSection& profile) {
  ASSIGN_OR_RETURN(const SsoSettings sso, sso_settings(context, profile_name, profile));
  const std::string advice = fmt::format("run `aws sso login --profile {}`", profile_name);
  ASSIGN_OR_RETURN(const std::string token, access_token(context, sso, advice));
  ASSIGN_OR_RETURN(const std::string endpoint, sso_endpoint(context, sso, "sso", "portal.sso"));
  http::Request request;
  request.url = fmt::format("{}/federation/credentials?role_name={}&account_id={}", endpoint,
                            uri_encode(sso.role_name, false), uri_encode(sso.account_id, false));
  request.headers = {"x-amz-sso_bearer_token: " + token};
  ASSIGN_OR_RETURN(const http::Response response, fetch_patiently(context, request, kSsoAttempts, kSsoLimit));
  if (response.status == 401) {
    return fail(ErrorCode::kPermissionDenied, "SSO no longer takes the token: {}", advice);
  }
  const json answer = json::parse(response.body, nullptr, false);
  if (response.status != 200) {
    const std::string message = text_or_empty(answer, "message");
    return fail(response.status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kPermissionDenied,
                "SSO answers HTTP status {} {}", response.status, quotable(message, {token}));
  }
  const json* role = member(answer, "roleCredentials");
  if (role == nullptr) return fail(ErrorCode::kUnavailable, "SSO's answer has no roleCredentials");
  return credentials_from_json(role->dump(), {"accessKeyId", "secretAccessKey", "sessionToken", "expiration"},
                               "SSO's answer");
}

}  // namespace millrace::aws
