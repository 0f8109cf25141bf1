// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "millrace/base/text/units.h"
#include "millrace/storage/s3/client/settings.h"
#include "millrace/storage/s3/s3.h"

namespace millrace {
namespace {

// A whole number of 1 or more; `unset` when the variable is not set.
Result<int> count_in(const aws::Environment& environment, const std::string& name, int unset) {
  const std::string text = environment(name);
  if (text.empty()) return unset;
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1) {
    return fail(ErrorCode::kInvalidArgument, "{} is \"{}\", not a whole number of 1 or more", name, text);
  }
  return count;
}

// The number of processes that share the limits.
Result<int> share_of(const UrlOptions& asked, const aws::Environment& environment) {
  if (asked.processes) return *asked.processes;
  if (environment("MILLRACE_S3_SHARE") != "slurm") {
    return with_context(count_in(environment, "MILLRACE_S3_SHARE", 1), "a number of processes, or slurm");
  }
  ASSIGN_OR_RETURN(const int tasks, count_in(environment, "SLURM_NTASKS", 0));
  if (tasks > 0) return tasks;
  return fail(ErrorCode::kInvalidArgument, "MILLRACE_S3_SHARE is slurm, but SLURM_NTASKS is not set: give a number");
}

// A size or a count a second; 0 when the variable is not set.
Result<int64_t> rate_in(const aws::Environment& environment, const std::string& name) {
  const std::string text = environment(name);
  if (text.empty()) return 0;
  return with_context(parse_bytes(text), name);
}

Status set_limits(S3Options& options, const UrlOptions& asked, const aws::Environment& environment) {
  ASSIGN_OR_RETURN(const int share, share_of(asked, environment));
  ASSIGN_OR_RETURN(const int64_t requests, rate_in(environment, "MILLRACE_S3_REQUESTS_PER_SECOND"));
  ASSIGN_OR_RETURN(const int64_t bytes, asked.bytes_per_second ? Result<int64_t>(*asked.bytes_per_second)
                                                               : rate_in(environment, "MILLRACE_S3_BYTES_PER_SECOND"));
  options.requests_per_second = static_cast<double>(requests) / share;
  options.bytes_per_second = static_cast<double>(bytes) / share;
  return {};
}

Result<std::chrono::milliseconds> timeout_of(const UrlOptions& asked, const aws::Environment& environment,
                                             std::chrono::milliseconds otherwise) {
  if (asked.timeout) return *asked.timeout;
  ASSIGN_OR_RETURN(const int seconds, count_in(environment, "MILLRACE_TIMEOUT", 0));
  return seconds > 0 ? std::chrono::seconds(seconds) : otherwise;
}

}  // namespace

Result<S3Options> s3::s3_options(const aws::Environment& environment, const UrlOptions& asked) {
  ASSIGN_OR_RETURN(const aws::Config config, aws::load_config(environment));
  ASSIGN_OR_RETURN(const S3Settings settings, s3_settings(config, asked.endpoint_url));
  S3Options options;
  options.endpoint_url = settings.endpoint_url;
  options.region = settings.region;
  options.ca_file = settings.ca_bundle;
  options.anonymous = asked.anonymous.value_or(environment("MILLRACE_S3_ANONYMOUS") == "1");
  options.path_style = settings.addressing != Addressing::kVirtual;
  options.checksums = settings.request_checksums == ChecksumUse::kWhenSupported;
  options.check_reads = settings.response_checksums == ChecksumUse::kWhenSupported;
  options.etag_is_md5 = environment("MILLRACE_S3_ETAG_IS_MD5") != "0";
  if (settings.max_attempts > 0) options.max_tries = settings.max_attempts;
  ASSIGN_OR_RETURN(options.timeout, timeout_of(asked, environment, options.timeout));
  ASSIGN_OR_RETURN(options.threads, count_in(environment, "MILLRACE_S3_THREADS", options.threads));
  ASSIGN_OR_RETURN(options.max_under_way, count_in(environment, "MILLRACE_S3_REQUESTS_AT_ONCE", options.max_under_way));
  RETURN_IF_ERROR(set_limits(options, asked, environment));
  return options;
}

Result<S3Options> S3Options::from(const UrlOptions& options) {
  return s3::s3_options(aws::process_environment(), options);
}

}  // namespace millrace
