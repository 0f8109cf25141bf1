// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads ~/.aws/config and ~/.aws/credentials as botocore does, and the environment. Values, not synchronised. No error
// quotes a line, because it may hold a secret.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::aws {

// Returns the value of a variable; "" when it is not set. AWS's tools treat both alike.
using Environment = std::function<std::string(const std::string& name)>;
Environment process_environment();

struct ProfileSection {
  std::map<std::string, std::string> values;                         // names in lower case
  std::map<std::string, std::map<std::string, std::string>> nested;  // "s3 =" with indented lines below

  bool has(const std::string& name) const { return values.contains(name); }
  std::string get(const std::string& name) const;                                 // "" when there is none
  std::string get_nested(const std::string& name, const std::string& key) const;  // "" when there is none
};

// Parses the sections, named by the text in their brackets. A repeated section adds to the first. `path` is for
// messages.
[[nodiscard]] Result<std::vector<std::pair<std::string, ProfileSection>>> parse_profile_file(std::string_view text,
                                                                                             std::string_view path);

// The config file and the credentials file as one.
struct ProfileFiles {
  std::map<std::string, ProfileSection> profiles;  // the credentials file wins over the config file
  std::map<std::string, ProfileSection> sso_sessions;
  std::map<std::string, ProfileSection> services;
  std::map<std::string, ProfileSection> in_credentials_file;  // profiles of the credentials file only
};

struct Config {
  Environment environment;
  std::string profile;         // the profile in use
  bool profile_named = false;  // AWS_PROFILE or the caller names the profile, so it must exist
  std::string config_path;
  std::string credentials_path;
  std::shared_ptr<const ProfileFiles> files;  // never null

  // Returns the section of the profile in use; an empty one when there is none.
  const ProfileSection& section() const;
  // Returns AWS_REGION, else AWS_DEFAULT_REGION, else the region of the profile; "" when none is set.
  std::string region() const;
  // Returns AWS_CA_BUNDLE, else the bundle of the profile; "" for the system's.
  std::string ca_bundle() const;
  std::string home() const;
};

// Loads the configuration. An empty `profile` means AWS_PROFILE, else AWS_DEFAULT_PROFILE, else "default". Missing
// files count as empty. Each call sees the current files, and parses them only when they changed
// (detail/profile_files.h). Errors: invalid_argument (a file that cannot be parsed, a service section that does not
// exist), not_found (a named profile).
[[nodiscard]] Result<Config> load_config(Environment environment, std::string profile = {});

// Returns how many files load_config() has parsed in this process. For tests.
int64_t profile_files_parsed();

// Returns the configured endpoint of this service ("s3", "sts", "sso", "sso_oidc"); "" for AWS's endpoint.
[[nodiscard]] Result<std::string> configured_endpoint(const Config& config, const std::string& service);

// Returns "amazonaws.com", or the domain of the region's partition.
std::string_view dns_suffix(std::string_view region);
// Whether a region can be part of a host name. Errors: invalid_argument.
[[nodiscard]] Status check_region(std::string_view region);

}  // namespace millrace::aws
