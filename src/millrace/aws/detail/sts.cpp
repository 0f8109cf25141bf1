// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <pugixml.hpp>
#include <vector>

#include "millrace/aws/detail/providers.h"
#include "millrace/aws/requests.h"
#include "millrace/base/io/file_text.h"

namespace millrace::aws {
namespace {

constexpr std::chrono::milliseconds kStsLimit{20'000};  // as any silent try of S3 (client/service.cpp)
constexpr int kStsAttempts = 4;  // A choice: without the role nothing goes on, so once more than for SSO

struct StsPlace {
  std::string url;  // ends with "/"
  std::string host;
  std::string path;
  std::string region;  // for which requests are signed
};

Result<StsPlace> sts_place(const Config& config) {
  const std::string region = config.region();
  if (!region.empty()) RETURN_IF_ERROR(check_region(region));
  ASSIGN_OR_RETURN(std::string url, configured_endpoint(config, "sts"));
  if (url.empty()) {
    url = region.empty() ? "https://sts.amazonaws.com" : fmt::format("https://sts.{}.{}", region, dns_suffix(region));
  }
  std::string host = host_header(url);
  if (host.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the endpoint of STS is no URL: {}", quotable(http::without_secrets(url)));
  }
  if (!url.ends_with('/')) url += '/';
  std::string path = url.substr(url.find('/', url.find("://") + 3));
  return StsPlace{std::move(url), std::move(host), std::move(path), region.empty() ? "us-east-1" : region};
}

std::string form(const std::vector<Field>& fields) {
  std::string out;
  for (const Field& field : fields) {
    if (field.second.empty()) continue;
    if (!out.empty()) out += '&';
    out += uri_encode(field.first, false) + "=" + uri_encode(field.second, false);
  }
  return out;
}

std::vector<Field> role_fields(const ProviderContext& context, const char* action, const RoleRequest& role) {
  std::string name = role.session_name;
  if (name.empty()) {
    const auto since_epoch = std::chrono::duration_cast<std::chrono::seconds>(context.now().time_since_epoch());
    name = fmt::format("millrace-{}", since_epoch.count());
  }
  return {{"Action", action},        {"Version", "2011-06-15"},        {"RoleArn", role.role_arn},
          {"RoleSessionName", name}, {"ExternalId", role.external_id}, {"DurationSeconds", role.duration_seconds}};
}

// "AccessDenied: ..." of a failed answer.
std::string sts_refusal(const http::Response& response, std::initializer_list<std::string_view> secrets) {
  pugi::xml_document document;
  document.load_buffer(response.body.data(), response.body.size());
  const pugi::xml_node error = document.document_element().child("Error");
  const std::string_view code = error.child_value("Code"), message = error.child_value("Message");
  if (code.empty()) return fmt::format("HTTP status {}", response.status);
  return fmt::format("{}: {}", quotable(code, secrets), quotable(message, secrets));
}

Result<Credentials> credentials_of_answer(const http::Response& response, const std::string& action) {
  pugi::xml_document document;
  document.load_buffer(response.body.data(), response.body.size());
  const pugi::xml_node node = document.document_element().child((action + "Result").c_str()).child("Credentials");
  Credentials credentials;
  credentials.access_key = node.child_value("AccessKeyId");
  credentials.secret_key = node.child_value("SecretAccessKey");
  credentials.session_token = node.child_value("SessionToken");
  const auto expires = parse_time(node.child_value("Expiration"));
  if (credentials.access_key.empty() || credentials.secret_key.empty() || !expires) {
    return fail(ErrorCode::kUnavailable, "an answer that is not STS's");
  }
  credentials.expires = *expires;
  return credentials;
}

// The answer's code may ask for a retry, in addition to its status.
bool says_again(const http::Response& response) {
  if (response.status != 400) return false;
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"<Code>IDPCommunicationError<", "<Code>Throttling", "<Code>RequestLimit"},
      [&](std::string_view code) { return response.body.find(code) != std::string::npos; });
}

// `signer` is anonymous where the body of the request carries its proof.
Result<Credentials> ask_sts(const ProviderContext& context, const std::vector<Field>& fields, const Credentials& signer,
                            std::initializer_list<std::string_view> secrets) {
  ASSIGN_OR_RETURN(const StsPlace place, sts_place(context.config));
  const std::string body = form(fields);
  const std::string hash = sha256_hex(body);
  const std::vector<Field> headers{{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"}};
  http::Request request;
  request.method = http::Method::kPost;
  request.url = place.url;
  request.body = std::as_bytes(std::span(body));
  for (int attempt = 1;; ++attempt) {
    request.headers.clear();
    add_signed_headers(signer,
                       {.method = "POST",
                        .host = place.host,
                        .path = place.path,
                        .query = {},
                        .headers = headers,
                        .payload_hash = hash,
                        .time = context.now(),
                        .region = place.region,
                        .service = "sts"},
                       request);
    ASSIGN_OR_RETURN(const http::Response response, fetch_patiently(context, request, kStsAttempts, kStsLimit));
    if (response.status == 200) return credentials_of_answer(response, fields[0].second);
    if (says_again(response) && attempt < kStsAttempts) {
      request.not_before = Clock::now() + std::chrono::milliseconds(100 << attempt);
      continue;
    }
    const ErrorCode code = response.status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kPermissionDenied;
    return fail(code, "{} answers {}", place.host, sts_refusal(response, secrets));
  }
}

}  // namespace

Result<Credentials> assume_role(const ProviderContext& context, const RoleRequest& role, const Credentials& source) {
  return with_context(
      ask_sts(context, role_fields(context, "AssumeRole", role), source, {source.secret_key, source.session_token}),
      "AssumeRole " + role.role_arn);
}

Result<Credentials> assume_role_with_web_identity(const ProviderContext& context, const RoleRequest& role,
                                                  const std::string& token_file) {
  std::string token = read_text(token_file).value_or("");
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) {
    return fail(ErrorCode::kPermissionDenied, "there is no token in AWS_WEB_IDENTITY_TOKEN_FILE or {}: {}",
                "web_identity_token_file", token_file);
  }
  std::vector<Field> fields = role_fields(context, "AssumeRoleWithWebIdentity", role);
  fields.emplace_back("WebIdentityToken", token);
  return with_context(ask_sts(context, fields, Credentials(), {token}), "AssumeRoleWithWebIdentity " + role.role_arn);
}

Result<Found> from_web_identity(const ProviderContext& context) {
  const Environment& environment = context.config.environment;
  const std::string token_file = environment("AWS_WEB_IDENTITY_TOKEN_FILE");
  if (token_file.empty()) return Found{std::nullopt, "AWS_WEB_IDENTITY_TOKEN_FILE is not set"};
  RoleRequest role;
  role.role_arn = environment("AWS_ROLE_ARN");
  if (role.role_arn.empty()) role.role_arn = context.config.section().get("role_arn");
  if (role.role_arn.empty()) {
    return fail(ErrorCode::kInvalidArgument, "AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not");
  }
  role.session_name = environment("AWS_ROLE_SESSION_NAME");
  ASSIGN_OR_RETURN(Credentials credentials, assume_role_with_web_identity(context, role, token_file));
  return Found{std::move(credentials), ""};
}

}  // namespace millrace::aws
