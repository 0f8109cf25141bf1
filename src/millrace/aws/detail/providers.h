// SPDX-License-Identifier: Apache-2.0
#pragma once

// Looks for credentials, with one function for each place. Each call asks again; CredentialsProvider keeps the
// results. Functions are thread-safe and block. No error contains a secret.

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/aws/profile_file.h"
#include "millrace/aws/sigv4.h"
#include "millrace/base/status.h"
#include "millrace/http/http.h"

namespace millrace::aws {

struct ProviderContext {
  const Config& config;
  http::Client& http;
  std::function<std::chrono::system_clock::time_point()> now;
  std::string container_host;
  std::stop_token stop;
};

// The result of one place. Missing credentials are no error; `missing` then names the place that was searched.
struct Found {
  std::optional<Credentials> credentials;
  std::string missing;
};

[[nodiscard]] Result<Found> from_environment(const ProviderContext& context);
[[nodiscard]] Result<Found> from_web_identity(const ProviderContext& context);
[[nodiscard]] Result<Found> from_profile(const ProviderContext& context);
[[nodiscard]] Result<Found> from_container(const ProviderContext& context);
[[nodiscard]] Result<Found> from_instance(const ProviderContext& context);

// --- requests that a profile may need

struct RoleRequest {
  std::string role_arn;
  std::string session_name;  // "": a generated name
  std::string external_id;
  std::string duration_seconds;
};
[[nodiscard]] Result<Credentials> assume_role(const ProviderContext& context, const RoleRequest& role,
                                              const Credentials& source);
// Reads the token from its file each time, because a renewal writes it there.
[[nodiscard]] Result<Credentials> assume_role_with_web_identity(const ProviderContext& context, const RoleRequest& role,
                                                                const std::string& token_file);
[[nodiscard]] Result<Credentials> sso_role_credentials(const ProviderContext& context, const std::string& profile_name,
                                                       const ProfileSection& profile);
[[nodiscard]] Result<Credentials> credentials_of_process(const ProviderContext& context, const std::string& command);

// --- shared by the providers

// Sends a request, and repeats it after temporary failures: no answer, 429 or 5xx.
[[nodiscard]] Result<http::Response> fetch_patiently(const ProviderContext& context, http::Request request,
                                                     int attempts, std::chrono::milliseconds time_limit);

// The names of the fields in a JSON answer.
struct JsonNames {
  const char* access_key = "AccessKeyId";
  const char* secret_key = "SecretAccessKey";
  const char* session_token = "Token";
  const char* expires = "Expiration";
};
// Reads credentials from a JSON text. Messages name `what` and never quote the text, which holds secrets.
[[nodiscard]] Result<Credentials> credentials_from_json(std::string_view text, const JsonNames& names,
                                                        std::string_view what);

// Parses "2026-11-21T12:00:00Z", also with a fraction, an offset, or "UTC" at the end.
std::optional<std::chrono::system_clock::time_point> parse_time(std::string_view text);

}  // namespace millrace::aws
