// SPDX-License-Identifier: Apache-2.0
#pragma once

// A caller's options for the storages that it opens by URL. The environment and the profile files decide the options
// that are not set.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

struct UrlOptions {
  std::string endpoint_url;                     // overrides all configured s3:// endpoints; "": not set
  std::optional<bool> anonymous;                // s3:// without credentials; MILLRACE_S3_ANONYMOUS
  std::optional<std::chrono::seconds> timeout;  // 1 s or more, of all requests; MILLRACE_TIMEOUT
  std::optional<int64_t> bytes_per_second;      // of s3://, 0: no limit; MILLRACE_S3_BYTES_PER_SECOND
  std::optional<int> processes;  // processes that share the limits of s3://, at least 1; MILLRACE_S3_SHARE
  bool operator==(const UrlOptions&) const = default;

  // Returns these options as environment variables, "NAME=VALUE" each, for a child process.
  std::vector<std::string> variables() const;
};

// The options for URLs that this process opens without explicit options. Empty until they are set. Both functions are
// thread-safe. Open storages do not change, so a program sets the options before it opens any.
UrlOptions process_url_options();
void set_process_url_options(UrlOptions options);

}  // namespace millrace
