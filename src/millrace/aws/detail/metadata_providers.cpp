// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

#include "millrace/aws/detail/providers.h"
#include "millrace/base/io/file_text.h"
#include "millrace/base/text/strings.h"

namespace millrace::aws {
namespace {

// As botocore's for containers: 2 s, three tries.
constexpr std::chrono::milliseconds kContainerLimit{2'000};
constexpr int kContainerAttempts = 3;
// A service in trouble may give expired credentials, which AWS's servers then accept for longer. As botocore, extends
// them by 10 minutes.
constexpr std::chrono::minutes kStretch{10};

// "host" of "scheme://host:port/path"; "" when it cannot be told for sure.
std::string_view host_of(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return {};
  std::string_view authority = url.substr(scheme + 3);
  authority = authority.substr(0, authority.find_first_of("/?#\\"));
  if (authority.find('@') != std::string_view::npos) return {};
  if (authority.starts_with('[')) return authority.substr(0, authority.find(']') + 1);
  return authority.substr(0, authority.find(':'));
}

bool is_ipv4_loopback(std::string_view host) {
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

// The request carries a token, so plain HTTP is allowed only to this machine and to AWS's addresses for such services.
bool may_receive_token(std::string_view url) {
  const std::string_view host = host_of(url);
  if (host.empty()) return false;
  if (url.starts_with("https://")) return true;
  constexpr std::string_view kKnown[] = {"localhost", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  return url.starts_with("http://") && (is_ipv4_loopback(host) || std::ranges::find(kKnown, host) != std::end(kKnown));
}

Result<std::string> container_token(const Environment& environment) {
  std::string token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string path = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !path.empty()) {
    token = read_text(path).value_or("");
    if (token.empty()) {
      return fail(ErrorCode::kPermissionDenied, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: no token in {}", path);
    }
    token.erase(token.find_last_not_of("\r\n") + 1);
  }
  if (token.find_first_of("\r\n") != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument, "the container's authorization token has more than one line");
  }
  return token;
}

// Seconds, or a count. Unreadable text gives the default, as in AWS's tools.
int small_number(const Environment& environment, const char* variable, int otherwise) {
  const std::string text = environment(variable);
  int number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && number > 0 && number <= 600 ? number : otherwise;
}

// The instance metadata service, version 2: gets a token first, by a method that open proxies do not forward.
class InstanceService {
 public:
  explicit InstanceService(const ProviderContext& context) : context_(context) {
    const Environment& environment = context.config.environment;
    base_ = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    if (base_.empty()) {
      const std::string mode = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
      base_ = mode == "IPv6" || mode == "ipv6" ? "http://[fd00:ec2::254]" : "http://169.254.169.254";
    }
    while (base_.ends_with('/')) base_.pop_back();
    limit_ = std::chrono::seconds(small_number(environment, "AWS_METADATA_SERVICE_TIMEOUT", 1));
    attempts_ = small_number(environment, "AWS_METADATA_SERVICE_NUM_ATTEMPTS", 1);
  }

  Result<http::Response> token() {
    http::Request request;
    request.method = http::Method::kPut;
    request.url = base_ + "/latest/api/token";
    request.headers = {"x-aws-ec2-metadata-token-ttl-seconds: 21600"};
    request.direct = true;
    return fetch_patiently(context_, std::move(request), attempts_, limit_);
  }

  Result<http::Response> get(std::string_view path, const std::string& token) {
    http::Request request;
    request.url = base_ + "/latest/meta-data/iam/security-credentials/" + std::string(path);
    request.headers = {"x-aws-ec2-metadata-token: " + token};
    request.direct = true;
    // The service has answered once, so it exists: wait longer.
    return fetch_patiently(context_, std::move(request), std::max(attempts_, 3), limit_);
  }

  const std::string& base() const { return base_; }

 private:
  const ProviderContext& context_;
  std::string base_;
  std::chrono::milliseconds limit_{};
  int attempts_ = 1;
};

std::string one_line(std::string text) {
  text.erase(std::min(text.find_first_of("\r\n"), text.size()));
  return text;
}

Result<Credentials> instance_credentials(const ProviderContext& context, const http::Response& response) {
  const nlohmann::json answer = nlohmann::json::parse(response.body, nullptr, false);
  if (answer.is_object() && answer.contains("Code") && answer["Code"] != "Success") {
    return fail(ErrorCode::kPermissionDenied, "the instance's metadata service answers {}",
                quotable(answer["Code"].dump()));
  }
  ASSIGN_OR_RETURN(Credentials credentials, credentials_from_json(response.body, {}, "the instance's answer"));
  credentials.expires = std::max(credentials.expires, context.now() + kStretch);
  return credentials;
}

}  // namespace

Result<Found> from_container(const ProviderContext& context) {
  const Environment& environment = context.config.environment;
  std::string url = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  if (!url.empty()) {
    if (!url.starts_with('/')) url.insert(0, "/");
    url.insert(0, context.container_host);
  } else {
    url = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (url.empty()) return Found{std::nullopt, "AWS_CONTAINER_CREDENTIALS_FULL_URI is not set"};
    if (!may_receive_token(url)) {
      return fail(ErrorCode::kInvalidArgument,
                  "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https, this machine or AWS's own address");
    }
  }
  ASSIGN_OR_RETURN(const std::string token, container_token(environment));
  http::Request request;
  request.url = url;
  request.headers = {"Accept: application/json"};
  request.direct = true;
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  const Result<http::Response> response =
      fetch_patiently(context, std::move(request), kContainerAttempts, kContainerLimit);
  if (!response) {
    // The path of the URL is a secret too.
    const std::string_view path =
        std::string_view(url).substr(std::min(url.find('/', url.find("://") + 3), url.size()));
    return fail(response.error().code(), "{}", quotable(response.error().to_string(), {path}));
  }
  if (response->status != 200) {
    return fail(response->status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kPermissionDenied,
                "the container's credential service answers HTTP status {}", response->status);
  }
  ASSIGN_OR_RETURN(Credentials credentials, credentials_from_json(response->body, {}, "the container's answer"));
  return Found{std::move(credentials), ""};
}

Result<Found> from_instance(const ProviderContext& context) {
  if (equal_ignoring_case(context.config.environment("AWS_EC2_METADATA_DISABLED"), "true")) {
    return Found{std::nullopt, "AWS_EC2_METADATA_DISABLED is set"};
  }
  InstanceService service(context);
  const Result<http::Response> token = service.token();
  if (!token) {
    if (token.error().code() == ErrorCode::kCancelled) return tl::unexpected(token.error());
    return Found{std::nullopt, fmt::format("no answer from {}", service.base())};
  }
  if (token->status != 200) {
    return Found{std::nullopt, fmt::format("{} answers HTTP status {}", service.base(), token->status)};
  }
  const std::string key = one_line(token->body);
  ASSIGN_OR_RETURN(const http::Response roles, service.get("", key));
  const std::string role = one_line(roles.body);
  if (roles.status == 404 || (roles.status == 200 && role.empty())) {
    return Found{std::nullopt, "the instance has no role"};
  }
  if (roles.status == 200) {
    ASSIGN_OR_RETURN(const http::Response answer, service.get(uri_encode(role, false), key));
    if (answer.status == 200) {
      ASSIGN_OR_RETURN(Credentials credentials, instance_credentials(context, answer));
      return Found{std::move(credentials), ""};
    }
    return fail(ErrorCode::kUnavailable, "the instance's metadata service answers HTTP status {}", answer.status);
  }
  return fail(ErrorCode::kUnavailable, "the instance's metadata service answers HTTP status {}", roles.status);
}

}  // namespace millrace::aws
