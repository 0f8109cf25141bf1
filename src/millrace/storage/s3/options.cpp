// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "millrace/base/units.h"
#include "millrace/storage/s3/detail/settings.h"
#include "millrace/storage/s3/s3.h"

namespace millrace {
namespace {

// A size or a count a second; 0 when the variable is not set. MILLRACE_S3_SHARE processes have it together.
Result<double> rate_in(const s3::Environment& environment, const std::string& name) {
  const std::string text = environment(name);
  if (text.empty()) return 0.0;
  ASSIGN_OR_RETURN(const int64_t rate, with_context(parse_bytes(text), name));
  const std::string share = environment("MILLRACE_S3_SHARE");
  const int processes = std::max(1, std::atoi((share == "slurm" ? environment("SLURM_NTASKS") : share).c_str()));
  return static_cast<double>(rate) / processes;
}

}  // namespace

Result<S3Options> S3Options::from_environment() {
  const s3::Environment environment = s3::process_environment();
  ASSIGN_OR_RETURN(const s3::AwsConfig config, s3::load_aws_config(environment));
  ASSIGN_OR_RETURN(const s3::S3Settings settings, s3::s3_settings(config));
  S3Options options;
  options.endpoint_url = settings.endpoint_url;
  options.region = settings.region;
  options.ca_file = settings.ca_bundle;
  options.anonymous = environment("MILLRACE_S3_ANONYMOUS") == "1";
  options.path_style = settings.addressing != s3::Addressing::kVirtual;
  options.checksums = settings.request_checksums == s3::ChecksumUse::kWhenSupported;
  options.check_reads = settings.response_checksums == s3::ChecksumUse::kWhenSupported;
  options.hedge = environment("MILLRACE_S3_HEDGE") != "0";
  if (settings.max_attempts > 0) options.max_tries = settings.max_attempts;
  if (const int threads = std::atoi(environment("MILLRACE_S3_THREADS").c_str()); threads > 0) options.threads = threads;
  if (const int most = std::atoi(environment("MILLRACE_S3_REQUESTS_AT_ONCE").c_str()); most > 0)
    options.max_under_way = most;
  ASSIGN_OR_RETURN(options.requests_per_second, rate_in(environment, "MILLRACE_S3_REQUESTS_PER_SECOND"));
  ASSIGN_OR_RETURN(options.bytes_per_second, rate_in(environment, "MILLRACE_S3_BYTES_PER_SECOND"));
  ASSIGN_OR_RETURN(options.requests_per_prefix, rate_in(environment, "MILLRACE_S3_REQUESTS_PER_PREFIX"));
  return options;
}

}  // namespace millrace
