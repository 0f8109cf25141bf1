// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "millrace/aws/detail/providers.h"

namespace millrace::aws {
namespace {

bool has_keys(const ProfileSection& section) {
  return section.has("aws_access_key_id") || section.has("aws_secret_access_key");
}

// A role that is assumed with other credentials; with a token it is a web identity.
bool has_role(const ProfileSection& section) {
  return section.has("role_arn") && !section.has("web_identity_token_file");
}

Result<Credentials> keys_of(const ProfileSection& section) {
  Credentials credentials;
  credentials.access_key = section.get("aws_access_key_id");
  credentials.secret_key = section.get("aws_secret_access_key");
  credentials.session_token = section.get("aws_session_token");
  if (credentials.access_key.empty() || credentials.secret_key.empty()) {
    return fail(ErrorCode::kInvalidArgument, "only one of aws_access_key_id and aws_secret_access_key is set");
  }
  return credentials;
}

class ProfileChain {
 public:
  explicit ProfileChain(const ProviderContext& context) : context_(context) {}

  Result<Found> find(const std::string& name) {
    const auto profile = context_.config.files->profiles.find(name);
    if (profile == context_.config.files->profiles.end()) {
      return Found{std::nullopt, fmt::format("no '{}' in {} or {}", name, context_.config.config_path,
                                             context_.config.credentials_path)};
    }
    Result<Found> found = find_in(name, profile->second);
    return with_context(std::move(found), fmt::format("profile '{}'", name));
  }

 private:
  // A source profile gives its own keys before its role, so a profile may name itself as source.
  Result<Found> find_in(const std::string& name, const ProfileSection& section) {
    if (has_role(section) && (visited_.empty() || !has_keys(section))) return found(role(name, section));
    if (section.has("web_identity_token_file")) {
      RoleRequest request{section.get("role_arn"), section.get("role_session_name"), "", ""};
      if (request.role_arn.empty()) {
        return fail(ErrorCode::kInvalidArgument, "web_identity_token_file without role_arn");
      }
      return found(assume_role_with_web_identity(context_, request, section.get("web_identity_token_file")));
    }
    if (section.has("sso_account_id") || section.has("sso_role_name")) {
      return found(sso_role_credentials(context_, name, section));
    }
    // Keys in the credentials file, a process, keys in the config file: in this order.
    const auto secrets = context_.config.files->in_credentials_file.find(name);
    if (secrets != context_.config.files->in_credentials_file.end() && has_keys(secrets->second)) {
      return found(keys_of(secrets->second));
    }
    if (section.has("credential_process")) {
      return found(
          with_context(credentials_of_process(context_, section.get("credential_process")), "credential_process"));
    }
    if (has_keys(section)) return found(keys_of(section));
    return Found{std::nullopt, fmt::format("no credentials in profile '{}'", name)};
  }

  static Result<Found> found(Result<Credentials> credentials) {
    if (!credentials) return tl::unexpected(std::move(credentials).error());
    return Found{std::move(*credentials), ""};
  }

  Result<Credentials> role(const std::string& name, const ProfileSection& section) {
    if (section.has("mfa_serial")) {
      return fail(ErrorCode::kUnsupported, "mfa_serial asks a person for a code; use a session made elsewhere");
    }
    const std::string duration = section.get("duration_seconds");
    if (duration.find_first_not_of("0123456789") != std::string::npos) {
      return fail(ErrorCode::kInvalidArgument, "duration_seconds is no number");
    }
    visited_.push_back(name);
    ASSIGN_OR_RETURN(const Credentials source, source_of(name, section));
    return assume_role(
        context_, {section.get("role_arn"), section.get("role_session_name"), section.get("external_id"), duration},
        source);
  }

  Result<Credentials> source_of(const std::string& name, const ProfileSection& section) {
    const std::string place = section.get("credential_source"), other = section.get("source_profile");
    if (place.empty() == other.empty()) {
      return fail(ErrorCode::kInvalidArgument, "role_arn needs either source_profile or credential_source");
    }
    if (!place.empty()) return source_at(place);
    if (!context_.config.files->profiles.contains(other)) {
      return fail(ErrorCode::kInvalidArgument, "its source_profile '{}' does not exist", other);
    }
    const bool itself = other == name && has_keys(section);
    if (!itself && std::ranges::find(visited_, other) != visited_.end()) {
      return fail(ErrorCode::kInvalidArgument, "its source_profile '{}' leads back to it", other);
    }
    ASSIGN_OR_RETURN(Found found, find(other));
    if (!found.credentials) return fail(ErrorCode::kPermissionDenied, "{}", found.missing);
    return std::move(*found.credentials);
  }

  Result<Credentials> source_at(const std::string& place) {
    const bool environment = place == "Environment", instance = place == "Ec2InstanceMetadata";
    if (!environment && !instance && place != "EcsContainer") {
      return fail(ErrorCode::kInvalidArgument,
                  "credential_source is '{}', not Environment, Ec2InstanceMetadata or EcsContainer", place);
    }
    ASSIGN_OR_RETURN(Found found, environment ? from_environment(context_)
                                  : instance  ? from_instance(context_)
                                              : from_container(context_));
    if (!found.credentials) {
      return fail(ErrorCode::kPermissionDenied, "credential_source {}: {}", place, found.missing);
    }
    return std::move(*found.credentials);
  }

  const ProviderContext& context_;
  std::vector<std::string> visited_;  // profiles whose roles wait for their source
};

}  // namespace

Result<Found> from_profile(const ProviderContext& context) {
  return ProfileChain(context).find(context.config.profile);
}

}  // namespace millrace::aws
