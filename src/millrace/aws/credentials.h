// SPDX-License-Identifier: Apache-2.0
#pragma once

// Credentials from the places where AWS's tools look, in their order, kept until they expire.
//
//   environment -> web identity -> profile files -> container -> instance
//
// The first place that is set up decides, even when it fails: a service that is away must not change the identity of a
// user. No error contains a secret.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "millrace/aws/profile_file.h"
#include "millrace/aws/sigv4.h"
#include "millrace/base/status.h"

namespace millrace::aws {

struct CredentialsOptions {
  std::string profile;     // "" for AWS_PROFILE, then "default"; a profile named here wins over keys in the environment
  bool anonymous = false;  // no credentials, requests go unsigned
  std::string ca_file;     // for STS and SSO; "" for AWS_CA_BUNDLE, then the system's
  // For tests.
  Environment environment = process_environment();
  std::function<std::chrono::system_clock::time_point()> now = std::chrono::system_clock::now;
  std::string container_host = "http://169.254.170.2";
};

// Thread-safe. After fork the child asks its providers anew.
class CredentialsProvider {
 public:
  explicit CredentialsProvider(CredentialsOptions options = {});
  ~CredentialsProvider();  // cancels a refresh that is under way
  CredentialsProvider(const CredentialsProvider&) = delete;
  CredentialsProvider& operator=(const CredentialsProvider&) = delete;

  // Calls `done` at once where valid credentials are known. Otherwise the provider's thread looks for some, which takes
  // up to seconds, or a minute for a credential_process, and calls it; `done` must be brief and must not wait. Five
  // minutes before credentials expire, that thread fetches new ones while callers use the old.
  // Errors: permission_denied (no credentials, with each place and the reason; or a service refused), invalid_argument
  // (files or variables that cannot be parsed), not_found (the named profile), unavailable, timeout, unsupported.
  using Done = std::function<void(Result<Credentials>)>;
  void get(Done done);
  // Waits for them.
  [[nodiscard]] Result<Credentials> get();

  // A server has refused these (ExpiredToken): the next get() asks the provider again, once.
  void refused(const Credentials& credentials);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::aws
