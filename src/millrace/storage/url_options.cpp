// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/url_options.h"

#include <fmt/format.h>

#include <utility>

#include "millrace/base/thread/sync.h"

namespace millrace {
namespace {

struct ProcessOptions {
  Mutex mutex;
  UrlOptions options GUARDED_BY(mutex);
};

ProcessOptions& of_process() {
  static auto& options = *new ProcessOptions;  // never destroyed: threads may open storages at exit
  return options;
}

}  // namespace

std::vector<std::string> UrlOptions::variables() const {
  std::vector<std::string> all;
  if (!endpoint_url.empty()) all.push_back("AWS_ENDPOINT_URL_S3=" + endpoint_url);
  if (anonymous) all.push_back(fmt::format("MILLRACE_S3_ANONYMOUS={}", *anonymous ? 1 : 0));
  if (timeout) all.push_back(fmt::format("MILLRACE_TIMEOUT={}", timeout->count()));
  if (bytes_per_second) all.push_back(fmt::format("MILLRACE_S3_BYTES_PER_SECOND={}", *bytes_per_second));
  if (processes) all.push_back(fmt::format("MILLRACE_S3_SHARE={}", *processes));
  return all;
}

UrlOptions process_url_options() {
  ProcessOptions& own = of_process();
  const MutexLock lock(own.mutex);
  return own.options;
}

void set_process_url_options(UrlOptions options) {
  ProcessOptions& own = of_process();
  const MutexLock lock(own.mutex);
  own.options = std::move(options);
}

}  // namespace millrace
