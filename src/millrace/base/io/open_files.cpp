// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/open_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace millrace {
namespace {

constexpr rlim_t kMost = 1'000'000;  // infinity is a large number too

}  // namespace

int open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min(limit.rlim_cur, kMost));
}

void raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min(limit.rlim_max, std::max(limit.rlim_cur, kMost));
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));  // else it stays
}

}  // namespace millrace
