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
Result<int> share_in(const aws::Environment& environment) {
  if (environment("MILLRACE_S3_SHARE") != "slurm") {
    return with_context(count_in(environment, "MILLRACE_S3_SHARE", 1), "a number of processes, or slurm");
  }
  ASSIGN_OR_RETURN(const int tasks, count_in(environment, "SLURM_NTASKS", 0));
  if (tasks > 0) return tasks;
  return fail(ErrorCode::kInvalidArgument, "MILLRACE_S3_SHARE is slurm, but SLURM_NTASKS is not set: give a number");
}

// A size or a count a second; 0 when the variable is not set.
Result<double> rate_in(const aws::Environment& environment, const std::string& name, int share) {
  const std::string text = environment(name);
  if (text.empty()) return 0.0;
  ASSIGN_OR_RETURN(const int64_t rate, with_context(parse_bytes(text), name));
  return static_cast<double>(rate) / share;
}

}  // namespace

Result<S3Options> s3::s3_options(const aws::Environment& environment) {
  ASSIGN_OR_RETURN(const aws::Config config, aws::load_config(environment));
  ASSIGN_OR_RETURN(const S3Settings settings, s3_settings(config));
  S3Options options;
  options.endpoint_url = settings.endpoint_url;
  options.region = settings.region;
  options.ca_file = settings.ca_bundle;
  options.anonymous = environment("MILLRACE_S3_ANONYMOUS") == "1";
  options.path_style = settings.addressing != Addressing::kVirtual;
  options.checksums = settings.request_checksums == ChecksumUse::kWhenSupported;
  options.check_reads = settings.response_checksums == ChecksumUse::kWhenSupported;
  options.etag_is_md5 = environment("MILLRACE_S3_ETAG_IS_MD5") != "0";
  if (settings.max_attempts > 0) options.max_tries = settings.max_attempts;
  ASSIGN_OR_RETURN(const int timeout_s, count_in(environment, "MILLRACE_TIMEOUT", 0));
  if (timeout_s > 0) options.timeout = std::chrono::seconds(timeout_s);
  ASSIGN_OR_RETURN(options.threads, count_in(environment, "MILLRACE_S3_THREADS", options.threads));
  ASSIGN_OR_RETURN(options.max_under_way, count_in(environment, "MILLRACE_S3_REQUESTS_AT_ONCE", options.max_under_way));
  ASSIGN_OR_RETURN(const int share, share_in(environment));
  ASSIGN_OR_RETURN(options.requests_per_second, rate_in(environment, "MILLRACE_S3_REQUESTS_PER_SECOND", share));
  ASSIGN_OR_RETURN(options.bytes_per_second, rate_in(environment, "MILLRACE_S3_BYTES_PER_SECOND", share));
  return options;
}

Result<S3Options> S3Options::from_environment() {
  return s3::s3_options(aws::process_environment());
}

}  // namespace millrace
