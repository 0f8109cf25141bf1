// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads settings of S3 from the environment and the profile, without credentials. A value.

#include <string>

#include "millrace/aws/profile_file.h"
#include "millrace/base/status.h"
#include "millrace/storage/s3/s3.h"

namespace millrace::s3 {

enum class Addressing { kAuto, kPath, kVirtual };
enum class ChecksumUse { kWhenSupported, kWhenRequired };

struct S3Settings {
  std::string region;        // "": not set
  std::string endpoint_url;  // "": AWS
  Addressing addressing = Addressing::kAuto;
  std::string ca_bundle;  // "": the system's
  int max_attempts = 0;   // tries of a request, including the first; 0: not set
  ChecksumUse request_checksums = ChecksumUse::kWhenSupported;
  ChecksumUse response_checksums = ChecksumUse::kWhenSupported;
};

// Reads the settings. `endpoint_url`, unless empty, overrides all configured endpoints. Errors: invalid_argument, with
// the name of the setting.
[[nodiscard]] Result<S3Settings> s3_settings(const aws::Config& config, const std::string& endpoint_url = {});

// Like S3Options::from(), for this environment.
[[nodiscard]] Result<S3Options> s3_options(const aws::Environment& environment, const UrlOptions& options = {});

}  // namespace millrace::s3
