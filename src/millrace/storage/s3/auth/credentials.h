// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whose requests these are: credentials from the places where AWS's tools look, in their order, kept until they expire.
//
//   environment -> web identity -> profile files -> container -> instance
//
// The first place where something is set up decides, also when it fails: nobody is to become somebody else because one
// service was away. No secret is part of any error.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "millrace/base/status.h"
#include "millrace/storage/s3/auth/profile_file.h"
#include "millrace/storage/s3/auth/sigv4.h"

namespace millrace::s3 {

struct CredentialsOptions {
  std::string profile;  // "" for AWS_PROFILE, then "default"; one that is named here passes over the environment's keys
  bool anonymous = false;  // no credentials, requests go unsigned
  std::string ca_file;     // for STS and SSO; "" for AWS_CA_BUNDLE, then the system's
  // For tests.
  Environment environment = process_environment();
  std::function<std::chrono::system_clock::time_point()> now = std::chrono::system_clock::now;
  std::string container_host = "http://169.254.170.2";
};

// Thread-safe. After fork the child asks its sources anew.
class CredentialsProvider {
 public:
  explicit CredentialsProvider(CredentialsOptions options = {});
  ~CredentialsProvider();  // ends a refresh that is under way
  CredentialsProvider(const CredentialsProvider&) = delete;
  CredentialsProvider& operator=(const CredentialsProvider&) = delete;

  // Blocks the first time and after the credentials have expired: up to seconds, or a minute for a credential_process.
  // Five minutes before they expire a thread fetches new ones, while everyone goes on with the old.
  // Errors: permission_denied (there are none, with every place and why; or a service refused), invalid_argument (files
  // or variables that cannot be understood), not_found (the named profile), unavailable, timeout, unsupported.
  [[nodiscard]] Result<Credentials> get();

  // A server has refused these (ExpiredToken): the next get() asks the source again, once.
  void refused(const Credentials& credentials);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::s3
