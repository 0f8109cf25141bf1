// SPDX-License-Identifier: Apache-2.0
#pragma once

// A caller's options for the storages that it opens by URL. The environment and the profile files decide the options
// that it leaves open.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

struct UrlOptions {
  std::string endpoint_url;                     // endpoint of s3://, instead of all configured ones; "" leaves it open
  std::optional<bool> anonymous;                // s3:// without credentials; MILLRACE_S3_ANONYMOUS
  std::optional<std::chrono::seconds> timeout;  // 1 s or more, of all requests; MILLRACE_TIMEOUT
  std::optional<int64_t> bytes_per_second;      // rate to and from s3://, 0: no limit; MILLRACE_S3_BYTES_PER_SECOND
  std::optional<int> processes;  // processes that share the limits of s3://, at least 1; MILLRACE_S3_SHARE
  bool operator==(const UrlOptions&) const = default;

  // These options as environment variables, "NAME=VALUE" each, for a process that this one starts.
  std::vector<std::string> variables() const;
};

// The options of everything in this process that opens a URL without options of its own. Empty until they are set.
// Both are thread-safe. Storages that are open stay as they are, so a program sets them before it opens any.
UrlOptions process_url_options();
void set_process_url_options(UrlOptions options);

}  // namespace millrace
